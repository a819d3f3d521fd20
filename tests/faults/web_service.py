"""A web application that enqueues and runs jobs, to be signalled and killed under load. Its order is in ORDER.

Handlers record when they start and end, whatever the scheduler believes.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
from pymongo import MongoClient
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.faults.records import Recorder
from trio_monque import Monque, RunningJob, Workers, open_scheduler

ORDER: Final = json.loads(os.environ["ORDER"])
PROCESS: Final = str(os.getpid())

recorder = Recorder(Path(ORDER["records"]), PROCESS)
client = MongoClient[Any](ORDER["uri"])
monque = Monque(client[ORDER["database"]])
workers = Workers()


@workers.register("works", concurrency=20)
async def works(job: RunningJob[float]) -> None:
    """Sleeps as many seconds as its data asks for; cancelled, it cleans up for a moment."""
    recorder.write("start", str(job.id), job.attempt)
    try:
        await anyio.sleep(job.data)
    finally:
        with job.cleanup(0.1):
            await anyio.sleep(0.01)
        recorder.write("end", str(job.id), job.attempt)


@asynccontextmanager
async def lifespan(app: object) -> AsyncIterator[None]:
    async with open_scheduler(client[ORDER["database"]], workers, **ORDER["options"]) as scheduler:
        print(f"opened in {PROCESS}", flush=True)  # noqa: T201
        yield
    print(f"left in {PROCESS}: {scheduler.report}", flush=True)  # noqa: T201


async def enqueue(request: Request) -> JSONResponse:
    try:
        seconds = await request.json()
    except ClientDisconnect:  # A server that leaves may close a connection in the middle of a request.
        return JSONResponse("", 400)
    job = await monque.enqueue(works, seconds)
    return JSONResponse(str(job.id), 202)


async def hang(request: Request) -> JSONResponse:
    print("hangs", flush=True)  # noqa: T201
    await anyio.sleep_forever()
    raise AssertionError


app = Starlette(routes=[Route("/jobs", enqueue, methods=["POST"]), Route("/hangs", hang)], lifespan=lifespan)
