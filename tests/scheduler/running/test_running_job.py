"""What a handler gets, and what it can say while it runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.internals import context_of
from tests.support.node_peer import NodePeer
from trio_monque import Monque, RunningJob, Workers, open_scheduler
from trio_monque.clock import ClockReadings
from trio_monque.errors import ClaimLostError, InvalidPayloadError
from trio_monque.events import JobClaimLost
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain, quiesce


async def test_what_one_try_saved_the_next_one_gets(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()
    seen: list[Any] = []

    @workers.register("steps", backoff=1)
    async def steps(job: RunningJob[Any]) -> None:
        seen.append(job.saved)
        step = (job.saved or {"step": 0})["step"] + 1
        await job.save({"step": step})
        assert job.saved == {"step": step}
        await job.set_progress(step / 3)
        if step < 3:
            raise ValueError("not yet")

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("steps")
        await advance(60)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert seen == [None, {"step": 1}, {"step": 2}]
    stored = await monque.get_job(job.id)
    assert stored is not None
    assert (stored.saved, stored.progress) == (None, 1.0)  # A completed job needs no checkpoint.


async def test_plain_handler_saves_through_its_thread(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("plain", max_attempts=1)
    def plain(job: RunningJob[Any]) -> None:
        job.from_thread(job.save, "half")
        job.from_thread(trio.sleep, 5)  # Virtual time passes while the thread waits here.
        assert job.from_thread(trio.current_time) == 5
        raise ValueError("no")

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("plain")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="failed", count=1)
    stored = await monque.get_job(job.id)
    assert stored is not None
    assert stored.saved == "half"


async def test_what_cannot_be_stored_is_refused_and_the_run_goes_on(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    refused: list[str] = []

    @workers.register("saves")
    async def saves(job: RunningJob[Any]) -> None:
        with pytest.raises(InvalidPayloadError):
            await job.save({1, 2})
        refused.append("refused")

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("saves")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert refused == ["refused"]


async def test_run_that_lost_its_claim_saves_nothing_and_is_cancelled(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    peer = NodePeer(jobs)
    ended: list[Any] = []

    @workers.register("loses")
    async def loses(job: RunningJob[Any]) -> None:
        jobs.update_one({"_id": job.id}, {"$set": {"claimedBy": peer.instance}})
        try:
            await job.save("stale")
        except ClaimLostError:
            ended.append("raised")
        try:
            await trio.sleep_forever()
        finally:
            ended.append(job.cancel_reason)

    lost: list[JobClaimLost] = []
    async with open_test_scheduler(workers, listeners={JobClaimLost: lost.append}) as scheduler:
        job = await scheduler.enqueue("loses")
        await quiesce()
        assert len(lost) == 1
        assert trio.current_time() == 0  # Long before the next beat.
    assert ended == ["raised", "lost"]
    document = jobs.find_one({"_id": job.id})
    assert document is not None
    assert "saved" not in document
    assert (document["status"], document["claimedBy"]) == ("processing", peer.instance)


@pytest.mark.parametrize(("asked", "got"), [(3.0, 3.0), (100.0, 5.0)])
async def test_clean_up_is_shielded_and_bounded(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, asked: float, got: float
) -> None:
    workers = Workers()
    took: list[float] = []

    @workers.register("cleans")
    async def cleans(job: RunningJob[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            started = trio.current_time()
            with job.cleanup(asked) as scope:
                await trio.sleep(10_000)
            assert scope.cancelled_caught
            took.append(trio.current_time() - started)

    async with open_test_scheduler(workers, shutdown_timeout=0, cleanup_timeout=5) as scheduler:
        await scheduler.enqueue("cleans")
        await quiesce()
        await assert_enqueued(scheduler, status="processing", count=1)
        left = trio.current_time()
    assert took == [got]
    assert trio.current_time() - left == got
    assert jobs.count_documents({"status": "pending"}) == 1


async def test_deadline_is_the_nearer_of_the_jobs_timeout_and_the_lock(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    deadlines: list[float] = []

    @workers.register("worker", timeout=20)
    async def worker(job: RunningJob[Any]) -> None:
        deadlines.append(job.deadline - trio.current_time())

    async with open_test_scheduler(workers, heartbeat_interval=1, lock_timeout=50, cleanup_timeout=5) as scheduler:
        for timeout in (None, 7, 1000):
            await scheduler.enqueue("worker", timeout=timeout)
            await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=3)
    assert deadlines == [20, 7, 40]


async def test_time_of_a_job_is_never_before_its_claim_although_the_clock_is_set_back(
    db: Database,
) -> None:
    """A handler that waits for a moment with a Snooze would find that it has come too early, and wait again."""
    workers, seen = Workers(), list[tuple[datetime, datetime | None]]()

    @workers.register("steps")
    async def steps(job: RunningJob[Any]) -> None:
        clock, readings = context_of(scheduler).clock, ClockReadings.now()
        clock.set_offset(readings.wall - readings.steady - 3600.0, readings)
        assert job.job.claim is not None
        seen.append((job.now(), job.job.claim.since))
        clock.set_offset(readings.wall - readings.steady, readings)

    async with open_scheduler(db, workers) as scheduler:
        await scheduler.wait_job(await scheduler.enqueue("steps"))
    ((now, since),) = seen
    assert now == since
