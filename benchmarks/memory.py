"""M: what a running job takes, beside a trio task in a cancel scope with a deadline that waits as its handler does.

`python -m benchmarks.memory URI DATABASE HOW COUNT` is the process that is weighed: HOW is `traced`, which counts what
Python has allocated for either, in one process; or `trio` or `jobs`, whose growth the operating system tells.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
import trio.testing
from pymongo import MongoClient

from trio_monque import Monque, NewJob, RunningJob

from .measuring import NAME, Bench, Db, tell
from .processes import answer, child
from .report import Comparison, Figure
from .schedulers import streaming_scheduler

TIMEOUT = 300.0
KB = 1000
MOST_BEYOND = 1.5  # KB.

Weigh = Callable[[], int]


def measure(bench: Bench) -> list[Figure]:
    found: dict[str, list[float]] = {name: [] for name in ("trio", "jobs", "trio, RSS", "jobs, RSS")}
    for number in range(bench.size.rounds):
        traced = _weighed(bench, "traced")
        found["trio"].append(traced["trio"])
        found["jobs"].append(traced["jobs"])
        for how in ("trio", "jobs"):
            found[f"{how}, RSS"].append(_weighed(bench, how)[how])
        tell(f"  round {number + 1}: " + ", ".join(f"{name} {values[-1]:.2f} KB" for name, values in found.items()))
    of = f"{bench.size.running:,} jobs running"

    def beyond(of_jobs: list[float], of_trio: list[float]) -> list[float]:
        return [mine - theirs for mine, theirs in zip(of_jobs, of_trio, strict=True)]

    def figure(key: str, what: str, values: list[float], *floors: Comparison, at_most: float | None = None) -> Figure:
        what = f"{of}, {what}"
        return Figure(part="M", key=f"M.{key}", what=what, unit="KB", values=values, floors=floors, at_most=at_most)

    traced_floor = Comparison(floor="a trio task with a deadline", values=found["trio"])
    told_floor = Comparison(floor="a trio task with a deadline", values=found["trio, RSS"])
    more, more_rss = beyond(found["jobs"], found["trio"]), beyond(found["jobs, RSS"], found["trio, RSS"])
    return [
        figure("all", "allocated by Python for each", found["jobs"], traced_floor),
        figure("beyond", "of it beyond trio's own", more, at_most=MOST_BEYOND),
        figure("rss", "growth of the process for each", found["jobs, RSS"], told_floor),
        figure("rss beyond", "of it beyond trio's own (growth)", more_rss),
    ]


def _weighed(bench: Bench, how: str) -> dict[str, float]:
    """KB for each of so many, in a fresh process."""
    with bench.database() as database:
        if how != "trio":
            Monque(database).sync.enqueue_many(
                [NewJob(name=NAME, data={"i": number}) for number in range(bench.size.running)]
            )
        with child("memory", bench.uri, database.name, how, str(bench.size.running)) as weighed:
            found: dict[str, float] = weighed.hear()
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


async def tasks_alone(number: int, weigh: Weigh) -> float:
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


async def jobs_running(database: Db, number: int, weigh: Weigh) -> float:
    running, all_run = 0, trio.Event()

    async def wait(_: RunningJob[Any]) -> None:
        nonlocal running
        running += 1
        if running == number:
            all_run.set()
        await trio.sleep_forever()

    async with streaming_scheduler(database, shutdown_timeout=0) as scheduler:
        before = weigh()
        scheduler.register(NAME, wait, concurrency=number)
        with trio.fail_after(TIMEOUT):
            await all_run.wait()
        await trio.sleep(0.5)  # What the last claims left behind.
        grown = weigh() - before
        tracemalloc.stop()  # It would make leaving slow.
    return grown / number / KB


async def main(uri: str, name: str, how: str, number: int) -> None:
    found: dict[str, float] = {}
    weigh = resident
    if how == "traced":
        tracemalloc.start()
        weigh = allocated
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        if how != "jobs":
            found["trio"] = await tasks_alone(number, weigh)
        if how != "trio":
            found["jobs"] = await jobs_running(client[name], number, weigh)
    answer(found)


if __name__ == "__main__":
    logging.getLogger("trio_monque").addHandler(logging.NullHandler())
    trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
