"""The scope of a parent: what it survives, and what ends it. Children that completed in it do not run again."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.nursery.flows import Flow, only, report, statuses, taken_back
from trio_monque import JobCancelledError, JobFailedError, RunningJob, Snooze, open_job_nursery
from trio_monque.errors import ClaimLostError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, crash, now, quiesce

CLAIM = {"claimedBy": "", "lockedAt": "", "lastHeartbeat": "", "heartbeatInterval": "", "claimToken": ""}


async def test_run_that_has_lost_its_claim_opens_no_block(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N1: its children would not have a parent."""
    entered: list[int] = []

    async def body(job: RunningJob[Any]) -> None:
        if job.attempt == 1:
            taken_back(jobs)
            with pytest.raises(ClaimLostError):
                async with open_job_nursery(job):
                    entered.append(job.attempt)
            assert "ownScope" not in only(jobs)
            return
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "done")

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await advance(10)
        await advance(10)  # The scheduler looks for jobs that Node has released.
        await scheduler.wait_job(parent)
    assert entered == []
    assert statuses(jobs) == {"completed": 1}


@pytest.mark.full
@pytest.mark.parametrize(
    "end", ["attempt failed", "snoozed", "failed", "cancelled", "cancelled between attempts", "shut down", "killed"]
)
async def test_scope_outlives_every_end_of_a_run_that_leaves_the_work_undone(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, end: str
) -> None:
    """N2."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            done = await nursery.run("child", "done")
            if job.attempt == 1:
                match end:
                    case "snoozed":
                        raise Snooze(after=10)
                    case "attempt failed" | "failed" | "cancelled between attempts":
                        raise OSError
                    case _:
                        await trio.sleep_forever()
        return done

    flow = Flow(body, max_attempts=1 if end == "failed" else 3, backoff=1000)
    async with open_test_scheduler(flow.workers, shutdown_timeout=1) as first:
        parent = await first.enqueue("parent")
        await trio.sleep(10)
        await quiesce()
        if end.startswith("cancelled"):
            await first.cancel_job(parent.id)
            with suppress(JobCancelledError):
                await first.wait_job(parent)
        if end == "killed":
            await crash(first)
    async with open_test_scheduler(flow.workers) as second:
        if end in ("failed", "cancelled", "cancelled between attempts"):
            await second.retry_job(parent.id)
        assert (await second.wait_job(parent)).result == "done"
    assert flow.attempts == [1, 2]
    assert flow.runs == {"done": 1}


async def test_occurrence_that_failed_for_good_ends_its_scope(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N2."""

    async def body(job: RunningJob[Any]) -> None:
        await report(job)
        raise OSError

    flow = Flow(body, max_attempts=1)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.schedule("*/10 * * * *", "parent", unique_key="k", on_exhausted="continue")
        await trio.sleep(2 * 600 + 60)
        await quiesce()
    assert flow.runs["report"] == len(flow.attempts) >= 2
    assert "ownScope" not in only(jobs)


async def test_occurrence_after_one_that_node_has_ended_takes_none_of_its_results(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N3: Node does not clear the scope. N22: the sweeper ends the live children of the former occurrence."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            await nursery.run("child", "report")
            if job.attempt == 1:
                await nursery.start("child", 50_000)
                await trio.sleep_forever()

    flow = Flow(body)
    async with open_test_scheduler(flow.only_children, lock_timeout=None):
        async with open_test_scheduler(flow.workers, lock_timeout=None) as killed:
            await killed.schedule("0 * * * *", "parent", unique_key="k")
            await trio.sleep(3600)
            await quiesce()
            await crash(killed)
        following = now() + timedelta(hours=1)
        ended = {"$set": {"status": "pending", "nextRunAt": following}, "$unset": CLAIM}
        assert jobs.update_one({"name": "parent", "ownScope": {"$exists": True}}, ended).modified_count == 1
        async with open_test_scheduler(flow.workers):
            await trio.sleep(600)
            await quiesce()
            assert flow.attempts == [1]
            assert jobs.count_documents({"data": 50_000, "status": "cancelled"}) == 1
            await trio.sleep(3600)
            await quiesce()
    assert flow.runs["report"] == len(flow.attempts) >= 2


async def test_killed_run_of_a_recurring_parent_goes_on_in_the_same_occurrence(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N3: also after a failed attempt, which is due at another time."""

    async def body(job: RunningJob[Any]) -> None:
        await report(job)
        if job.attempt == 1:
            await trio.sleep_forever()
        if job.attempt == 2:
            raise OSError

    flow = Flow(body, backoff=100)
    async with open_test_scheduler(flow.workers, lock_timeout=None) as killed:
        parent = await killed.schedule("0 0 1 1 *", "parent", unique_key="k")
        await killed.reschedule_job(parent.id, now())
        await trio.sleep(10)
        await quiesce()
        await crash(killed)
        async with open_test_scheduler(flow.workers, lock_timeout=None):
            await advance(1000)
    assert flow.attempts == [1, 2, 3]
    assert flow.runs == {"report": 1}
    assert "ownScope" not in only(jobs)


async def test_occurrence_that_was_rescheduled_begins_anew(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N3."""

    async def body(job: RunningJob[Any]) -> None:
        await report(job)
        if job.attempt == 1:
            raise OSError

    flow = Flow(body, backoff=1000)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.schedule("0 0 1 1 *", "parent", unique_key="k")
        await scheduler.reschedule_job(parent.id, now())
        await trio.sleep(10)
        await quiesce()
        assert only(jobs)["ownScope"]
        await scheduler.reschedule_job(parent.id, now() + timedelta(minutes=5))
        await trio.sleep(600)
        await quiesce()
    assert flow.attempts == [1, 2]
    assert flow.runs["report"] == 2


async def test_steps_with_replaced_data_are_called_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N4."""

    async def body(job: RunningJob[Any]) -> Any:
        decided = await job.step("decided", lambda: job.data)
        if job.data == "old":
            raise OSError
        return decided

    async with open_test_scheduler(Flow(body, backoff=1000).workers) as scheduler:
        parent = await scheduler.enqueue("parent", "old", unique_key="k")
        await trio.sleep(10)
        await quiesce()
        await scheduler.enqueue("parent", "new", unique_key="k", on_conflict="replace", delay=10)
        assert "steps" not in only(jobs), "they may be large"
        assert (await scheduler.wait_job(parent)).result == "new"


async def test_run_that_was_left_in_a_job_which_node_has_ended_begins_anew(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N4: the write that takes over the new data clears the scope, and not the end of the job."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            got = await nursery.run("child", "same")
            if job.data == "old":
                await trio.sleep_forever()
        return [job.data, got]

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as killed:
        parent = await killed.enqueue("parent", "old", unique_key="k")
        await trio.sleep(10)
        await killed.enqueue("parent", "new", unique_key="k", on_conflict="replace")
        await quiesce()
        await crash(killed)
    ended = {"$set": {"status": "completed"}, "$unset": CLAIM}
    assert jobs.update_one({"name": "parent", "again": {"$exists": True}}, ended).modified_count == 1
    async with open_test_scheduler(flow.workers) as scheduler:
        await advance(10)
        await advance(10)  # The scheduler looks for jobs that are to run again.
        assert (await scheduler.wait_job(parent)).result == ["new", "same"]
    assert flow.runs["same"] == 2


async def test_failure_of_the_data_from_before_ends_their_scope(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    """N4."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            got = await nursery.run("child", "same")
        await trio.sleep(100)
        if job.data == "old":
            raise OSError
        return got

    flow = Flow(body, max_attempts=1)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent", "old", unique_key="k")
        await trio.sleep(50)
        await scheduler.enqueue("parent", "new", unique_key="k", on_conflict="replace")
        with suppress(JobFailedError):
            assert (await scheduler.wait_job(parent)).result == "same"
    assert flow.attempts == [1, 2]
    assert flow.runs["same"] == 2
