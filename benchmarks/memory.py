"""M: what a running job takes, beside a trio task in a cancel scope with a deadline that waits as its handler does.

`python -m benchmarks.memory URI DATABASE HOW COUNT LOOP` is the process that is weighed: HOW is `traced`, which counts
what Python has allocated for either, in one process; or `tasks` or `jobs`, whose growth the operating system tells.
LOOP is the event loop of the program: on asyncio, tasks of asyncio are weighed, each in a cancel scope of anyio.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import trio
import trio.testing
from pymongo import MongoClient

from trio_monque import Monque, NewJob, RunningJob

from . import loops
from .measuring import NAME, Bench, Db, tell
from .processes import answer, child
from .report import Comparison, Figure
from .schedulers import streaming_scheduler

TIMEOUT = 300.0
KB = 1000
MOST_BEYOND = 1.5  # KB.

Weigh = Callable[[], int]


def measure(bench: Bench) -> list[Figure]:
    found: dict[str, list[float]] = {name: [] for name in ("tasks", "jobs", "tasks, RSS", "jobs, RSS")}
    for number in range(bench.size.rounds):
        for name, kilobytes in weighed(bench).items():
            found[name].append(kilobytes)
        tell(f"  round {number + 1}: " + ", ".join(f"{name} {values[-1]:.2f} KB" for name, values in found.items()))
    of = f"{bench.size.running:,} jobs running"

    def beyond(of_jobs: list[float], of_trio: list[float]) -> list[float]:
        return [mine - theirs for mine, theirs in zip(of_jobs, of_trio, strict=True)]

    def figure(key: str, what: str, values: list[float], *floors: Comparison, at_most: float | None = None) -> Figure:
        what = f"{of}, {what}"
        return Figure(part="M", key=f"M.{key}", what=what, unit="KB", values=values, floors=floors, at_most=at_most)

    traced_floor = Comparison(floor="a trio task with a deadline", values=found["tasks"])
    told_floor = Comparison(floor="a trio task with a deadline", values=found["tasks, RSS"])
    more, more_rss = beyond(found["jobs"], found["tasks"]), beyond(found["jobs, RSS"], found["tasks, RSS"])
    return [
        figure("all", "allocated by Python for each", found["jobs"], traced_floor),
        figure("beyond", "of it beyond trio's own", more, at_most=MOST_BEYOND),
        figure("rss", "growth of the process for each", found["jobs, RSS"], told_floor),
        figure("rss beyond", "of it beyond trio's own (growth)", more_rss),
    ]


def weighed(bench: Bench, loop: str = loops.TRIO) -> dict[str, float]:
    """KB for each task and each job, on this event loop: allocated by Python, and the growth of a process (RSS)."""
    grown = {how: _weighed(bench, how, loop)[how] for how in ("tasks", "jobs")}
    return _weighed(bench, "traced", loop) | {f"{how}, RSS": kilobytes for how, kilobytes in grown.items()}


def _weighed(bench: Bench, how: str, loop: str) -> dict[str, float]:
    """KB for each of so many, in a fresh process."""
    with bench.database() as database:
        if how != "tasks":
            Monque(database).sync.enqueue_many(
                [NewJob(name=NAME, data={"i": number}) for number in range(bench.size.running)]
            )
        with child("memory", bench.uri, database.name, how, str(bench.size.running), loop) as process:
            found: dict[str, float] = process.hear()
    return found


# --- The process that is weighed ---


def resident() -> int:
    """Bytes of this process in memory. Linux only."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def allocated() -> int:
    """Bytes that Python has allocated."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def trio_tasks(number: int, weigh: Weigh) -> float:
    async def wait() -> None:
        with trio.move_on_after(3600):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        before = weigh()
        for _ in range(number):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        grown = weigh() - before
        nursery.cancel_scope.cancel(reason="weighed")
    return grown / number / KB


def asyncio_sleep() -> Awaitable[None]:
    return asyncio.sleep(3600)


async def asyncio_tasks(number: int, weigh: Weigh) -> float:
    async def wait() -> None:
        with anyio.move_on_after(3600):
            await asyncio_sleep()

    before = weigh()
    tasks = [asyncio.create_task(wait()) for _ in range(number)]
    await anyio.wait_all_tasks_blocked()
    grown = weigh() - before
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return grown / number / KB


async def jobs_running(database: Db, number: int, weigh: Weigh, sleep: Callable[[], Awaitable[None]]) -> float:
    running, all_run = 0, anyio.Event()

    async def wait(_: RunningJob[Any]) -> None:
        nonlocal running
        running += 1
        if running == number:
            all_run.set()
        await sleep()

    async with streaming_scheduler(database, shutdown_timeout=0) as scheduler:
        before = weigh()
        scheduler.register(NAME, wait, concurrency=number)
        with anyio.fail_after(TIMEOUT):
            await all_run.wait()
        await anyio.sleep(0.5)  # What the last claims left behind.
        grown = weigh() - before
        tracemalloc.stop()  # It would make leaving slow.
    return grown / number / KB


async def main(uri: str, name: str, how: str, number: int, loop: str) -> None:
    tasks_alone, sleep = (trio_tasks, trio.sleep_forever) if loop == loops.TRIO else (asyncio_tasks, asyncio_sleep)
    found: dict[str, float] = {}
    weigh = resident
    if how == "traced":
        tracemalloc.start()
        weigh = allocated
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        if how != "jobs":
            found["tasks"] = await tasks_alone(number, weigh)
        if how != "tasks":
            found["jobs"] = await jobs_running(client[name], number, weigh, sleep)
    answer(found)


if __name__ == "__main__":
    logging.getLogger("trio_monque").addHandler(logging.NullHandler())
    loops.run(sys.argv[5], main, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
