"""Idle instances in a process of their own: `python -m benchmarks.idlers URI`, asked by `idle`.

Says what this process has sent and used between two questions: commands by name, and seconds of processor time.
"""

from __future__ import annotations

import sys
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import open_scheduler

from . import floors
from .measuring import NAME, Db, Sent
from .processes import answer, next_request, requests
from .schedulers import noop, streaming_scheduler

# Each takes one connection for its stream, and some more when it beats.
MOST_CONNECTIONS = 500
AWAIT = 10_000  # Milliseconds that the raw loop waits for an event at a time.
SAFETY = 30.0  # Seconds after which it looks without one.


async def open_one(stack: AsyncExitStack, database: Db, kind: str) -> None:
    if kind == "stream":
        scheduler = await stack.enter_async_context(streaming_scheduler(database))
    else:
        scheduler = await stack.enter_async_context(open_scheduler(database, change_stream=False))
    scheduler.register(NAME, noop)


def watch_raw(database: Db, stopped: list[bool], opened: trio.Event, token: trio.lowlevel.TrioToken) -> None:
    """What a raw loop does while nothing happens: it waits on its stream, and looks now and then."""
    jobs = floors.jobs_of(database)
    looked = 0.0
    with jobs.watch(floors.INSERTS, max_await_time_ms=AWAIT) as stream:
        token.run_sync_soon(opened.set)
        while not stopped:
            if time.monotonic() - looked > SAFETY:
                looked = time.monotonic()
                jobs.find_one(floors.due(floors.now()), sort=floors.EARLIEST)
            stream.try_next()


async def report_until_left(sent: Sent) -> None:
    answer("ready")
    while (await next_request())["what"] == "begin":
        sent.by_name.clear()
        processor, begun = time.process_time(), time.monotonic()
        answer("begun")
        await next_request()
        answer(
            {
                "seconds": time.monotonic() - begun,
                "processor": time.process_time() - processor,
                "commands": dict(sent.by_name),
            }
        )


async def serve(database: Db, asked: dict[str, Any], sent: Sent) -> None:
    if asked["kind"] == "raw":
        stopped: list[bool] = []
        opened = trio.Event()
        async with trio.open_nursery() as nursery:
            watch = partial(watch_raw, database, stopped, opened, trio.lowlevel.current_trio_token())
            nursery.start_soon(trio.to_thread.run_sync, watch)
            await opened.wait()
            await report_until_left(sent)
            stopped.append(True)
            floors.jobs_of(database).insert_one({})
    else:
        async with AsyncExitStack() as stack:
            for _ in range(asked["instances"]):
                await open_one(stack, database, asked["kind"])
            await report_until_left(sent)
    answer("left")


async def main(uri: str) -> None:
    sent = Sent()
    async for asked in requests():
        with MongoClient[dict[str, Any]](
            uri, tz_aware=True, event_listeners=[sent], maxPoolSize=MOST_CONNECTIONS
        ) as client:
            await serve(client[asked["database"]], asked, sent)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
