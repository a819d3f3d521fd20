"""Failures of children: what they do to the block under each `fail=`, and to the parent. And errors of the body."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.lowlevel
from bson import ObjectId
from trio.testing import MockClock

from tests.nursery.flows import AT, Flow, live, only, run_parent, statuses
from trio_monque import (
    Job,
    JobCancelledError,
    JobDeletedError,
    JobFailedError,
    JobNurseryError,
    JobStatus,
    RunningJob,
    open_job_nursery,
)
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, drain


async def test_first_failure_cancels_the_body_and_the_other_children(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    seen: list[Any] = []

    async def body(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", [1000, 2000])
                await nursery.start("child", 50, delay=10_000)
                await nursery.start("child", "fail")
                try:
                    await trio.sleep_forever()
                finally:
                    seen.append("cancelled")
        except JobNurseryError as failed:
            seen.append([job.data for job in failed.jobs])
            (error,) = failed.exceptions
            assert isinstance(error, JobFailedError)
            assert live(jobs) == 0, "nothing outlives the block"
            return "handled"

    assert (await run_parent(open_test_scheduler, Flow(body))).result == "handled"
    assert seen == ["cancelled", ["fail"]]
    assert statuses(jobs) == {"cancelled": 3, "failed": 1}


async def test_body_that_cleans_up_for_long_after_a_failure_does_not_lose_its_run(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """The block cancels the other children meanwhile: it does not take their ends for those by a newer run."""

    async def body(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job) as nursery:
                other = await nursery.start("child", 5, delay=10_000)
                await nursery.start("child", "fail")
                try:
                    await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        while not other.has_ended and job.cancel_reason is None:
                            await trio.sleep(1)
        except JobNurseryError as failed:
            return len(failed.jobs)

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with trio.fail_after(100):
            assert (await scheduler.wait_job(parent)).result == 1
    assert flow.attempts == [1]


async def test_failure_that_the_handler_does_not_handle_fails_the_parent_for_good(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "fail")

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with pytest.raises(JobFailedError, match="it was told to"):
            await scheduler.wait_job(parent)
    assert flow.attempts == [1], "another attempt would find the same failure"


async def test_failure_in_the_nursery_of_a_program_within_a_handler_is_retried(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    """N16: another attempt opens another nursery, and does not find the same failure."""

    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "own")
        async with open_job_nursery(job.scheduler) as nursery:
            await nursery.start("child", "fail")

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await advance(10_000)
    assert flow.attempts == [1, 2, 3]
    assert flow.runs == {"own": 1, "fail": 3}


async def test_other_error_that_the_handler_raises_for_a_failure_is_retried(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.start("child", "fail")
        except JobNurseryError:
            raise OSError("the mail server is away") from None

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await drain(scheduler)
        await trio.sleep(10_000)
    assert flow.attempts == [1, 2, 3]
    assert flow.runs == {"fail": 1}


async def test_fail_wait_lets_the_others_go_on_and_raises_then(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        began = trio.current_time()
        try:
            async with open_job_nursery(job, fail="wait") as nursery:
                await nursery.map("child", ["fail", 100])
        except JobNurseryError as failed:
            return [len(failed.exceptions), trio.current_time() - began]

    assert (await run_parent(open_test_scheduler, Flow(body))).result == [1, pytest.approx(100, abs=0.5)]
    assert statuses(jobs) == {"failed": 1, "completed": 1}


async def test_fail_keep_raises_nothing(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job, fail="keep") as nursery:
            bad, good = await nursery.map("child", ["fail", 100])
        assert isinstance(bad.error, JobFailedError)
        with pytest.raises(JobFailedError):
            _ = bad.result
        return [good.error, good.result]

    assert (await run_parent(open_test_scheduler, Flow(body))).result == [None, 100]


async def test_error_of_the_body_cancels_the_children_and_comes_in_a_group(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    caught: list[BaseException] = []

    async def body(job: RunningJob[Any]) -> None:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", [1000, 2000])
                raise KeyError("x")
        except BaseException as error:
            caught.append(error)
            assert live(jobs) == 0
            raise

    flow = Flow(body, max_attempts=1)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await drain(scheduler)
    (group,) = caught
    assert isinstance(group, ExceptionGroup)
    assert [type(one) for one in group.exceptions] == [KeyError]
    assert statuses(jobs) == {"cancelled": 2}
    assert "scopeFailed" not in only(jobs), "no child had failed"


async def test_children_of_a_failed_attempt_run_again_in_the_next_one(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            done, other = await nursery.start("child", "done"), await nursery.start("child", 100)
            await done.wait()
            await trio.sleep(1)
            if job.attempt == 1:
                raise OSError
        return [done.result, other.result]

    flow = Flow(body)
    assert (await run_parent(open_test_scheduler, flow)).result == ["done", 100]
    assert flow.runs == {"done": 1, "100": 2}, "what had completed is not run again"


async def test_cancelled_and_deleted_children_are_failures(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    kinds: list[Any] = []

    async def body(job: RunningJob[Any]) -> None:
        try:
            async with open_job_nursery(job, fail="wait") as nursery:
                children = await nursery.map("child", [1, 2, 3], delay=1000)
                await nursery.start("child", 4, delay=1000, start_by=None)
                await job.scheduler.cancel_job(children[0].id)
                await job.scheduler.delete_job(children[1].id)
        except JobNurseryError as failed:
            kinds.extend(type(one) for one in failed.exceptions)

    await run_parent(open_test_scheduler, Flow(body))
    assert set(kinds) == {JobCancelledError, JobDeletedError}


@pytest.mark.parametrize("fail", ["cancel", "keep"])
async def test_child_whose_document_another_program_has_broken_is_a_failure_of_the_block(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, fail: Any
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        kept: list[Any] = []
        try:
            async with open_job_nursery(job, fail=fail) as nursery:
                kept += await nursery.map("child", ["late", 100], delay=50)
                jobs.update_one({"data": "late"}, {"$set": {"failCount": "broken", "status": "failed"}})
        except JobNurseryError as failed:
            return [type(error).__name__ for error in failed.exceptions]
        return [type(child.error).__name__ for child in kept]

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with trio.fail_after(3000):
            names = (await scheduler.wait_job(parent)).result
    assert names == (["BrokenDocumentError"] if fail == "cancel" else ["BrokenDocumentError", "NoneType"])
    assert live(jobs) == 0


def test_reason_of_a_child_that_was_cancelled_is_not_that_of_an_earlier_attempt() -> None:
    child = Job(id=ObjectId(), name="charge", next_run_at=AT, created_at=AT, updated_at=AT, fail_reason="OSError: no")
    ended = {status: replace(child, status=status) for status in (JobStatus.FAILED, JobStatus.CANCELLED)}
    assert JobNurseryError("x", [JobFailedError(ended[JobStatus.FAILED])]).reason == "OSError: no"
    cancelled = JobNurseryError("x", [JobCancelledError(ended[JobStatus.CANCELLED])])
    assert cancelled.reason == f"job {ended[JobStatus.CANCELLED]} was cancelled"
