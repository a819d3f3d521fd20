"""A program: traces one enqueue and one run of a job, and the calls of many runs; prints a JSON object.

Counts of calls and files are the same on a fast and on a busy machine, unlike times. In a process of its own: a trace
sees only threads that were started after it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import trio
from pymongo import MongoClient

import trio_monque
from trio_monque import Monque, RunningJob, Scheduler, Workers, open_scheduler
from trio_monque.testing import quiesce

PACKAGE = str(Path(trio_monque.__file__).parent) + os.sep
SLOTS, JOBS, REPETITIONS = 100, 1000, 6
# Nothing else is to happen in the trace: no poll, no heartbeat, and no echo by the change stream.
OPTIONS: Any = {"change_stream": False, "heartbeat_interval": 20.0, "lock_timeout": None, "safety_poll_interval": 60.0}

crossed: list[str] = []
on_trio_thread: Counter[str] = Counter()
traces = {"files": False, "calls": False}
main_thread = threading.get_ident()


def trace(frame: FrameType, event: str, _: Any) -> None:
    if event != "call":
        return
    if traces["calls"] and threading.get_ident() == main_thread:
        on_trio_thread[frame.f_code.co_qualname] += 1
    if traces["files"]:
        file = frame.f_code.co_filename
        # The watchdog looks several times a second, whatever happens.
        if file.startswith(PACKAGE) and "watchdog" not in threading.current_thread().name:
            name = file.removeprefix(PACKAGE)
            if not name.startswith("testing"):
                crossed.append(name)


@contextmanager
def tracing(what: str) -> Iterator[None]:
    traces[what] = True
    try:
        yield
    finally:
        traces[what] = False


def files() -> Sequence[str]:
    found = sorted(set(crossed))
    crossed.clear()
    return found


async def one_job(scheduler: Scheduler, elsewhere: Monque) -> dict[str, Any]:
    for _ in range(3):  # The first ones also look at the fleet, and start threads.
        await elsewhere.enqueue("traced", {"n": 1})
        await scheduler.enqueue("traced", {"n": 1})
        await quiesce()
    with tracing("files"):
        await elsewhere.enqueue("traced", {"n": 1})
    found: dict[str, Any] = {"enqueue": files()}
    with tracing("files"):
        await scheduler.enqueue("traced", {"n": 1})
        await quiesce()
    return {**found, "enqueue and run": files()}


async def many_jobs(database: Any) -> float:
    await Monque(database).enqueue_many([trio_monque.NewJob("traced", {"n": n}) for n in range(JOBS)])
    workers = Workers()
    done, ended = trio.Event(), 0

    async def count(job: RunningJob[Any]) -> None:
        nonlocal ended
        ended += 1
        if ended == JOBS:
            done.set()

    async with open_scheduler(database, workers, **OPTIONS) as scheduler:
        await quiesce()
        with tracing("calls"):
            scheduler.register("traced", count, concurrency=SLOTS)
            await done.wait()
            await quiesce()
    called = sum(on_trio_thread.values()) / JOBS
    on_trio_thread.clear()
    return called


async def main(database: Any) -> None:
    workers = Workers()

    @workers.register("traced")
    async def traced(job: RunningJob[Any]) -> None:
        pass

    async with open_scheduler(database, workers, **OPTIONS) as scheduler:
        found = await one_job(scheduler, Monque(database, collection_name="elsewhere"))
    # On a busy machine fewer jobs share a claim and a settlement, so a single count may be higher.
    found["calls"] = [await many_jobs(database) for _ in range(REPETITIONS)]
    print(json.dumps(found))  # noqa: T201  # For the test.


if __name__ == "__main__":
    with MongoClient[Any](os.environ["MONQUE_MONGODB_URI"], tz_aware=True) as mongo:
        threading.setprofile(trace)
        sys.setprofile(trace)
        trio.run(partial(main, mongo.get_default_database()))
