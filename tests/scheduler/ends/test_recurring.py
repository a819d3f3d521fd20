"""Recurring jobs, from occurrence to occurrence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from bson import ObjectId
from trio.testing import MockClock

from tests.support.internals import engine_of
from tests.support.node_peer import NodePeer, now
from trio_monque import JobStatus, Monque, RunningJob, Workers
from trio_monque.events import JobClaimLost, JobCompleted, JobFailed
from trio_monque.jobs.job_parts import Schedule
from trio_monque.scheduler.settling import MOST_ROUNDS
from trio_monque.store.driver.types import Collection
from trio_monque.store.jobs import settling
from trio_monque.testing import SchedulerOpener, advance, crash, drain, quiesce, start_virtual_time

START = datetime(2026, 3, 1, 12, 20, tzinfo=UTC)
CLAIM_FIELDS = {"claimedBy", "lockedAt", "lastHeartbeat", "heartbeatInterval", "claimToken"}


def hourly(jobs: Collection, **fields: Any) -> ObjectId:
    """A job that has been due since long before, hour by hour, as Monque for Node would have left it."""
    return NodePeer(jobs).enqueue(
        "tick", nextRunAt=datetime(2020, 1, 1, tzinfo=UTC), repeatInterval="0 * * * *", **fields
    )


async def test_success_moves_a_schedule_to_its_next_occurrence_from_now_and_emits_an_event(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    start_virtual_time(START)
    job_id = hourly(jobs, failCount=3, failReason="before")
    workers = Workers()
    runs: list[datetime] = []
    workers.register("tick", lambda job: runs.append(job.next_run_at))
    reported: list[JobCompleted] = []
    async with open_test_scheduler(workers, listeners={JobCompleted: reported.append}) as scheduler:
        await drain(scheduler)
    assert len(runs) == 1  # Years of missed hours are one run.
    document = jobs.find_one({"_id": job_id})
    assert document is not None
    assert (document["status"], document["failCount"]) == ("pending", 0)
    assert not document.keys() & {*CLAIM_FIELDS, "failReason"}
    assert (document["finishedAt"], document["updatedAt"]) == (START, START)
    assert document["nextRunAt"] == datetime(2026, 3, 1, 13, tzinfo=UTC)
    assert [event.job.id for event in reported] == [job_id]
    assert reported[0].job.status is JobStatus.PENDING


async def test_failed_schedule_waits_for_the_backoff_and_then_again_for_its_next_occurrence(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    start_virtual_time(START)
    job_id = hourly(jobs)
    workers = Workers()

    @workers.register("tick")
    async def tick(job: RunningJob[Any]) -> None:
        if job.fail_count == 0:
            raise ValueError("no")

    failed: list[JobFailed] = []
    async with open_test_scheduler(workers, retry_jitter=0, listeners={JobFailed: failed.append}) as scheduler:
        await drain(scheduler)
        assert jobs.count_documents({"failCount": 1, "nextRunAt": START + timedelta(seconds=2)}) == 1
        await trio.sleep(2)
        await quiesce()
        assert jobs.count_documents({"failCount": 0, "finishedAt": START + timedelta(seconds=2)}) == 1
    assert failed[0].will_retry
    assert failed[0].job.schedule == Schedule(cron="0 * * * *")
    assert failed[0].job.next_run_at - failed[0].job.updated_at == timedelta(seconds=2)
    stored = await monque.get_job(job_id)
    assert stored is not None
    assert (stored.next_run_at, stored.fail_reason) == (datetime(2026, 3, 1, 13, tzinfo=UTC), None)


async def test_occurrence_is_the_same_in_all_its_attempts(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    """After a failure, a shutdown and a crash, whose next run the dates of the document describe differently."""
    start_virtual_time(START)
    seen: list[tuple[datetime | None, bool]] = []
    workers = Workers()

    @workers.cron("0 * * * *", "tick")
    async def tick(job: RunningJob[Any]) -> None:
        seen.append((job.occurrence, job.occurrence == job.next_run_at))
        if len(seen) in (1, 4):
            raise ValueError("no")
        if len(seen) in (2, 3):
            await trio.sleep(300)

    @workers.register("other")
    async def other(job: RunningJob[Any]) -> None:
        assert job.occurrence is None

    async with open_test_scheduler(workers, shutdown_timeout=0) as scheduler:
        await scheduler.enqueue("other")
        await drain(scheduler)
        await advance(2403)
    async with open_test_scheduler(workers) as dead:
        await advance(1)
        await crash(dead)
    async with open_test_scheduler(workers) as scheduler:
        await advance(3600)
    first, next_one = START.replace(hour=13, minute=0), START.replace(hour=14, minute=0)
    assert [occurrence for occurrence, _ in seen] == [first] * 5 + [next_one]
    assert [is_due_date for _, is_due_date in seen] == [True, False, False, False, False, True]


async def test_job_without_a_schedule_runs_once(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    runs: list[int] = []
    workers.register("once", lambda job: runs.append(job.attempt))
    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("once")
        await advance(3 * 3600)
    assert runs == [1]
    assert jobs.count_documents({"status": "completed"}) == 1


async def test_completion_under_a_lost_claim_writes_nothing(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    job_id = hourly(jobs)
    taken: list[Any] = []
    workers = Workers()

    @workers.register("tick")
    async def tick(job: RunningJob[Any]) -> None:
        peer = NodePeer(jobs)
        # Due for Node, whose clock runs ahead, and not for us.
        jobs.update_one({}, {"$set": {"nextRunAt": now() + timedelta(seconds=500)}})
        peer.recover(timedelta(seconds=-1000))
        taken.append(peer.claim("tick", now() + timedelta(seconds=1000)))

    reported: list[Any] = []
    async with open_test_scheduler(workers, listeners=dict.fromkeys((JobCompleted, JobClaimLost), reported.append)):
        await quiesce()
    assert [type(event) for event in reported] == [JobClaimLost]
    assert jobs.find_one({"_id": job_id}) == taken[0]


@pytest.mark.parametrize("ending", ["success", "failure", "lost", "snooze"])
async def test_slot_is_free_again_however_a_run_ends(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, ending: str
) -> None:
    from trio_monque import Snooze

    workers = Workers()
    ran = trio.Event()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        ran.set()
        if ending == "failure":
            raise ValueError("no")
        if ending == "snooze":
            raise Snooze(after=1000)
        if ending == "lost":
            jobs.update_one({"_id": job.id}, {"$set": {"claimedBy": "another"}})

    async with open_test_scheduler(workers, base_retry_interval=1000) as scheduler:
        await scheduler.enqueue("job")
        await quiesce()
        assert ran.is_set()
        assert engine_of(scheduler).slots.running == 0
        assert engine_of(scheduler).unfinished == ()


async def test_end_of_a_run_whose_schedule_keeps_changing_is_given_up(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It changes between the read and the write of each round. Without a bound, the settler would never go on."""
    start_virtual_time(START)
    settle, sent = settling.settle, list[int]()

    def changed_first(*arguments: Any) -> Any:
        sent.append(len(sent))
        if len(sent) <= 2 * MOST_ROUNDS:
            jobs.update_one({}, {"$set": {"repeatInterval": f"{len(sent)} * * * *"}})
        return settle(*arguments)

    monkeypatch.setattr(settling, "settle", changed_first)
    workers = Workers()
    workers.register("tick", lambda job: None)
    hourly(jobs)
    async with open_test_scheduler(workers, recover_stale_jobs=False):
        await quiesce()
        assert len(sent) == MOST_ROUNDS
        assert jobs.count_documents({"status": "processing"}) == 1
    assert "because it kept changing" in caplog.text
