"""What a run does with a cancelled child: an older run, a newer one, a sweeper or an operator has cancelled it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.nursery.flows import Flow, only, run_parent, statuses
from trio_monque import CancelReason, JobCancelledError, JobNurseryError, RunningJob, open_job_nursery
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, crash, now, quiesce


def cancelled_by(jobs: Collection, epoch: int, data: Any = "late") -> None:
    """Cancel a child as a block of that run does, or a sweeper after it."""
    wanted = {"name": "child", "data": data, "status": "pending"}
    assert jobs.update_one(wanted, {"$set": {"status": "cancelled", "scopeCancel": epoch}}).modified_count == 1


async def test_child_that_a_stale_run_cancels_while_its_parent_waits_runs_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N14."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            late = await nursery.start("child", "late", delay=500)
            if job.attempt == 1:
                raise OSError
        return late.result

    flow = Flow(body, backoff=10)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await trio.sleep(60)
        await quiesce()
        cancelled_by(jobs, 1)
        await scheduler.enqueue("child", "its end lets the nursery look")
        assert (await scheduler.wait_job(parent)).result == "late"
    assert flow.runs["late"] == 1
    assert statuses(jobs) == {"completed": 2}
    assert not any("scopeCancel" in child for child in jobs.find({"name": "child"}))


async def test_child_that_was_cancelled_before_it_was_due_keeps_its_date_when_it_runs_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "late", delay=500)
            if job.attempt == 1:
                raise OSError

    began = trio.current_time()
    await run_parent(open_test_scheduler, Flow(body, backoff=10))
    assert trio.current_time() - began == pytest.approx(500, abs=1)


async def test_child_that_runs_again_has_no_limit_for_its_start_any_more(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N14: as after a retry by hand. The first start was in time, and the next attempt of the parent may come late."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            child = await nursery.start("child", "late", delay=5, start_by=job.job.created_at + timedelta(seconds=50))
            if job.attempt == 1:
                raise OSError
        return child.result

    assert (await run_parent(open_test_scheduler, Flow(body, backoff=1000))).result == "late"


@pytest.mark.full
@pytest.mark.parametrize("epoch", ["its own: a sweep found that its job had ended", "a newer one"])
@pytest.mark.parametrize("fail", ["cancel", "wait", "keep"])
async def test_run_whose_child_a_newer_run_or_a_sweep_has_cancelled_ends_as_one_that_lost_its_claim(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, fail: Any, epoch: str
) -> None:
    """N14: the run does not take that for a failure, and its handler does not go on."""
    ends: list[Any] = []

    async def body(job: RunningJob[Any]) -> None:
        try:
            async with open_job_nursery(job, fail=fail) as nursery:
                await nursery.map("child", ["late", "other"], delay=500)
            ends.append("went on")
        except JobNurseryError:
            ends.append("failed")
        finally:
            ends.append(job.cancel_reason)

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await trio.sleep(60)
        await quiesce()
        cancelled_by(jobs, 1 if epoch.startswith("its own") else 2)
        await scheduler.enqueue("child", "its end lets the nursery look")
        await trio.sleep(5)
        await quiesce()
        assert ends == [CancelReason.LOST]
        assert "scopeFailed" not in only(jobs)
        assert jobs.count_documents({"data": "other", "status": "pending"}) == 1
        await crash(scheduler)


@pytest.mark.full
@pytest.mark.parametrize("how", ["pending", "running", "not started in time"])
async def test_operator_and_start_by_are_obeyed_also_where_an_earlier_run_had_cancelled_the_child(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, how: str
) -> None:
    """N18: Monque for Node recovers a child that was asked to end, and leaves the fields of that request in it."""
    asked_to_end: list[Any] = []

    async def body(job: RunningJob[Any]) -> str:
        try:
            async with open_job_nursery(job) as nursery:
                options: Any = {"start_by": now() + timedelta(seconds=100)} if how == "not started in time" else {}
                child = await nursery.start("theirs" if options else "child", 5000, key="k", **options)
                asked_to_end.append(child.id)
                if job.attempt == 1:
                    await trio.sleep_forever()
        except JobNurseryError as failed:
            (error,) = failed.exceptions
            assert isinstance(error, JobCancelledError)
            return "obeyed"
        return "not obeyed"

    flow = Flow(body)
    async with open_test_scheduler(flow.only_parents) as killed:
        parent = await killed.enqueue("parent")
        await trio.sleep(10)
        await quiesce()
        await crash(killed)
    child_id = asked_to_end[0]
    assert jobs.update_one({"_id": child_id}, {"$set": {"scopeCancel": 1}}).modified_count == 1
    workers = flow.workers if how == "running" else flow.only_parents
    async with open_test_scheduler(workers, lock_timeout=None) as scheduler:
        await advance(200)
        if how != "not started in time":
            await scheduler.cancel_job(child_id)
        with trio.move_on_after(1000):
            assert (await scheduler.wait_job(parent)).result == "obeyed"
            return
    raise AssertionError


async def test_bulk_cancellation_of_such_children_is_obeyed(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N18."""

    async def body(job: RunningJob[Any]) -> str:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.start("child", "late", delay=5000)
                jobs.update_one({"name": "child"}, {"$set": {"scopeCancel": 0}})
        except JobNurseryError:
            return "obeyed"
        return "not obeyed"

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await trio.sleep(10)
        assert (await scheduler.cancel_jobs(name="child")).count == 1
        with trio.fail_after(1000):
            assert (await scheduler.wait_job(parent)).result == "obeyed"
