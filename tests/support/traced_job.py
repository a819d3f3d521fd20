"""A program: traces single jobs, and many runs of jobs; prints a JSON object.

The files of a job are those that each of several jobs crosses, in real time: what a timer happens to do beside one of
them does not count. Calls are counted in virtual time, where threads take turns: otherwise the load of the machine
would decide how many jobs share a claim and a settlement. In a process of its own: a trace sees only threads that were
started after it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import trio
from pymongo import MongoClient
from trio.testing import wait_all_tasks_blocked

import trio_monque
from trio_monque import Monque, NewJob, RunningJob, Workers, open_scheduler
from trio_monque.jobs.minutes import DONE
from trio_monque.scheduler import assembly
from trio_monque.scheduler.minute_counts import MinuteCounts
from trio_monque.testing import SchedulerOpener, drain, run_virtual

PACKAGE = str(Path(trio_monque.__file__).parent) + os.sep
TESTING = f"{os.sep}testing{os.sep}"  # Of trio and of the library: what only a test calls does not count.
SLOTS, JOBS, JOBS_IN_REAL_TIME = 100, 1000, 5

workers = Workers()


@workers.register("traced", concurrency=SLOTS)
async def traced(job: RunningJob[Any]) -> None:
    pass


class Trace:
    """What was called while a block was traced.

    Attributes:
        files: The file of each call of the package, in any thread.
        calls: How many Python functions were called on the main thread, which is the trio thread.
    """

    def __init__(self) -> None:
        self.files = list[str]()
        self.calls = 0
        self._is_on = self._looks_away = False
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    @contextmanager
    def on(self) -> Iterator[None]:
        self.files, self.calls, self._is_on = [], 0, True
        try:
            yield
        finally:
            self._is_on = False

    def looks_away_for(self, question: Callable[[int], bool], argument: int) -> bool:
        """Its answer; what the main thread does for it does not count."""
        self._looks_away = True
        try:
            return question(argument)
        finally:
            self._looks_away = False

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if not self._is_on or event != "call" or TESTING in file:
            return
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._looks_away:
            return
        self.calls += is_main
        # The watchdog looks several times a second, whatever happens.
        if file.startswith(PACKAGE) and "watchdog" not in threading.current_thread().name:
            self.files.append(file.removeprefix(PACKAGE))


async def single_jobs(trace: Trace, database: Any) -> dict[str, Any]:
    enqueues, blocking, runs = list[set[str]](), list[set[str]](), list[set[str]]()
    elsewhere = Monque(database, collection_name="elsewhere")
    for _ in range(3 + JOBS_IN_REAL_TIME):  # The first ones also look at the fleet, and start threads.
        with trace.on():
            await elsewhere.enqueue("traced", {"n": 1})
        enqueues.append(set(trace.files))
        with trace.on():
            await trio.to_thread.run_sync(elsewhere.sync.enqueue, "traced", {"n": 1})
        blocking.append(set(trace.files))
    async with open_scheduler(database, workers, heartbeat_interval=10) as scheduler:
        for expected in range(1, 3 + JOBS_IN_REAL_TIME + 1):
            with trace.on():
                await trio.to_thread.run_sync(insert_without_the_library, database)
                while not trace.looks_away_for(lambda count: scheduler.statistics().completed == count, expected):
                    await trio.sleep(0.01)
                await wait_all_tasks_blocked()
            runs.append(set(trace.files))
    found = {"enqueue": enqueues, "blocking enqueue": blocking, "run": runs}
    return {part: sorted(set.intersection(*files[3:])) for part, files in found.items()}


def insert_without_the_library(database: Any) -> None:
    """As another program does it: the way of this job begins with the event of the change stream."""
    now = datetime.now(UTC)
    job = {"name": "traced", "data": {"n": 1}, "status": "pending", "nextRunAt": now, "failCount": 0}
    database["monque_jobs"].insert_one({**job, "createdAt": now, "updatedAt": now})


async def many_jobs(trace: Trace, database: Any) -> float:
    await Monque(database).enqueue_many([NewJob("traced", {"n": n}) for n in range(JOBS)])
    async with SchedulerOpener(database)(workers) as scheduler:
        with trace.on():
            await drain(scheduler)
        assert scheduler.statistics().completed == JOBS
    return trace.calls / JOBS


@contextmanager
def counted_by_minutes() -> Iterator[MinuteCounts]:
    """Schedulers count what they do in each minute, as in real time: in virtual time, that is turned off."""
    counts = MinuteCounts(lambda: SLOTS)
    usual = vars(assembly)["JobReporter"]
    vars(assembly)["JobReporter"] = lambda *given, **options: usual(*given, **{**options, "minutes": counts})
    try:
        yield counts
    finally:
        vars(assembly)["JobReporter"] = usual


def done_in(counts: MinuteCounts) -> int:
    return sum(row[DONE] for part in counts.all_so_far() for row in part.rows.values())


if __name__ == "__main__":
    with MongoClient[Any](os.environ["MONQUE_MONGODB_URI"], tz_aware=True) as mongo:
        trace, run = Trace(), partial(run_virtual, deterministic=True, seed=1)
        database = mongo.get_default_database()
        found = trio.run(single_jobs, trace, database)
        database.drop_collection("monque_jobs")
        found["calls"] = run(many_jobs, trace, database)
        database.drop_collection("monque_jobs")
        with counted_by_minutes() as counts:
            found["calls with minutes"] = run(many_jobs, trace, database)
        assert done_in(counts) == JOBS
        print(json.dumps(found))  # noqa: T201  # For the test.
