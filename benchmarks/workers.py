"""One of several processes that share a backlog: `python -m benchmarks.workers URI`.

Asked by `throughput` and `contention`, with `worked_off`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import RunningJob
from trio_monque.engine.contention import Contention

from .measuring import NAME
from .processes import answer, next_request, requests
from .schedulers import streaming_scheduler


async def main(uri: str) -> None:
    """For each request: is ready, begins when it is told to, ends when it is told to, and says what it did."""
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        async for asked in requests():
            handler = Handler(asked.get("seconds", 0.0))
            async with streaming_scheduler(client[asked["database"]]) as scheduler:
                contention = scheduler._parts.source.claims.contention
                if asked.get("head_only"):
                    leave_unanswered(contention)
                answer("ready")
                await next_request()
                scheduler.register(NAME, handler.run, concurrency=asked["concurrency"])
                await next_request()
            answer({"runs": handler.runs, "tried": contention.tried, "won": contention.won})


class Handler:
    """Takes so many seconds, and counts its runs."""

    def __init__(self, seconds: float) -> None:
        self.runs = 0
        self._seconds = seconds

    async def run(self, job: RunningJob[Any]) -> None:
        if self._seconds:
            await trio.sleep(self._seconds)
        self.runs += 1


def leave_unanswered(contention: Contention) -> None:
    """What is lost to others is counted, and nothing follows from it."""

    def count(tried: int, won: int, **_: Any) -> None:
        contention.tried += tried
        contention.won += won

    contention.took = count  # type: ignore[method-assign]


if __name__ == "__main__":
    logging.getLogger("trio_monque").addHandler(logging.NullHandler())
    trio.run(main, sys.argv[1])
