"""Who enqueues for the latency figures, in a process of its own: `python -m benchmarks.producers URI`.

Each job carries its number. The answer tells, for each, when it was called and when it was acknowledged, by the
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import trio
from pymongo import MongoClient

from trio_monque import Monque

from . import floors
from .measuring import NAME, Db
from .processes import answer, requests

THREADS = 8  # Of the raw producer; the other has tasks.

Times = list[list[float]]


async def enqueue_after(gaps: Sequence[float], enqueue: Callable[[int], Awaitable[object]]) -> Times:
    """When each was called and acknowledged; one need not wait for the one before."""
    times: Times = [[0.0, 0.0] for _ in gaps]

    async def one(number: int) -> None:
        times[number][0] = time.monotonic()
        await enqueue(number)
        times[number][1] = time.monotonic()

    moment = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for number, gap in enumerate(gaps):
            moment += gap
            await anyio.sleep_until(moment)
            tasks.start_soon(one, number)
    return times


def insert_after(gaps: Sequence[float], insert: Callable[[int], object]) -> Times:
    """The same with threads."""
    times: Times = [[0.0, 0.0] for _ in gaps]

    def one(number: int) -> None:
        times[number][0] = time.monotonic()
        insert(number)
        times[number][1] = time.monotonic()

    moment = time.monotonic()
    with ThreadPoolExecutor(THREADS) as threads:
        done = []
        for number, gap in enumerate(gaps):
            moment += gap
            time.sleep(max(0.0, moment - time.monotonic()))
            done.append(threads.submit(one, number))
        for each in done:
            each.result()
    return times


def by_raw(database: Db, gaps: Sequence[float], due_at: Sequence[float]) -> Times:
    jobs = floors.jobs_of(database)

    def insert(number: int) -> None:
        at = floors.now()
        jobs.insert_one(floors.new_document(number, moment(due_at[number]) if due_at else at, at))

    return insert_after(gaps, insert)


async def by_monque(database: Db, gaps: Sequence[float], due_at: Sequence[float]) -> Times:
    monque = Monque(database)

    async def enqueue(number: int) -> None:
        await monque.enqueue(NAME, {"i": number}, run_at=moment(due_at[number]) if due_at else None)

    return await enqueue_after(gaps, enqueue)


def moment(timestamp: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=timestamp)


async def main(uri: str) -> None:
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        async for asked in requests():
            database, gaps, due_at = client[asked["database"]], asked["gaps"], asked["due_at"]
            if asked["raw"]:
                answer(await trio.to_thread.run_sync(by_raw, database, gaps, due_at))
            else:
                answer(await by_monque(database, gaps, due_at))


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
