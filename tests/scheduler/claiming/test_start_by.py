"""A job that was not started by its `start_by` is cancelled and reported once, by a look or by the loop beside it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import trio
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from trio_monque import Job, JobCancelledError, JobStatus, Monque, NewJob, RunningJob, Workers
from trio_monque.errors import InvalidOptionError
from trio_monque.events import JobCancelled
from trio_monque.jobs.follow_ups import PARKED_UNTIL
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, drain, fail_next, now, quiesce


async def test_job_that_waits_too_long_for_a_slot_is_cancelled_and_reported(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers, ran, cancelled = Workers(), list[Any](), list[JobCancelled]()

    @workers.register("greet", concurrency=1)
    async def greet(job: RunningJob[str]) -> None:
        ran.append(job.data)
        await trio.sleep(60)

    async with open_test_scheduler(workers, listeners={JobCancelled: cancelled.append}) as scheduler:
        await scheduler.enqueue(greet, "first", start_by=now() + timedelta(seconds=30))
        await quiesce()
        late = await scheduler.enqueue(greet, "late", unique_key="k", start_by=now() + timedelta(seconds=30))
        in_time = await scheduler.enqueue(greet, "in time", start_by=now() + timedelta(seconds=90))
        await drain(scheduler)
        assert ran == ["first", "in time"]
        with pytest.raises(JobCancelledError) as caught:
            await monque.wait_job(late)
        assert str(caught.value.job.fail_reason).startswith("start_by: not started by")
        assert [event.job.id for event in cancelled] == [late.id]
        assert scheduler.statistics().cancelled == 1
        stored = await monque.get_job(in_time.id)
        assert stored is not None
        assert stored.status is JobStatus.COMPLETED


async def test_retries_of_a_job_that_started_in_time_are_not_limited(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers, ran = Workers(), list[int]()

    @workers.register("greet")
    async def greet(job: RunningJob[str]) -> None:
        ran.append(job.attempt)
        if job.attempt < 3:
            raise ConnectionError

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue(greet, "x", start_by=now() + timedelta(milliseconds=500))
        await drain(scheduler)
        await advance(3600)
    stored = await monque.get_job(job.id)
    assert ran == [1, 2, 3]
    assert stored is not None
    assert stored.status is JobStatus.COMPLETED


async def test_job_whose_due_date_is_not_before_its_limit_never_starts(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers, ran = Workers(), list[Any]()

    @workers.register("greet")
    async def greet(job: RunningJob[str]) -> None:
        ran.append(job.data)

    async with open_test_scheduler(workers) as scheduler:
        # Claimed by its id, without a look.
        job = await scheduler.enqueue(greet, "late", delay=60, start_by=now() + timedelta(seconds=90))
        jobs.update_one({"_id": job.id}, {"$set": {"startBy": now() + timedelta(seconds=30)}})
        await advance(61)
        stored = await monque.get_job(job.id)
    assert ran == []
    assert stored is not None
    assert stored.status is JobStatus.CANCELLED


# --- Jobs that no look for due jobs meets ---


async def test_job_of_a_paused_name_and_one_that_no_scheduler_runs_end_at_their_moment_once(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers, cancelled = Workers(), list[JobCancelled]()
    workers.register("paused", noop)
    options: dict[str, Any] = {"listeners": {JobCancelled: cancelled.append}}
    async with open_test_scheduler(workers, **options), open_test_scheduler(workers, **options):
        await monque.pause("paused")
        start = now()
        for seconds, name in ((20, "paused"), (10, "unknown"), (30, "paused")):
            await monque.enqueue(name, start_by=now() + timedelta(seconds=seconds))
        await monque.enqueue("unknown")
        await advance(3600)
        await monque.resume("paused")
        await quiesce()
    assert [event.job.name for event in cancelled] == ["unknown", "paused", "paused"]
    waited = [(event.job.updated_at - start).total_seconds() for event in cancelled]
    assert waited == pytest.approx([10, 20, 30], abs=0.1)
    assert [(job.name, job.status) for job in await monque.get_jobs()].count(("unknown", JobStatus.PENDING)) == 1


async def test_job_that_is_found_at_the_start_ends_although_its_name_is_unknown(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    past, soon = (now() + timedelta(seconds=seconds) for seconds in (-5, 5))
    jobs = [await monque.enqueue("unknown", start_by=moment) for moment in (past, soon)]
    async with open_test_scheduler(Workers()) as scheduler:
        await quiesce()
        assert [one.status for job in jobs if (one := await scheduler.get_job(job.id))] == ["cancelled", "pending"]
        await advance(6)
        assert [one.status for job in jobs if (one := await scheduler.get_job(job.id))] == ["cancelled"] * 2


async def test_lost_answer_to_the_end_is_reported_once(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    """The look meets the job, ends it and gets no answer: it is not pending any more, and no look shows it."""
    workers, cancelled = Workers(), list[JobCancelled]()
    workers.register("greet", noop)
    async with open_test_scheduler(workers, listeners={JobCancelled: cancelled.append}) as scheduler:
        lost = AutoReconnect("gone")
        with fail_next(scheduler, lost, when="after", command="^cancel jobs that were not started in time$"):
            await scheduler.enqueue("greet", start_by=now())
            await advance(60)
        assert [event.job.status for event in cancelled] == ["cancelled"]
        assert scheduler.statistics().cancelled == 1


async def test_look_that_fails_is_made_again(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    """In virtual time there is no other look: without this one the job would stay pending for ever."""
    async with open_test_scheduler(Workers()) as scheduler:
        await quiesce()
        job = await monque.enqueue("unknown", start_by=now() + timedelta(seconds=5))
        with fail_next(scheduler, AutoReconnect("gone"), command="^look for jobs that were not started in time$"):
            await advance(6)
        await advance(60)
        assert (ended := await scheduler.get_job(job.id)) is not None
        assert ended.status is JobStatus.CANCELLED


async def test_more_late_jobs_than_one_page_end_in_one_turn(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    moment = now() - timedelta(seconds=1)
    await monque.enqueue_many([NewJob("unknown", start_by=moment) for _ in range(250)])
    async with open_test_scheduler(Workers()) as scheduler:
        await quiesce()
        assert scheduler.statistics().cancelled == 250


async def test_follow_up_that_is_held_is_not_ended_and_a_late_one_is_once(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers, cancelled = Workers(), list[JobCancelled]()

    def then(job: Job[Any]) -> NewJob:
        return NewJob("ship", start_by=now() - timedelta(seconds=1))

    workers.register("pack", noop, then=then)
    parent = await monque.enqueue("pack", delay=3600)
    parked = {**await monque.document("ship", start_by=now()), "nextRunAt": PARKED_UNTIL, "follows": parent.id}
    jobs.insert_one({**parked, "followUp": {"attempt": 0, "due": now()}})
    jobs.update_one({"_id": parent.id}, {"$set": {"followUp": True}})
    async with open_test_scheduler(workers, listeners={JobCancelled: cancelled.append}) as scheduler:
        await advance(120)
        assert jobs.count_documents({"name": "ship", "status": "pending"}) == 1
        await scheduler.enqueue("pack")
        await advance(120)
    assert [event.job.name for event in cancelled] == ["ship"]
    assert jobs.count_documents({"name": "ship", "status": "cancelled"}) == 1


# --- What callers do ---


async def test_retried_job_has_no_limit_and_a_replaced_one_that_of_the_last_call(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers, ran = Workers(), list[Any]()

    @workers.register("greet")
    async def greet(job: RunningJob[str]) -> None:
        ran.append(job.data)

    async with open_test_scheduler(workers) as scheduler:
        late = await scheduler.enqueue(greet, "late", start_by=now())
        await quiesce()
        assert ran == []
        await scheduler.retry_job(late.id)
        await quiesce()
        assert ran == ["late"]
        limit = now() + timedelta(seconds=30)
        options: Any = {"unique_key": "k", "on_conflict": "replace"}
        await scheduler.enqueue(greet, "a", delay=20, start_by=limit, **options)
        replaced = await scheduler.enqueue(greet, "b", delay=60, **options)
        assert replaced.limits.start_by is None
        await advance(61)
        assert ran == ["late", "b"]
        await scheduler.enqueue(greet, "c", delay=20, **options)
        replaced = await scheduler.enqueue(greet, "d", start_by=now(), **options)
        await advance(61)
        assert ran == ["late", "b"]
        assert (await scheduler.get_job(replaced.id) or pytest.fail("gone")).status == "cancelled"


async def test_moment_that_leaves_no_time_to_start_is_refused(monque: Monque, autojump_clock: MockClock) -> None:
    limit = now() + timedelta(seconds=30)
    job = await monque.enqueue("greet", start_by=limit)
    with pytest.raises(InvalidOptionError, match=r"run_at.*must be before"):
        await monque.reschedule_job(job.id, limit)
    moved = await monque.reschedule_job(job.id, limit - timedelta(seconds=1))
    assert moved is not None
    assert moved.limits.start_by == job.limits.start_by
    with pytest.raises(InvalidOptionError, match=r"start_by.*must be later than run_at"):
        await monque.enqueue("greet", run_at=limit, start_by=limit)
    for delay in (30, 31):
        with pytest.raises(InvalidOptionError, match=r"start_by.*must be later than .*, when its delay is over"):
            await monque.enqueue("greet", delay=delay, start_by=limit)
        with pytest.raises(InvalidOptionError, match=r"start_by.*when its delay is over"):
            await monque.enqueue_many([NewJob("greet"), NewJob("greet", delay=delay, start_by=limit)])
        with pytest.raises(InvalidOptionError, match=r"start_by.*when its delay is over"):
            monque.sync_in_loop.enqueue("greet", delay=delay, start_by=limit)
    assert len(await monque.get_jobs()) == 1
    await monque.enqueue("greet", delay=29, start_by=limit)
    with pytest.raises(InvalidOptionError, match=r"start_by.*timezone"):
        await monque.enqueue("greet", start_by=limit.replace(tzinfo=None))


async def noop(job: RunningJob[Any]) -> None: ...
