"""Handlers with job nurseries for the tests: parents whose children do what their data say."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import trio
from bson import ObjectId

from trio_monque import Discard, Job, RunningJob, Workers, open_job_nursery
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, crash, quiesce

AT = datetime(2026, 3, 4, 5, tzinfo=UTC)

Body = Callable[[RunningJob[Any]], Awaitable[Any]]


class Flow:
    """A worker `parent` with the given handler, and a worker `child`.

    The data of a child: seconds that it takes; "fail", which fails for good; anything else is its result at once.

    Attributes:
        runs: How often each child was run, by its data.
        attempts: The attempts of the parent, in the order of their begins.
    """

    def __init__(self, body: Body, **options: Any) -> None:
        self.runs: Counter[Any] = Counter()
        self.attempts: list[int] = []
        self._body = body
        self.workers = Workers()
        self._options = {"store_result": True, "max_attempts": 3, **options}
        self.workers.register("parent", self.parent, **self._options)
        self.workers.register("child", self.child, concurrency=50, max_attempts=1)

    @property
    def only_children(self) -> Workers:
        """Workers of an instance that runs no parents."""
        workers = Workers()
        workers.register("child", self.child, concurrency=50, max_attempts=1)
        return workers

    @property
    def only_parents(self) -> Workers:
        """Workers of an instance that runs no children."""
        workers = Workers()
        workers.register("parent", self.parent, **self._options)
        return workers

    async def parent(self, job: RunningJob[Any]) -> Any:
        self.attempts.append(job.attempt)
        return await self._body(job)

    async def child(self, job: RunningJob[Any]) -> Any:
        self.runs[str(job.data)] += 1
        if isinstance(job.data, int | float):
            await trio.sleep(job.data)
        if job.data == "fail":
            raise Discard("it was told to")
        return job.data


async def run_parent(open_test_scheduler: SchedulerOpener, flow: Flow, **options: Any) -> Job[Any]:
    """Run the parent to its end in a scheduler of its own, which has these options."""
    async with open_test_scheduler(flow.workers, **options) as scheduler:
        return await scheduler.wait_job(await scheduler.enqueue("parent"))


@asynccontextmanager
async def killed_and_run_again(
    open_test_scheduler: SchedulerOpener, flow: Flow, *, at: float = 10
) -> AsyncIterator[Job[Any]]:
    """Kill the first run of the parent after `at` seconds. Yield the parent as its next run has ended it.

    The scheduler of that run is open until the block is left.
    """
    async with open_test_scheduler(flow.workers) as killed:
        parent = await killed.enqueue("parent")
        await trio.sleep(at)
        await quiesce()
        await crash(killed)
        async with open_test_scheduler(flow.workers) as scheduler:
            yield await scheduler.wait_job(parent)


async def report(job: RunningJob[Any]) -> Any:
    """Run a child `report` in a block of its own."""
    async with open_job_nursery(job) as nursery:
        return await nursery.run("child", "report")


async def nothing(job: RunningJob[Any]) -> None: ...


def stored(jobs: Collection, status: str, name: str = "child", **fields: Any) -> ObjectId:
    """Insert a document of a job as it is given; return its id."""
    document = {
        "_id": ObjectId(),
        "name": name,
        "status": status,
        "data": None,
        "nextRunAt": AT,
        "failCount": 0,
        "createdAt": AT,
        "updatedAt": AT,
        **fields,
    }
    return ObjectId(jobs.insert_one(document).inserted_id)


def statuses(jobs: Collection, name: str = "child") -> Counter[str]:
    """How many jobs of the name have each status."""
    return Counter(one["status"] for one in jobs.find({"name": name}))


def live(jobs: Collection) -> int:
    """How many children are pending or run."""
    return jobs.count_documents({"scope": {"$exists": True}, "status": {"$in": ["pending", "processing"]}})


def only(jobs: Collection, name: str = "parent") -> Any:
    (found,) = jobs.find({"name": name})
    return found


def results(children: list[Any]) -> list[Any]:
    return [child.result for child in children]


def ended(job: Job | None) -> Job:
    assert job is not None
    return job


def taken_back(jobs: Collection) -> None:
    """Monque for Node recovers the parent by the age of its lock, however alive its run is."""
    jobs.update_one(
        {"name": "parent"},
        {"$set": {"status": "pending"}, "$unset": {"claimedBy": "", "lockedAt": "", "lastHeartbeat": ""}},
    )
