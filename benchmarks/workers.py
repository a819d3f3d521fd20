"""One of several processes that share a backlog: `python -m benchmarks.workers URI`, asked by `throughput`."""

from __future__ import annotations

import logging
import sys
from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import RunningJob

from .measuring import NAME
from .processes import answer, next_request, requests
from .schedulers import streaming_scheduler


async def main(uri: str) -> None:
    """For each request: is ready, begins when it is told to, ends when it is told to, and says how many it ran."""
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        async for asked in requests():
            async with streaming_scheduler(client[asked["database"]]) as scheduler:
                answer("ready")
                await next_request()
                scheduler.register(NAME, noop, concurrency=asked["concurrency"])
                await next_request()
            answer(scheduler.statistics().completed)


async def noop(job: RunningJob[Any]) -> None:
    pass


if __name__ == "__main__":
    logging.getLogger("trio_monque").addHandler(logging.NullHandler())
    trio.run(main, sys.argv[1])
