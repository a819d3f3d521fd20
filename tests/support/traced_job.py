"""A program: traces one enqueue, one enqueue with its run, and many runs of jobs; prints a JSON object.

In virtual time, where threads take turns: otherwise the load of the machine would decide how many jobs share a claim
and a settlement. In a process of its own: a trace sees only threads that were started after it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from pymongo import MongoClient

import trio_monque
from trio_monque import Monque, NewJob, RunningJob, Workers
from trio_monque.testing import SchedulerOpener, drain, quiesce, run_virtual

PACKAGE = str(Path(trio_monque.__file__).parent) + os.sep
TESTING = f"{os.sep}testing{os.sep}"  # Of trio and of the library: what only a test calls does not count.
SLOTS, JOBS = 100, 1000

workers = Workers()


@workers.register("traced", concurrency=SLOTS)
async def traced(job: RunningJob[Any]) -> None:
    pass


class Trace:
    """What was called while a block was traced.

    Attributes:
        files: The files of the package that were crossed, in any thread.
        calls: How many Python functions were called on the main thread, which is the trio thread.
    """

    def __init__(self) -> None:
        self.files = set[str]()
        self.calls = 0
        self._is_on = False
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    @contextmanager
    def on(self) -> Iterator[None]:
        self.files, self.calls, self._is_on = set(), 0, True
        try:
            yield
        finally:
            self._is_on = False

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if not self._is_on or event != "call" or TESTING in file:
            return
        self.calls += threading.current_thread() is threading.main_thread()
        # The watchdog looks several times a second, whatever happens.
        if file.startswith(PACKAGE) and "watchdog" not in threading.current_thread().name:
            self.files.add(file.removeprefix(PACKAGE))


async def one_job(trace: Trace, database: Any) -> dict[str, Any]:
    elsewhere = Monque(database, collection_name="elsewhere")
    async with SchedulerOpener(database)(workers) as scheduler:
        for client in 3 * (elsewhere, scheduler):  # The first ones also look at the fleet, and start threads.
            await client.enqueue("traced", {"n": 1})
            await quiesce()
        with trace.on():
            await elsewhere.enqueue("traced", {"n": 1})
        enqueue = trace.files
        with trace.on():
            await scheduler.enqueue("traced", {"n": 1})
            await quiesce()
        return {"enqueue": sorted(enqueue), "enqueue and run": sorted(trace.files)}


async def many_jobs(trace: Trace, database: Any) -> float:
    await Monque(database).enqueue_many([NewJob("traced", {"n": n}) for n in range(JOBS)])
    async with SchedulerOpener(database)(workers) as scheduler:
        with trace.on():
            await drain(scheduler)
        assert scheduler.statistics().completed == JOBS
    return trace.calls / JOBS


if __name__ == "__main__":
    with MongoClient[Any](os.environ["MONQUE_MONGODB_URI"], tz_aware=True) as mongo:
        trace, run = Trace(), partial(run_virtual, deterministic=True, seed=1)
        database = mongo.get_default_database()
        found = run(one_job, trace, database)
        database.drop_collection("monque_jobs")
        found["calls"] = run(many_jobs, trace, database)
        print(json.dumps(found))  # noqa: T201  # For the test.
