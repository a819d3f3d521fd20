"""Retries by hand of parents and their children, one by one and in bulk."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from tests.nursery.flows import Flow, only, statuses
from trio_monque import JobFailedError, RunningJob, open_job_nursery
from trio_monque.errors import JobStateError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, drain


async def test_retry_by_hand_begins_a_new_try_in_which_failed_children_run_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    fails = [True]

    async def child(job: RunningJob[Any]) -> Any:
        if job.data == "card" and fails[0]:
            raise ValueError("no money")
        return job.data

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", ["card", "done"])
        return [child.result for child in children]

    flow = Flow(body)
    flow.workers.register("child", child, replace=True, max_attempts=1)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with pytest.raises(JobFailedError):
            await scheduler.wait_job(parent)
        (failed,) = jobs.find({"name": "child", "status": "failed"})
        with pytest.raises(JobStateError, match="retry that job"):
            await scheduler.retry_job(failed["_id"])
        fails[0] = False
        await scheduler.retry_job(parent.id)
        assert (await scheduler.wait_job(parent)).result == ["card", "done"]
    assert statuses(jobs) == {"completed": 2}


async def test_retry_by_hand_starts_a_failed_block_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N15: the record belongs to one try."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            child = await nursery.start("child", "fail" if job.attempt == 1 else "well", key="charge")
            if job.attempt == 1:
                await job.scheduler.delete_job((await nursery.start("child", "rest", delay=50)).id)
        return child.result

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with pytest.raises(JobFailedError):
            await scheduler.wait_job(parent)
        assert only(jobs)["scopeFailed"]
        await scheduler.retry_job(parent.id)
        with pytest.raises(JobFailedError):  # The data of the first start are kept.
            await scheduler.wait_job(parent)
    assert flow.attempts == [1, 2]
    assert flow.runs == {"fail": 2}


async def test_bulk_retry_refuses_children_and_retries_their_parents(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", ["fail", 1000])

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with pytest.raises(JobFailedError):
            await scheduler.wait_job(parent)
        result = await scheduler.retry_jobs(status=["failed", "cancelled"], spread=0)
        assert (result.count, result.refused) == (1, 2)
        assert all(f"child of job {parent.id}" in error.reason for error in result.errors)


async def test_bulk_retry_of_parents_and_children_at_once_runs_each_child_once_more(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", ["done", f"flaky {job.data}"])

    async def child(job: RunningJob[Any]) -> Any:
        flow.runs[str(job.data)] += 1
        if job.attempt == 1 and str(job.data).startswith("flaky"):
            raise OSError

    flow = Flow(body)
    flow.workers.register("child", child, replace=True, max_attempts=1, concurrency=50)
    async with open_test_scheduler(flow.workers) as scheduler:
        parents = [await scheduler.enqueue("parent", number) for number in range(5)]
        await advance(100)
        assert statuses(jobs, "parent") == {"failed": 5}
        result = await scheduler.retry_jobs(status=["failed", "cancelled"], spread=0)
        assert result.count == 5
        await scheduler.wait_jobs(parents)
    assert statuses(jobs) == {"completed": 10}
    assert all(flow.runs[f"flaky {number}"] == 2 for number in range(5))


async def test_child_of_a_deleted_parent_becomes_a_job_of_its_own(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", ["fail", "fail"])

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with pytest.raises(JobFailedError):
            await scheduler.wait_job(parent)
        await scheduler.delete_job(parent.id)
        one, _ = jobs.find({"name": "child"})
        await scheduler.retry_job(one["_id"])
        await drain(scheduler)
        assert flow.runs["fail"] == 3
        assert (await scheduler.retry_jobs(name="child", spread=0)).refused == 0
        await drain(scheduler)
        assert flow.runs["fail"] == 5
    assert all("scope" not in one and "parent" not in one for one in jobs.find({"name": "child"}))
