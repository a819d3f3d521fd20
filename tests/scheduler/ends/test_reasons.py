"""Why a run is cancelled: each reason reaches the handler, and has its own outcome and its own event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.internals import end_at_once, engine_of, runs_of
from tests.support.jobs_in_memory import flat
from tests.support.node_peer import NodePeer
from trio_monque import JobStatus, RunningJob, Workers
from trio_monque.events import Event, JobCancelled, JobClaimLost, JobCompleted, JobFailed, JobStarted, ShutdownTimedOut
from trio_monque.scheduler.scheduler import Scheduler
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, drain, quiesce

HOUR = 3600.0


async def sleep_although_cancelled(seconds: float) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(seconds)


class Stage:
    """A worker whose runs last an hour, and what is seen of them."""

    def __init__(self, opener: SchedulerOpener, jobs: Collection) -> None:
        self.jobs = jobs
        self.workers = Workers()
        self.reasons: list[object] = []
        self.ended_at: list[float] = []
        self.events: list[Event] = []
        self._opener = opener

    @asynccontextmanager
    async def running(self, handler: Any = None, **options: Any) -> AsyncIterator[tuple[Scheduler, Any]]:
        """A scheduler in whose first run we are, a second after its start; and its job's id."""
        self.workers.register("job", handler or self.obeys)

        async def hear(event: Event) -> None:
            self.events.append(event)

        options = {"heartbeat_interval": 10, "lock_timeout": None, "retry_jitter": 0, **options}
        async with self._opener(self.workers, listeners={Event: hear}, **options) as scheduler:
            job = await scheduler.enqueue("job")
            await advance(1)
            yield scheduler, job.id

    async def obeys(self, job: RunningJob[Any]) -> None:
        try:
            await trio.sleep(HOUR)
        finally:
            self.reasons.append(job.cancel_reason)
            self.ended_at.append(trio.current_time())

    async def succeeds_all_the_same(self, job: RunningJob[Any]) -> None:
        try:
            await trio.sleep(HOUR)
        except trio.Cancelled:
            self.reasons.append(job.cancel_reason)

    def stored(self) -> Any:
        (job,) = self.jobs.find()
        return job

    def emitted(self) -> list[type[Event]]:
        return [type(event) for event in self.events if not isinstance(event, JobStarted)]


@pytest.fixture
def stage(open_test_scheduler: SchedulerOpener, jobs: Collection) -> Stage:
    return Stage(open_test_scheduler, jobs)


async def test_user(stage: Stage, autojump_clock: MockClock) -> None:
    async with stage.running() as (scheduler, job_id):
        await scheduler.cancel_job(job_id)
        await advance(9)  # The next heartbeat reads it.
        assert stage.ended_at == [10.0]
        await quiesce()
        stored = stage.stored()
        assert (stored["status"], "cancelRequestedAt" in stored, "claimToken" in stored) == ("cancelled", False, False)
    assert stage.reasons == ["user"]
    assert stage.emitted() == [JobCancelled]


async def test_user_came_too_late_for_a_run_that_succeeds_all_the_same(stage: Stage, autojump_clock: MockClock) -> None:
    async with stage.running(stage.succeeds_all_the_same) as (scheduler, job_id):
        await scheduler.cancel_job(job_id)
        await drain(scheduler)
        assert stage.stored()["status"] == "completed"
    assert stage.reasons == ["user"]
    assert stage.emitted() == [JobCompleted]


async def test_user_stops_a_schedule_whose_run_succeeds_all_the_same(stage: Stage, autojump_clock: MockClock) -> None:
    async with stage.running(stage.succeeds_all_the_same) as (scheduler, _):
        job = await scheduler.schedule("0 0 1 1 *", "job")
        await scheduler.reschedule_job(job.id, job.created_at)
        await quiesce()
        await scheduler.cancel_job(job.id)
        await advance(20)
        stored = stage.jobs.find_one({"_id": job.id})
        assert stored is not None
        assert stored["status"] == "cancelled"
    assert JobCancelled in stage.emitted()


@pytest.mark.parametrize("whose", ["worker", "job"])
async def test_timeout(stage: Stage, autojump_clock: MockClock, whose: str) -> None:
    async with stage.running(base_retry_interval=100) as (scheduler, job_id):
        await scheduler.delete_job(job_id)
        await advance(20)
        stage.reasons.clear()
        stage.ended_at.clear()
        stage.events.clear()
        if whose == "worker":
            scheduler.register("job", stage.obeys, replace=True, timeout=30)
            await scheduler.enqueue("job")
        else:
            await scheduler.enqueue("job", timeout=30)
        began = trio.current_time()
        await advance(60)
        assert stage.ended_at == [began + 30]
        stored = stage.stored()
        assert (stored["status"], stored["failCount"]) == ("pending", 1)
        named = {"worker": "the timeout of its worker", "job": "the job's timeout"}[whose]
        assert stored["failReason"] == f"TimeoutError: the run took longer than 30 s ({named})"
        assert stage.reasons == ["timeout"]
        assert stage.emitted() == [JobFailed]


async def test_shutdown(stage: Stage, autojump_clock: MockClock) -> None:
    async with stage.running(shutdown_timeout=5) as (scheduler, _):
        attempts = stage.stored()["attempts"]
    stored = stage.stored()
    assert (stored["status"], stored["failCount"], stored["attempts"]) == ("pending", 0, attempts)
    assert "claimToken" not in stored
    assert stage.reasons == ["shutdown"]
    assert stage.ended_at == [6.0]
    assert stage.emitted() == [ShutdownTimedOut]
    assert scheduler.report is not None
    assert scheduler.report.released == 1


async def test_lost_to_another(stage: Stage, autojump_clock: MockClock) -> None:
    async with stage.running() as (scheduler, _):
        peer = NodePeer(stage.jobs)
        assert peer.recover(timedelta(days=-365)) == 1
        theirs = peer.claim("job", stage.stored()["nextRunAt"])
        assert theirs is not None
        await advance(9)
        assert stage.ended_at == [10.0]
        await quiesce()
        assert stage.stored() == theirs
    assert stage.stored() == theirs
    assert stage.reasons == ["lost"]
    assert stage.emitted() == [JobClaimLost]
    assert scheduler.report is not None
    assert scheduler.report.unfinished == ()


async def test_lost_is_stronger_than_user_and_user_than_timeout_and_timeout_than_shutdown(
    stage: Stage, autojump_clock: MockClock
) -> None:
    """One clean-up, in which one after the other comes."""
    seen: list[object] = []

    async def cleans_up(job: RunningJob[Any]) -> None:
        try:
            await trio.sleep(HOUR)
        finally:
            with job.cleanup(1000):
                for _ in range(4):
                    seen.append(job.cancel_reason)
                    await trio.sleep(10)

    async with stage.running(cleans_up, cleanup_timeout=100, shutdown_timeout=1000) as (scheduler, job_id):
        # A timeout first: the scheduler's cut comes later, and is weaker.
        scheduler.register("job", cleans_up, replace=True)
        (run,) = runs_of(scheduler)
        end_at_once(run)
        await advance(1)
        engine_of(scheduler).stop.cut()
        await advance(10)
        assert seen == ["timeout", "timeout"]
        await scheduler.cancel_job(job_id)
        await advance(10)
        assert seen == ["timeout", "timeout", "user"]
        stage.jobs.update_one({"_id": job_id}, {"$set": {"claimToken": "another's"}})
        await advance(10)
        assert seen == ["timeout", "timeout", "user", "lost"]
    assert stage.stored()["claimToken"] == "another's"


async def test_absolute_limit_ends_the_clean_up_by_nine_tenths_of_it_and_then_the_renewals(
    stage: Stage, autojump_clock: MockClock
) -> None:
    last_beats: list[Any] = []

    async def cleans_up(job: RunningJob[Any]) -> None:
        try:
            await stage.obeys(job)
        finally:
            with job.cleanup(1000):
                await trio.sleep(1000)

    async with stage.running(cleans_up, lock_timeout=100, cleanup_timeout=20, max_attempts=1) as (scheduler, _):
        began = stage.stored()["lockedAt"]
        await advance(88)
        last_beats.append(stage.stored()["lastHeartbeat"] - began)
        assert stage.ended_at == [70.0]
        await drain(scheduler)
        assert trio.current_time() == 90.0
        assert stage.stored()["status"] == "failed"
    assert stage.reasons == ["timeout"]
    assert last_beats == [timedelta(seconds=80)]


async def test_thread_that_outlives_the_absolute_limit_keeps_its_claim_until_the_lease_is_over(
    stage: Stage, autojump_clock: MockClock
) -> None:
    """What it returns later is settled if no other instance took the claim: here, none rescues."""

    def runs_on(job: RunningJob[Any]) -> str:
        job.from_thread(sleep_although_cancelled, 149)
        return "late"

    options: Any = {"lock_timeout": 100, "cleanup_timeout": 20, "recover_stale_jobs": False}
    async with stage.running(runs_on, **options) as (scheduler, _):
        began = stage.stored()["lockedAt"]
        await advance(139)
        stored = stage.stored()
        assert (stored["status"], stored["lastHeartbeat"] - began) == ("processing", timedelta(seconds=80))
        await drain(scheduler)
        assert stage.stored()["status"] == "completed"
    assert stage.emitted() == [JobClaimLost, JobCompleted]


async def test_job_that_is_asked_to_end_shows_the_request(stage: Stage, autojump_clock: MockClock) -> None:
    async with stage.running() as (scheduler, job_id):
        asked = await scheduler.cancel_job(job_id)
        assert asked is not None
        assert (asked.status, flat(asked).cancel_requested_at is not None) == (JobStatus.PROCESSING, True)


async def test_timeout_beyond_what_lock_timeout_allows_is_not_named_as_the_limit(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with stage.running(lock_timeout=100, cleanup_timeout=20, base_retry_interval=1000) as (scheduler, job_id):
        await scheduler.delete_job(job_id)
        scheduler.register("job", stage.obeys, replace=True, timeout=5000)
        await scheduler.enqueue("job")
        await advance(90)
        assert (
            stage.stored()["failReason"] == "TimeoutError: the run took longer than 70 s (lock_timeout allows no more)"
        )


@pytest.mark.parametrize("end", ["raises", "checks"])
async def test_thread_that_fails_after_its_lease_has_failed_and_is_not_tried_for_ever(
    stage: Stage, autojump_clock: MockClock, end: str
) -> None:
    """It took too long, and no other instance took the claim, as none rescues: that is a failure, and no release."""

    def runs_on(job: RunningJob[Any]) -> None:
        job.from_thread(sleep_although_cancelled, 150)
        if end == "raises":
            raise ValueError("too late")
        job.check_cancelled()

    options: Any = {"lock_timeout": 100, "cleanup_timeout": 20, "max_attempts": 1, "recover_stale_jobs": False}
    async with stage.running(runs_on, **options) as (scheduler, _):
        await drain(scheduler)
        stored = stage.stored()
        assert (stored["status"], stored["failCount"]) == ("failed", 1)
        too_long = "took longer than 70 s (lock_timeout allows no more)"
        assert ("too late" if end == "raises" else too_long) in stored["failReason"]
    assert stage.emitted() == [JobClaimLost, JobFailed]
