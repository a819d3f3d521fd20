"""A failed block stays failed for all runs of a try: its handler may have acted on the failure, and been killed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import trio
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.nursery.flows import Flow, killed_and_run_again, live, only, run_parent, statuses, taken_back
from trio_monque import (
    JobCancelledError,
    JobDeletedError,
    JobFailedError,
    JobNursery,
    JobNurseryError,
    RunningJob,
    Snooze,
    open_job_nursery,
)
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, crash, fail_next, quiesce

LATE = timedelta(seconds=10)

Body = Callable[[RunningJob[Any]], Awaitable[Any]]


async def killed_after_the_block(open_test_scheduler: SchedulerOpener, flow: Flow) -> Any:
    """Return the result of a parent whose first run is killed after a minute."""
    async with killed_and_run_again(open_test_scheduler, flow, at=60) as parent:
        return parent.result


def undone_after(place: Callable[[RunningJob[Any], JobNursery], Awaitable[None]], fail: Any = "cancel") -> Body:
    """Return a handler that acts on the failure of its block. Its first run then waits to be killed."""

    async def body(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job, key="place", fail=fail) as nursery:
                await place(job, nursery)
        except JobNurseryError as failed:
            async with open_job_nursery(job, key="undo") as nursery:
                await nursery.start("child", "undo")
            if job.attempt == 1:
                await trio.sleep_forever()
            return [type(error).__name__ for error in failed.exceptions]
        return "shipped"

    return body


@pytest.mark.parametrize("fail", ["cancel", "wait"])
async def test_later_run_that_starts_in_another_order_starts_nothing_of_the_failed_block(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, fail: Any
) -> None:
    """N11."""

    async def place(job: RunningJob[Any], nursery: JobNursery) -> None:
        if job.attempt == 1:
            await nursery.start("child", "fail", key="charge")
        await nursery.run("child", "ship", key="ship", delay=20 if job.attempt == 1 and fail == "cancel" else 0)
        if job.attempt == 2:
            await nursery.start("child", "fail", key="charge")

    flow = Flow(undone_after(place, fail))
    assert await killed_after_the_block(open_test_scheduler, flow) == ["JobFailedError"]
    assert flow.attempts == [1, 2]
    assert flow.runs == {"fail": 1, "undo": 1, **({"ship": 1} if fail == "wait" else {})}
    assert live(jobs) == 0


@pytest.mark.parametrize("fail", ["cancel", "wait"])
async def test_block_that_failed_by_a_deletion_does_not_start_that_child_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, fail: Any
) -> None:
    """N11: no document is left that could show the failure."""

    async def place(job: RunningJob[Any], nursery: JobNursery) -> None:
        child = await nursery.start("child", "gone", delay=20 if job.attempt == 1 else 0)
        if job.attempt == 1:
            await job.scheduler.delete_job(child.id)

    flow = Flow(undone_after(place, fail))
    assert await killed_after_the_block(open_test_scheduler, flow) == ["JobDeletedError"]
    assert flow.runs == {"undo": 1}


async def test_handler_that_goes_on_with_a_deleted_child_does_not_start_it_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N7: under `fail="keep"`, a cancelled child in its place shows the deletion."""
    seen: list[Any] = []

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job, fail="keep") as nursery:
            child = await nursery.start("child", "gone", delay=20 if job.attempt == 1 else 0)
            if job.attempt == 1:
                await job.scheduler.delete_job(child.id)
        seen.append(type(child.error))
        if job.attempt == 1:
            await trio.sleep_forever()

    flow = Flow(body)
    await killed_after_the_block(open_test_scheduler, flow)
    assert seen == [JobDeletedError, JobCancelledError]
    assert flow.runs == {}
    assert statuses(jobs) == {"cancelled": 1}


async def test_handler_that_goes_on_with_failed_children_does_not_run_them_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N12: children that failed, that an operator cancelled, and that did not start in time."""
    seen: list[Any] = []

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job, fail="keep") as nursery:
            failed = await nursery.start("child", "fail")
            cancelled = await nursery.start("child", "cancelled", delay=5)
            late = await nursery.start("nowhere", "late", start_by=job.job.created_at + LATE)
            if job.attempt == 1:
                await job.scheduler.cancel_job(cancelled.id)
        seen.append([type(child.error) for child in (failed, cancelled, late)])
        if job.attempt == 1:
            await trio.sleep_forever()

    flow = Flow(body)
    await killed_after_the_block(open_test_scheduler, flow)
    assert seen == [[JobFailedError, JobCancelledError, JobCancelledError]] * 2
    assert flow.runs == {"fail": 1}
    assert statuses(jobs, "nowhere") == {"cancelled": 1}


async def test_failure_is_recorded_before_anything_is_cancelled(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N11: otherwise, if this run is killed in between, the next one starts the cancelled children again."""

    async def body(job: RunningJob[Any]) -> None:
        with fail_next(job.scheduler, AutoReconnect("away"), command="^cancel children$", times=None):
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", ["fail", 5000])

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await trio.sleep(10)
        await quiesce()
        assert live(jobs) == 1
        (failed,) = jobs.find({"name": "child", "status": "failed"})
        assert only(jobs)["scopeFailed"] == {"0": [failed["_id"]]}
        await crash(scheduler)


async def test_nothing_is_cancelled_for_a_failure_that_a_stale_run_sees(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N11: the record is fenced, and comes first."""
    handled: list[int] = []

    async def body(job: RunningJob[Any]) -> None:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.start("child", 500)
                if job.attempt == 1:
                    await nursery.start("child", "fail", delay=5)
                    taken_back(jobs)
        except JobNurseryError:
            handled.append(job.attempt)

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await trio.sleep(20)
        await quiesce()
        assert "scopeFailed" not in only(jobs)
        assert jobs.count_documents({"data": 500, "status": "processing", "cancelRequestedAt": None}) == 1
        assert handled == []
        await crash(scheduler)


async def test_failure_beside_an_error_of_the_body_is_recorded_too(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N11: the handler sees both errors, and may act on that of the child."""

    async def body(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job, fail="wait") as nursery:
                if job.attempt == 2:
                    await nursery.run("child", "ship", key="ship")
                await nursery.start("child", "ship", key="ship", delay=20)
                with suppress(JobFailedError):
                    await nursery.run("child", "fail", key="charge")
                raise KeyError
        except ExceptionGroup as group:
            _, failed = group.split(KeyError)
            if failed is not None and job.attempt == 1:
                await trio.sleep_forever()
            return "undone"

    flow = Flow(body)
    assert await killed_after_the_block(open_test_scheduler, flow) == "undone"
    assert flow.attempts == [1, 2]
    assert flow.runs["ship"] == 0


async def test_snooze_beside_a_failed_child_is_a_snooze(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """The next run finds that failure, too."""

    async def body(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job, fail="wait") as nursery:
                failing = await nursery.start("child", "fail")
                await nursery.start("child", 100)
                if job.attempt == 1:
                    with suppress(JobFailedError):
                        await failing.wait()
                    raise Snooze(after=10)
        except JobNurseryError as failed:
            return [job.attempt, len(failed.exceptions)]

    flow = Flow(body)
    assert (await run_parent(open_test_scheduler, flow)).result == [2, 1]
    assert flow.runs == {"fail": 1, "100": 1}


async def test_block_that_keeps_failures_since_a_deployment_is_not_skipped(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """It does not raise, so a handler could not see that its body was cancelled at its start."""

    async def body(job: RunningJob[Any]) -> Any:
        child = None
        try:
            async with open_job_nursery(job, key="k", fail="cancel" if job.attempt == 1 else "keep") as nursery:
                child = await nursery.start("child", "fail")
        except JobNurseryError:
            raise ValueError from None
        return child is not None and child.error is not None

    assert (await run_parent(open_test_scheduler, Flow(body))).result is True
