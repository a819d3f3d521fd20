"""What happens in the database while `dashboard` is looked at, in a process of its own: jobs that run, or raw changes.

    python -m benchmarks.dashboard_work URI DATABASE jobs|changes RATE

It answers each line with how many jobs or changes there were so far.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import trio
from pymongo import MongoClient

from trio_monque import Monque, NewJob, Workers

from .dashboard_jobs import JOBS, NAMES
from .measuring import Db
from .processes import answer, requests
from .schedulers import noop, streaming_scheduler

TICKS: Final = 20
"""How often a second something is sent: what is due then, at once."""

CHANGED: Final = 10_000


class Work:
    """Something done at a rate.

    Attributes:
        done: How often it was done.
    """

    def __init__(self, database: Db, rate: int) -> None:
        self.done = 0
        self._database = database
        self._rate = rate

    async def run_jobs(self) -> None:
        """Enqueue jobs, and run them."""
        producer, workers = Monque(self._database), Workers()
        workers.register("live", concurrency=100)(noop)
        # The claims of the jobs that were filled in are those of nobody: they stay as they are.
        options = {"recover_stale_jobs": False, "concurrency": 100}
        async with streaming_scheduler(self._database, workers=workers, **options) as scheduler:

            async def enqueue(number: int) -> None:
                await producer.enqueue_many([NewJob(name="live")] * number)
                self.done = scheduler.statistics().completed

            await self._at_rate(enqueue)

    async def change_jobs(self) -> None:
        """Change the states of jobs, without a scheduler."""
        jobs = self._database[JOBS]
        of_name = {"name": NAMES[0], "status": {"$in": ["completed", "cancelled"]}}
        ids = [one["_id"] for one in jobs.find(of_name, {"_id": 1}, limit=CHANGED)]
        place = 0

        async def change(number: int) -> None:
            nonlocal place
            chosen = [ids[(place + one) % len(ids)] for one in range(number)]
            status = ("cancelled", "completed")[place // len(ids) % 2]
            place += number
            await trio.to_thread.run_sync(self._change, jobs, chosen, status)

        await self._at_rate(change)

    def _change(self, jobs: Any, ids: Sequence[Any], status: str) -> None:
        jobs.update_many({"_id": {"$in": ids}}, {"$set": {"status": status}, "$currentDate": {"updatedAt": True}})
        self.done += len(ids)

    async def _at_rate(self, act: Any) -> None:
        began = trio.current_time()
        sent = 0
        while True:
            due = min(int((trio.current_time() - began) * self._rate) - sent, self._rate)  # A second late at most.
            if due > 0:
                await act(due)
                sent += due
            await trio.sleep(1 / TICKS)


async def work(*arguments: str) -> None:
    uri, name, kind, rate = arguments
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        one = Work(client[name], int(rate))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run_jobs if kind == "jobs" else one.change_jobs)
            async for _ in requests():
                answer(one.done)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(work, *sys.argv[1:])
