"""Jobs of dead instances come back by themselves, and those of living ones do not. In virtual time, on the server."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Recorder
from tests.support.internals import context_of, die
from tests.support.node_peer import NodePeer
from tests.support.rescues import LEASE, PASS, Jobs, dead_instance, heard
from tests.support.store import claimed_by_a_dead_one, handle
from tests.support.thoroughly import one_in
from trio_monque import CancelReason, JobStatus, Monque, RunningJob, Workers, open_scheduler
from trio_monque.clock import ClockReadings
from trio_monque.embedded import EmbeddedServer
from trio_monque.events import JobCancelled, JobFailed, StaleJobsRecovered
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, crash, drain, now, quiesce

# --- Which claims are rescued, and when ---


async def test_foreign_claim_beyond_lock_timeout_and_without_heartbeat_is_pending_at_startup_and_runs(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    peer, ran, reported = NodePeer(jobs), [], list[Any]()
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        ran.append((job.id, job.attempt))

    old = now() - timedelta(seconds=1801)
    ids = [peer.enqueue("job", nextRunAt=old) for _ in range(2)]
    for _ in ids:
        assert peer.claim("job", old)
    jobs.update_one({"_id": ids[1]}, {"$unset": {"lastHeartbeat": ""}})
    async with open_test_scheduler(workers, listeners=heard(reported)) as scheduler:
        await drain(scheduler)
        assert trio.current_time() == 0.0
    assert sorted(ran) == sorted((job_id, 1) for job_id in ids)
    assert reported == [StaleJobsRecovered(2, {"job": 2})]
    assert not jobs.count_documents({"claimedBy": {"$exists": True}})


@pytest.mark.parametrize(
    ("options", "taken_at"),
    [
        ({}, 1800.0),
        ({"lock_timeout": 3600.0}, 3600.0),
        ({"lock_timeout": None}, None),
        ({"recover_stale_jobs": False}, None),
    ],
)
async def test_claim_within_the_timeout_is_untouched_and_recovery_can_be_disabled_at_start_and_continuously(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    options: dict[str, Any],
    taken_at: float | None,
) -> None:
    peer = NodePeer(jobs)
    peer.enqueue("job", nextRunAt=now())
    claimed = peer.claim("job", now())
    assert claimed is not None
    async with open_test_scheduler(**options):
        await advance(1800 if taken_at is None else taken_at - 16)
        assert jobs.find_one() == claimed
        await advance(86400 if taken_at is None else 32)
        found = jobs.find_one()
        assert found is not None
        assert found["status"] == ("processing" if taken_at is None else "pending")


@pytest.mark.parametrize("lived", one_in(3, [0.0, 1.0, 14.0, 16.0, 29.0, 30.0, 44.0, 59.0, 299.0]))
async def test_crashed_instances_jobs_are_run_by_a_living_one_within_one_lease_and_one_pass(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, lived: float
) -> None:
    work, reported = Jobs(), list[Any]()
    # It runs other jobs, so that it was there before and claimed none of these.
    async with open_test_scheduler(listeners=heard(reported)) as living:
        await trio.sleep(7.3)
        async with dead_instance(open_test_scheduler, work.workers, "job", "job", after=lived):
            last_beat = max(document["lastHeartbeat"] for document in jobs.find())
            living.register("job", work.handler)
            since = (now() - last_beat).total_seconds()
            died = trio.current_time()
            await trio.sleep(LEASE + PASS - since)
            await quiesce()
            assert jobs.count_documents({"status": "completed", "rescues": {"$exists": False}}) == 2
    again = [at for at, attempt in work.starts if attempt == 2]
    assert len(again) == 2
    # Nor before the holder had to have given up.
    assert min(again) >= died - since + LEASE
    # A look may fall between the beats of two claims: then each is reported alone.
    assert sum(event.count for event in reported) == 2


async def test_jobs_of_the_only_instance_come_back_when_one_starts_later(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    work = Jobs()
    async with dead_instance(open_test_scheduler, work.workers, "job", after=100):
        pass
    await trio.sleep(86400)
    started = trio.current_time()
    async with open_test_scheduler(work.workers):
        await trio.sleep(LEASE - 0.1)
        assert jobs.count_documents({"status": "processing"}) == 1
        await trio.sleep(PASS)
    assert [at for at, attempt in work.starts if attempt == 2] == [started + LEASE]


async def test_job_with_live_heartbeats_is_never_claimed_again_and_its_run_ends_by_its_own_time_limit(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    work, other = Jobs(), Jobs()
    async with open_test_scheduler(work.workers, lock_timeout=1800.0) as holder:
        await holder.enqueue("job")
        await quiesce()
        async with open_test_scheduler(other.workers, lock_timeout=90.0):
            await trio.sleep(0.9 * 1800 - 6)
            assert (other.starts, work.reasons) == ([], [])
            assert jobs.count_documents({"status": "processing", "rescues": {"$exists": False}}) == 1
            await trio.sleep(2)
            assert work.reasons == [CancelReason.TIMEOUT]


async def test_job_with_one_try_survives_a_kill_and_a_poison_job_ends_failed(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    reported: list[Any] = []
    workers = Workers()

    @workers.register("poison", max_attempts=1)
    async def poison(job: RunningJob[Any]) -> None:
        victims.append(job.attempt)
        die(job.scheduler)
        await trio.sleep_forever()

    victims: list[int] = []
    one_try = Jobs()
    workers.register("once", one_try.handler, max_attempts=1)
    async with open_test_scheduler(listeners=heard(reported)) as living:
        await living.enqueue("once")
        await living.enqueue("poison")
        for _ in range(5):
            async with open_test_scheduler(workers):
                await trio.sleep(200)
    assert victims == [1, 2, 3, 4]
    poisoned, once = jobs.find_one({"name": "poison"}), jobs.find_one({"name": "once"})
    assert poisoned is not None
    assert once is not None
    assert (poisoned["status"], poisoned["failCount"]) == ("failed", 0)
    assert poisoned["failReason"] == "died 4 times while running"
    assert (once["status"], once["failCount"]) == ("completed", 0)
    (failed,) = (event for event in reported if isinstance(event, JobFailed))
    assert (failed.will_retry, str(failed.error)) == (False, "died 4 times while running")


# --- Suspects ---


async def test_ten_innocent_jobs_beside_one_that_kills_its_process_all_complete(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    ran: list[tuple[str, int]] = []

    @workers.register("innocent", concurrency=20)
    async def innocent(job: RunningJob[Any]) -> None:
        await trio.sleep(5)
        ran.append((str(job.id), job.attempt))

    @workers.register("poison")
    async def poison(job: RunningJob[Any]) -> None:
        await trio.sleep(1)
        die(job.scheduler)
        await trio.sleep_forever()

    async with open_test_scheduler() as living:
        for _ in range(10):
            await living.enqueue("innocent")
        await living.enqueue("poison")
        for _ in range(8):
            async with open_test_scheduler(workers):
                await trio.sleep(150)
    assert jobs.count_documents({"name": "innocent", "status": "completed"}) == 10
    assert jobs.count_documents({"name": "poison", "status": "failed"}) == 1


async def test_suspects_run_one_at_a_time_and_hide_no_innocents(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    running: set[str] = set()
    most, order = 0, list[str]()

    @workers.register("job", concurrency=3)
    async def handler(job: RunningJob[str]) -> None:
        nonlocal most
        order.append(job.data)
        if job.data == "suspect":
            running.add(str(job.id))
            most = max(most, len(running))
            await trio.sleep(10)
            running.remove(str(job.id))

    async with open_test_scheduler() as scheduler:
        for data in ["suspect"] * 6 + ["innocent"] * 6:
            await scheduler.enqueue("job", data)
        jobs.update_many({"data": "suspect"}, {"$set": {"rescues": 2}})
        scheduler.register("job", handler, concurrency=3)
        await drain(scheduler)
    assert most == 1
    assert order == ["suspect", *["innocent"] * 6, *["suspect"] * 5]
    assert trio.current_time() == 60.0
    assert not jobs.count_documents({"rescues": {"$exists": True}})


# --- Requests, clocks, rivals ---


async def test_job_whose_holder_died_with_a_request_to_cancel_it_is_cancelled(
    open_test_scheduler: SchedulerOpener, jobs: Collection, monque: Monque, autojump_clock: MockClock
) -> None:
    work, reported = Jobs(), list[Any]()
    async with open_test_scheduler(listeners=heard(reported)) as living:
        async with dead_instance(open_test_scheduler, work.workers, "job"):
            job = await monque.cancel_job(jobs.find_one()["_id"])  # type: ignore[index]
            assert job is not None
            await trio.sleep(LEASE + PASS)
        cancelled = await living.get_job(job.id)
    assert cancelled is not None
    assert (cancelled.status, cancelled.claim) == (JobStatus.CANCELLED, None)
    assert [type(event) for event in reported] == [JobCancelled]


async def test_several_living_instances_rescue_a_job_once(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    work, reported = Jobs(), list[Any]()
    async with open_test_scheduler(listeners=heard(reported)), open_test_scheduler(listeners=heard(reported)):
        async with dead_instance(open_test_scheduler, work.workers, *["job"] * 20):
            await trio.sleep(LEASE + PASS)
            await quiesce()
    assert sum(event.count for event in reported) == 20
    assert jobs.count_documents({"status": "pending", "rescues": 1}) == 20


@pytest.mark.parametrize("hours", one_in(2, [-1, 1], first=1))
async def test_clocks_an_hour_apart_play_no_part(
    db: Database, jobs: Collection, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In real time: the rescuer's idea of the server's time is wrong by an hour."""
    work = Jobs()
    quick: dict[str, Any] = {"heartbeat_interval": 0.2, "poll_interval": 0.05}
    async with open_scheduler(db, work.workers) as holder:
        await holder.enqueue("job")
        while len(work.starts) < 1:
            await trio.sleep(0.01)
        async with open_scheduler(db, **quick) as rescuer:
            monkeypatch.setattr(context_of(rescuer), "measure_clock_offset", lambda: None)  # It would be mended.
            readings = ClockReadings.now()
            context_of(rescuer).clock.set_offset(readings.wall - readings.steady + 3600.0 * hours, readings)
            claimed_by_a_dead_one(handle(db), 1, "dead-ones", every=0.2)
            while not jobs.count_documents({"name": "dead-ones", "status": "pending", "rescues": 1}):
                await trio.sleep(0.02)
            # It has looked again and again in the meantime.
            assert work.reasons == []
            assert jobs.count_documents({"name": "job", "status": "processing", "rescues": {"$exists": False}}) == 1
        await crash(holder)


@pytest.mark.full
async def test_claim_lives_by_its_own_interval_and_not_by_the_rescuers(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    work = Jobs()
    async with open_test_scheduler(work.workers, heartbeat_interval=300.0) as holder:
        await holder.enqueue("job")
        async with open_test_scheduler(heartbeat_interval=10.0, lock_timeout=60.0, cleanup_timeout=1.0):
            await trio.sleep(1500)
            assert work.reasons == []
            assert jobs.count_documents({"status": "processing", "rescues": {"$exists": False}}) == 1
            await crash(holder)
            await trio.sleep(905.1)
            await quiesce()
            assert jobs.count_documents({"status": "pending", "rescues": 1}) == 1


async def test_dead_predecessor_of_the_same_name_is_rescued_like_any_other(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    work = Jobs()
    async with dead_instance(open_test_scheduler, work.workers, "job", instance_id="web-1"):
        pass
    await trio.sleep(LEASE)  # Before, the id counts as taken.
    async with open_test_scheduler(work.workers, instance_id="web-1"):
        await trio.sleep(LEASE + PASS)
    assert [attempt for _, attempt in work.starts] == [1, 2]


# --- By hand ---


@pytest.mark.full
@pytest.mark.parametrize("how", ["async", "sync"])
async def test_by_hand_it_waits_for_the_observation_and_returns_how_many(
    monque: Monque, db: Database, jobs: Collection, how: str
) -> None:
    """In real time."""
    reported = list[Any]()
    claimed_by_a_dead_one(handle(db), 3, "job", every=0.2)
    monque.on(StaleJobsRecovered, reported.append)
    started = trio.current_time()
    if how == "async":
        assert await monque.recover_stale_jobs() == 3
    else:
        assert await trio.to_thread.run_sync(monque.sync.recover_stale_jobs) == 3
    assert trio.current_time() - started >= 3 * 0.2
    assert reported == [StaleJobsRecovered(3, {"job": 3})]
    assert jobs.count_documents({"status": "pending", "rescues": 1}) == 3


async def test_by_hand_in_virtual_time(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    work, reported = Jobs(), list[Any]()
    monque.on(StaleJobsRecovered, reported.append)
    assert await monque.recover_stale_jobs() == 0
    async with dead_instance(open_test_scheduler, work.workers, "job", "job"):
        pass
    assert await monque.recover_stale_jobs() == 2
    assert trio.current_time() == LEASE
    assert reported == [StaleJobsRecovered(2, {"job": 2})]
    assert jobs.count_documents({"status": "pending", "rescues": 1}) == 2


async def test_by_hand_it_leaves_the_living_alone_and_ends_when_it_has_seen_that_they_live(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    work = Jobs()
    async with open_test_scheduler(work.workers) as living:
        await living.enqueue("job")
        await quiesce()
        assert await monque.recover_stale_jobs() == 0
        assert trio.current_time() <= 45.0
        assert jobs.count_documents({"status": "processing"}) == 1


async def test_by_hand_older_than_stands_for_lock_timeout_for_foreign_claims(
    monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    peer = NodePeer(jobs)
    peer.enqueue("job", nextRunAt=now())
    assert peer.claim("job", now())
    await trio.sleep(300)
    assert await monque.recover_stale_jobs() == 0
    assert await monque.recover_stale_jobs(older_than=301) == 0
    assert trio.current_time() == 300
    # Silent for longer than its lease, and old enough: as at a start, nothing is waited for.
    assert await monque.recover_stale_jobs(older_than=299) == 1
    assert trio.current_time() == 300


# --- What is reported, and what it costs ---


async def test_log_names_counts_holders_and_likely_causes(
    open_test_scheduler: SchedulerOpener, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    work = Jobs()
    work.workers.register("report", work.handler)
    caplog.set_level(logging.WARNING, "trio_monque")
    async with open_test_scheduler():
        async with dead_instance(open_test_scheduler, work.workers, "job", "report", "job") as dead:
            await trio.sleep(LEASE + PASS)
    (record,) = (one for one in caplog.records if "dead instances" in one.message)
    for words in (
        "3 jobs",
        "job: 2, report: 1",
        "killed, ran out of memory, lost its database or blocked its event loop",
        dead.id,
    ):
        assert words in record.message
    ids = record.__dict__["job_ids"]
    assert len(set(ids)) == 3
    held = re.search(rf"{re.escape(dead.id)} \((.+)\)$", record.message)
    assert held is not None
    assert sorted(one.split()[1] for one in held[1].split(", ")) == sorted(ids)


async def test_virtual_months_of_an_idle_fleet_cost_no_commands(
    mongod: EmbeddedServer, db: Database, autojump_clock: MockClock
) -> None:
    commands = Recorder()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        opener = SchedulerOpener(client[db.name])
        async with opener(Jobs().workers), opener():
            await quiesce()
            before = len(commands.commands)
            await trio.sleep(86400 * 90)
            assert commands.commands[before:] == []


@pytest.mark.full
async def test_short_jobs_of_one_instance_cost_the_others_nothing_in_virtual_time(
    mongod: EmbeddedServer, db: Database, autojump_clock: MockClock
) -> None:
    def looks(recorder: Recorder) -> Sequence[Any]:
        return [one for name, one in recorder.commands if name == "find" and one["filter"] == {"status": "processing"}]

    workers = Workers()
    workers.register("job", lambda _: None)
    commands = Recorder()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        opener = SchedulerOpener(client[db.name])
        async with opener(workers) as scheduler, opener():
            await quiesce()  # Otherwise the first look of the other one may see the first job while it runs.
            for minute in range(60):
                await scheduler.enqueue("job", delay=60.0 * minute)
            await quiesce()
            commands.commands.clear()
            await trio.sleep(3600)
            assert looks(commands) == []
