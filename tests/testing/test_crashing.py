"""A scheduler that crashes leaves its jobs as a killed process does."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_monque import RunningJob, Workers
from trio_monque.errors import MonqueConnectionError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, crash, drain


async def test_nothing_is_settled_or_given_back(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    ends: list[str] = []

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with job.cleanup(1000):
                try:
                    await trio.sleep(500)
                except trio.Cancelled:
                    ends.append("cut")
                    raise

    async with open_test_scheduler(workers, shutdown_timeout=1000) as scheduler:
        for _ in range(3):
            await scheduler.enqueue("job")
        await trio.sleep(40)
        before = list(jobs.find())
        await crash(scheduler)
        assert trio.current_time() == 40
        assert scheduler.report is not None
        assert len(scheduler.report.unfinished) == 3
    assert ends == ["cut"] * 3
    assert {job["status"] for job in before} == {"processing"}
    assert list(jobs.find()) == before


async def test_whatever_it_still_wants_of_the_database_fails(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    refused: list[type] = []

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                for wish in (job.save, job.scheduler.delete_job):
                    with pytest.raises(MonqueConnectionError) as caught:
                        await wish(job.id)
                    refused.append(caught.type)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("job")
        await trio.sleep(1)
        await crash(scheduler)
    assert len(refused) == 2
    assert jobs.count_documents({"status": "processing", "saved": {"$exists": False}}) == 1


async def test_thread_is_left_behind(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    works, go_on = trio.Event(), threading.Event()

    @workers.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        job.from_thread(works.set)
        go_on.wait(50)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("plain")
        await works.wait()
        await crash(scheduler)
    assert jobs.count_documents({"status": "processing"}) == 1
    go_on.set()


async def test_others_go_on(open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock) -> None:
    workers = Workers()
    workers.register("job", lambda _: None)
    async with open_test_scheduler(workers) as other, open_test_scheduler() as scheduler:
        await crash(scheduler)
        await other.enqueue("job")
        assert (await drain(other)).completed == 1
