"""The jobs of three web applications, which import this module. It is a worker process too.

Why it exists: handlers written with anyio run on asyncio and on trio, in the web process or in one of their own. All
processes share a database: `trio-monque server`. The worker process is `python examples/web_service/jobs.py`; with
RUN_JOBS=no in its environment, a web application only enqueues.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
from pydantic import BaseModel
from pymongo import MongoClient

from trio_monque import Monque, RunningJob, Workers, open_scheduler, run_until_signalled

uri = os.environ.get("MONQUE_URI", "mongodb://localhost:27017/?replicaSet=rs0")
client = MongoClient[Any](uri, connect=False)  # It connects when it is used, and not in tests that only import this.
db = client.get_default_database("web_service")
monque = Monque(db)
workers = Workers()


class Report(BaseModel):
    title: str
    pages: int = 10
    seconds_per_page: float = 1


@workers.register("render", payload=Report)
async def render(job: RunningJob[Report]) -> None:
    for page in range(job.saved or 0, job.data.pages):
        await anyio.sleep(job.data.seconds_per_page)
        await job.save(page + 1)  # If this process ends, the next run continues with the next page.
        await job.set_progress({"done": page + 1, "pages": job.data.pages})
    print(f"rendered {job.data.title}", flush=True)


@asynccontextmanager
async def lifespan(app: object) -> AsyncGenerator[None]:
    """Run jobs for as long as a web application answers requests."""
    if os.environ.get("RUN_JOBS") == "no":
        yield
        return
    async with open_scheduler(db, workers, shutdown_timeout=20) as scheduler:
        yield
    print(scheduler.report, flush=True)


if __name__ == "__main__":
    print(anyio.run(partial(run_until_signalled, db, workers, shutdown_timeout=20), backend="trio"), flush=True)
