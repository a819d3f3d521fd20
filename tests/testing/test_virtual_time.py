"""Moving the time of a test: everything that belongs to a moment happens, and nothing that does not."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.internals import engine_of, open_group, take_all_slots
from tests.support.node_peer import NodePeer
from tests.support.run_log import Log
from trio_monque import Monque, MonqueError, RunningJob, Workers
from trio_monque.clock import ServerClock
from trio_monque.errors import InvalidOptionError
from trio_monque.events import HeartbeatFailed, JobStarted, SchedulerErrorOccurred
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, drain, fail_next, now, quiesce, start_virtual_time
from trio_monque.threads_and_frozen_time import clock_freeze

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


# --- advance ---


async def test_everything_on_the_way_happens_at_its_moment_the_last_one_included(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    log = Log(sleeps=2.0)
    async with open_test_scheduler(log.workers) as scheduler:
        for delay in (30.0, 10.0, 30.001, 12.5):
            await scheduler.enqueue("job", delay=delay)
        await advance(30)
        assert log.starts == [10.0, 12.5, 30.0]
        assert log.ends == [12.0, 14.5]
        assert trio.current_time() == 30.0
        await advance(2)
        assert log.ends == [12.0, 14.5, 32.0]


async def test_no_beat_is_jumped_over(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    log = Log(sleeps=1000.0)
    async with open_test_scheduler(log.workers, heartbeat_interval=10, lock_timeout=None) as scheduler:
        job = await scheduler.enqueue("job")
        for _ in range(5):
            await advance(105)
            stored = jobs.find_one({"_id": job.id})
            assert stored is not None
            assert timedelta(0) <= now() - stored["lastHeartbeat"] <= timedelta(seconds=10)
        await advance(1000)


@pytest.mark.parametrize("clock", [MockClock(), MockClock(rate=1000.0)], ids=["by hand", "fast"])
def test_it_also_moves_a_clock_that_does_not_jump_by_itself(clock: MockClock, monque_db: Database) -> None:
    log = Log()

    async def main() -> None:
        async with SchedulerOpener(monque_db)(log.workers) as scheduler:
            await scheduler.enqueue("job", delay=3600)
            before = trio.current_time()
            await advance(3600 * 2)
            assert trio.current_time() - before >= 3600 * 2
            assert len(log.starts) == 1
        # An abandoned query may outlive its scheduler by a moment; it lets go of the clock then.
        while clock_freeze().freezing:
            await trio.lowlevel.checkpoint()

    threshold = clock.autojump_threshold
    trio.run(main, clock=clock)
    assert clock.autojump_threshold == threshold


async def test_real_time_cannot_be_advanced() -> None:
    with pytest.raises(MonqueError, match="MockClock"):
        await advance(1)


async def test_nonsense_is_refused(autojump_clock: MockClock) -> None:
    with pytest.raises(InvalidOptionError, match="seconds"):
        await advance(-1)


async def test_what_other_programs_write_is_found(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    log = Log()
    async with open_test_scheduler(log.workers) as scheduler:
        await advance(0)
        peer = NodePeer(jobs)
        peer.enqueue("job", nextRunAt=now())
        peer.enqueue("job", nextRunAt=now() + timedelta(minutes=1))
        await advance(60)
        assert log.starts == [0.0, 60.0]
        peer.enqueue("job", nextRunAt=now())
        assert (await drain(scheduler)).completed == 3


# --- drain ---


async def test_what_is_due_runs_to_its_end_and_what_is_due_later_stays(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    log = Log(sleeps=50.0)
    log.workers.register("fails", lambda _: 1 / 0)
    for _ in range(3):
        await monque.enqueue("fails")
    await monque.enqueue("job")
    await monque.enqueue("job", delay=100)
    async with open_test_scheduler(log.workers, concurrency_per_name=1, base_retry_interval=100) as scheduler:
        drained = await drain(scheduler)
        assert (drained.completed, drained.failed, drained.released) == (1, 3, 0)
        assert log.ends == [50.0]
        assert jobs.count_documents({"name": "fails", "status": "pending", "nextRunAt": {"$gt": now()}}) == 3
        assert (await drain(scheduler)).completed == 0
        assert trio.current_time() == 50.0


async def test_jobs_that_jobs_enqueue_run_as_well(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    depths: list[int] = []

    @workers.register("job")
    async def job(job: RunningJob[int]) -> None:
        depths.append(job.data)
        if job.data < 5:
            await job.scheduler.enqueue("job", job.data + 1)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("job", 0)
        assert (await drain(scheduler)).completed == 6
    assert depths == [0, 1, 2, 3, 4, 5]


async def test_until_moves_the_clock_there(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    log = Log(sleeps=7.0)
    start_virtual_time(START)
    async with open_test_scheduler(log.workers) as scheduler:
        await scheduler.schedule("0 * * * *", "job")
        drained = await drain(scheduler, until=START + timedelta(days=1))
        assert drained.completed == 24
        assert log.starts == [3600.0 * hour for hour in range(1, 25)]
        assert now() == START + timedelta(days=1, seconds=7)
        for until in (START, datetime(2027, 1, 1)):  # noqa: DTZ001
            with pytest.raises(InvalidOptionError, match="until"):
                await drain(scheduler, until=until)


async def test_handler_that_waits_for_the_test_is_named(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    go_on = trio.Event()

    @workers.register("waits")
    async def waits(job: RunningJob[Any]) -> None:
        await go_on.wait()

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("waits")
        with pytest.raises(AssertionError, match=r"not drained within 1000 s: .*waits.* still run"):
            await drain(scheduler, within=1000)
        go_on.set()
        assert (await drain(scheduler)).completed == 1


async def test_drain_raises_for_a_due_job_that_is_not_claimed(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    async with open_test_scheduler(log.workers, concurrency=1) as scheduler:
        await quiesce()  # Its first look is over.
        with monkeypatch.context() as patched:
            take_all_slots(patched, scheduler)
            await scheduler.enqueue("job")
            with pytest.raises(AssertionError, match="is not claimed"):
                await drain(scheduler)
        assert (await drain(scheduler)).completed == 1


async def test_scheduler_that_ends_cannot_be_drained(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler() as scheduler:
        scheduler.drain()
        with pytest.raises(MonqueError, match="is shutting down or has ended"):
            await drain(scheduler)


async def test_it_drains_in_real_time_too(open_test_scheduler: SchedulerOpener) -> None:
    log = Log()
    async with open_test_scheduler(log.workers, poll_interval=30) as scheduler:
        for _ in range(20):
            await scheduler.enqueue("job")
        await drain(scheduler)
        assert len(log.ends) == 20


# --- quiesce ---


async def test_it_waits_for_threads_and_passes_no_time(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    release = threading.Event()
    steps: list[str] = []
    freeze = clock_freeze()

    async def sleeper() -> None:
        await trio.sleep(1)
        steps.append("slept")

    async def in_flight() -> None:
        freeze.freeze()
        await trio.to_thread.run_sync(release.wait, 50)
        steps.append("answered")
        freeze.thaw()

    nursery.start_soon(sleeper)
    nursery.start_soon(in_flight)
    await trio.testing.wait_all_tasks_blocked()
    assert steps == []
    release.set()
    await quiesce()
    assert steps == ["answered"]
    assert trio.current_time() == 0


# --- The start ---


async def test_start_is_chosen_once_for_all_clients_of_the_run(monque_db: Database, autojump_clock: MockClock) -> None:
    await trio.sleep(5)
    start_virtual_time(START)
    assert now() == START
    start_virtual_time(START)  # The same again is not a contradiction.
    await trio.sleep(3600)
    assert now() == ServerClock().now() == START + timedelta(hours=1)
    one, other = Monque(monque_db), Monque(monque_db)
    assert (await one.enqueue("job")).created_at == (await other.enqueue("job")).created_at == now()
    # Also where a program's own thread asks.
    job = await trio.to_thread.run_sync(one.sync.enqueue, "job")
    assert job.created_at == now()
    with pytest.raises(MonqueError, match="has already begun"):
        start_virtual_time(START + timedelta(days=1))


async def test_start_is_the_real_time_unless_chosen_and_cannot_be_chosen_later(autojump_clock: MockClock) -> None:
    assert abs(now() - datetime.now(UTC)) < timedelta(seconds=10)
    with pytest.raises(MonqueError, match="has already begun"):
        start_virtual_time(START)


async def test_start_needs_a_virtual_clock_and_a_time_zone(autojump_clock: MockClock) -> None:
    with pytest.raises(InvalidOptionError, match="timezone-aware"):
        start_virtual_time(datetime(2026, 1, 1))  # noqa: DTZ001


async def test_real_time_has_no_start() -> None:
    with pytest.raises(MonqueError, match="virtual clock"):
        start_virtual_time(START)


# --- Exactness, and faults ---


async def test_a_hundred_timers_end_at_exactly_their_instants(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    started: dict[Any, datetime] = {}

    async def hear(event: JobStarted) -> None:
        started[event.job.id] = now()

    log = Log(sleeps=1.0)
    await trio.sleep(1 / 3)
    async with open_test_scheduler(log.workers, listeners={JobStarted: hear}) as scheduler:
        delays = [1000 + (number * 7919 % 100) * 0.137 for number in range(100)]
        enqueued = [await scheduler.enqueue("job", delay=delay) for delay in delays]
        await drain(scheduler, until=now() + timedelta(seconds=1100))
    assert started == {job.id: job.next_run_at for job in enqueued}
    assert len({job.next_run_at for job in enqueued}) == 100
    assert [round(end - start, 9) for start, end in zip(log.starts, log.ends, strict=True)] == [1.0] * 100


async def test_an_outage_burns_no_virtual_time(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    """A third of a second of faults in each loop, tried again after real pauses that freeze the clock."""
    failed: list[tuple[str, float]] = []

    async def hear(event: SchedulerErrorOccurred | HeartbeatFailed) -> None:
        if "gone" in str(event.error):  # And not that the machine had no time for a command.
            failed.append((type(event).__name__, trio.current_time()))

    log = Log(sleeps=1.5)
    gone = AutoReconnect("gone")
    async with open_test_scheduler(
        log.workers, heartbeat_interval=1, listeners={SchedulerErrorOccurred: hear, HeartbeatFailed: hear}
    ) as scheduler:
        with (
            fail_next(scheduler, gone, command="look for due jobs", times=2),
            fail_next(scheduler, gone, command="renew claims", times=3),
            fail_next(scheduler, gone, command="settle", times=2),
        ):
            await scheduler.enqueue("job")
            assert (await drain(scheduler)).completed == 1
    assert log.ends == [1.5]
    assert sorted(failed) == [
        ("HeartbeatFailed", 1.0),
        ("SchedulerErrorOccurred", 0.0),
        ("SchedulerErrorOccurred", 1.5),
    ]


@pytest.mark.full
async def test_jobs_of_a_transaction_start_when_it_commits(
    open_test_scheduler: SchedulerOpener, monque_db: Database, autojump_clock: MockClock
) -> None:
    log = Log()
    async with open_test_scheduler(log.workers, poll_interval=1.0) as scheduler:
        await scheduler.enqueue("job")
        await drain(scheduler)
        with monque_db.client.start_session() as session:
            session.start_transaction()
            await scheduler.enqueue("job", session=session)
            await trio.sleep(100)
            await trio.sleep(0.5)
            assert log.starts == [0.0]
            await scheduler.enqueue("job", session=session, delay=1000)
            session.commit_transaction()
            await trio.sleep(100)
        assert log.starts == [0.0, 101.0]
        await trio.sleep(1000)
        assert log.starts == [0.0, 101.0, 1100.5]


async def test_blocking_calls_from_threads_of_the_run_wake_the_scheduler(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    log = Log()

    @log.workers.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        job.scheduler.sync.enqueue("job", delay=5)

    async with open_test_scheduler(log.workers) as scheduler:
        await scheduler.enqueue("plain")
        await trio.sleep(10)
        await trio.to_thread.run_sync(monque.sync.enqueue, "job")
        await trio.sleep(10)
        later = await monque.enqueue("job", delay=1000)
        await trio.to_thread.run_sync(monque.sync.reschedule_job, later.id, now() + timedelta(seconds=20))
        await trio.sleep(50)
    assert log.starts == [5.0, 10.0, 40.0]


async def test_schedulers_of_one_run_wake_each_other(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    """A retry that one wrote, and a job that one gave back when it left, start on time in the other."""
    log = Log()
    failing = Workers()

    @failing.register("job")
    async def fails(job: RunningJob[Any]) -> None:
        raise ConnectionError("not here")

    async with open_test_scheduler(log.workers, base_retry_interval=30, retry_jitter=0) as other:
        async with open_test_scheduler(failing, base_retry_interval=30, retry_jitter=0) as scheduler:
            await quiesce()  # Its first look may be under way still, and would take the job.
            engine_of(other).slots.set_limit("job", 0)
            await scheduler.enqueue("job")
            await drain(scheduler)
        open_group(other, "job")
        await trio.sleep(100)
    assert log.starts == [60.0]


async def test_scheduler_of_a_test_begins_virtual_time_where_the_test_wants_it(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    moment = datetime(2031, 5, 6, tzinfo=UTC)
    async with open_test_scheduler(starts_at=moment, deterministic=True):
        assert now() == moment
        with pytest.raises(MonqueError, match="already begun"):
            async with open_test_scheduler(starts_at=moment + timedelta(days=1)):
                raise AssertionError("never entered")
