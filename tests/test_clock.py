"""Virtual time against a real server: calls in flight freeze the clock, and nothing else does."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient, monitoring
from trio.testing import MockClock

from tests.support.internals import context_of
from tests.support.store import handle
from tests.support.thoroughly import one_in
from trio_monque import Monque, RunningJob, Workers, clock, open_scheduler
from trio_monque.client import server_time
from trio_monque.clock import ClockReadings, ServerClock, virtual_time
from trio_monque.events import JobClaimLost, JobCompleted
from trio_monque.store.driver import connection
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, drain
from trio_monque.threads_and_frozen_time import FreezingLimiter, clock_freeze


def right_offset() -> float:
    """What must be added to the steady clock of this machine, where the server runs as well."""
    readings = ClockReadings.now()
    return readings.wall - readings.steady


async def test_calls_in_flight_hold_the_clock_and_fire_no_timeout(db: Database, autojump_clock: MockClock) -> None:
    monque = Monque(db)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await trio.sleep(10)
            beats += 1

    async def call_and_sleep(nursery_done: trio.Event | None = None) -> None:
        for _ in range(10):
            with trio.fail_after(5):
                await monque.get_queue_stats()
        await trio.sleep(1)

    async with trio.open_nursery() as beating:
        beating.start_soon(beat)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(call_and_sleep)
        beating.cancel_scope.cancel()
    assert trio.current_time() == 1.0
    assert beats == 0
    assert clock_freeze().freezing == 0
    assert autojump_clock.autojump_threshold == 0


async def test_abandoned_thread_holds_the_clock_until_it_has_really_ended(autojump_clock: MockClock) -> None:
    limiter = cast("trio.CapacityLimiter", FreezingLimiter(1))
    release = threading.Event()
    ended: list[float] = []

    def slow() -> None:
        release.wait(50)
        ended.append(autojump_clock.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.to_thread.run_sync, slow, limiter=limiter, abandon_on_cancel=True))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert clock_freeze().freezing == 1
    assert autojump_clock.autojump_threshold == math.inf
    release.set()
    await trio.sleep(100)  # Only passes when the clock is thawed.
    assert ended == [0.0]
    assert trio.current_time() == 100


async def test_now_follows_the_clock_of_the_run(autojump_clock: MockClock) -> None:
    clock = ServerClock()
    clock.set_offset(12345, ClockReadings.now())  # Of no meaning in virtual time.
    assert not clock.is_stale()
    start = clock.now()
    assert abs(start - datetime.now(UTC)) < timedelta(seconds=10)
    await trio.sleep(86400.25)
    assert clock.now() - start == timedelta(days=1, milliseconds=250)
    assert ServerClock().now() == clock.now()  # One timeline for all clients of the run.


async def test_threads_that_work_for_the_run_see_its_time(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    seen: list[datetime] = []

    @workers.register("plain")
    def plain(job: RunningJob[None]) -> None:
        virtual = virtual_time()
        assert virtual is not None
        seen.append(virtual.now())
        job.scheduler.sync.enqueue("other")

    before = ServerClock().now()
    async with open_test_scheduler(workers) as scheduler:
        await advance(7 * 86400)
        await scheduler.enqueue("plain")
        await drain(scheduler)
    assert seen == [before + timedelta(days=7)]
    other = jobs.find_one({"name": "other"})
    assert other is not None
    assert other["createdAt"] == seen[0]


def test_real_clock_is_the_steady_clock_plus_the_offset_to_the_servers() -> None:
    clock = ServerClock()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=10)
    assert clock.is_stale()
    clock.set_offset(right_offset() + 3600, ClockReadings.now())
    assert not clock.is_stale()
    assert timedelta(minutes=59) < clock.now() - datetime.now(UTC) < timedelta(minutes=61)
    assert clock.now().microsecond % 1000 == 0
    assert clock.now().tzinfo is UTC


async def test_timer_for_a_moment_keeps_the_fraction_of_a_millisecond_that_now_has_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(clock, "steady_clock", lambda: 1000.0)
    server = ServerClock()
    server.set_offset(moment.timestamp() - 1000.0 - 0.0003, ClockReadings.now())
    assert server.now() == moment - timedelta(milliseconds=1)
    assert server.seconds_until(moment) == pytest.approx(0.0003, abs=1e-6)
    before = trio.current_time()
    timer = server.on_run_clock(moment)
    assert before - 1e-6 < timer - 0.0003 < trio.current_time() + 1e-6


def test_offset_to_the_server_is_measured_before_the_first_write(db: Database) -> None:
    monque = Monque(db)
    before, error = datetime.now(UTC), timedelta(seconds=2)
    job = monque.sync.enqueue("greet")
    assert not context_of(monque).clock.is_stale()
    assert before - error < job.created_at < datetime.now(UTC) + error


def test_offset_is_measured_anew_once_the_primary_is_another(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monque, measured = Monque(db), list[str]()

    def measure(_: object) -> float:
        measured.append("anew")
        return right_offset()

    monkeypatch.setattr(server_time, "measure_clock_offset", measure)
    monque.sync.enqueue("greet")
    monque.sync.enqueue("greet")
    assert len(measured) == 1
    for primary, times in ((("elsewhere", 1), 2), (None, 2), (("elsewhere", 2), 3)):
        monkeypatch.setattr(server_time, "known_primary", lambda _, primary=primary: primary)
        monque.sync.enqueue("greet")
        monque.sync.enqueue("greet")
        assert len(measured) == times  # Without a known member there is no server to ask.


async def test_scheduler_measures_the_offset_with_each_beat_and_claims_by_the_new_primarys(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real clock. A job that is due by the old primary's clock, and not by the new one's, is left alone."""
    workers, ran = Workers(), trio.Event()

    @workers.register("due")
    async def due(job: RunningJob[None]) -> None:
        ran.set()

    offsets = {"old": 0.0, "new": 3600.0}
    measured: list[str] = []
    primary = "old"

    def measure(_: object) -> float:
        measured.append(primary)
        return right_offset() + offsets[primary]

    monkeypatch.setattr(server_time, "measure_clock_offset", measure)
    monkeypatch.setattr(server_time, "known_primary", lambda _: (primary, 1))
    async with open_scheduler(db, workers, heartbeat_interval=0.2, poll_interval=0.05) as scheduler:
        await scheduler.enqueue("due", delay=1800)
        while len(measured) < 3:
            await trio.sleep(0.01)
        assert not ran.is_set()
        primary = "new"
        await ran.wait()


# A lease that does not run out although the machine stands still for two seconds, whenever it does.
ENDURING: dict[str, Any] = {"heartbeat_interval": 1.4, "cleanup_timeout": 0.1, "poll_interval": 0.05}


@pytest.mark.full
@pytest.mark.parametrize("minutes", one_in(2, [-1, 1]))
async def test_no_live_run_is_rescued_although_the_servers_time_moves(
    db: Database, jobs: Collection, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a minute, while a run lasts; its holder and its observers notice it at different moments."""
    workers, reasons = Workers(), list[object]()
    moved = 0.0

    @workers.register("long")
    async def long(job: RunningJob[None]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            reasons.append(job.cancel_reason)

    monkeypatch.setattr(server_time, "measure_clock_offset", lambda _: right_offset() + moved)
    quick: dict[str, Any] = {"heartbeat_interval": 0.2, "poll_interval": 0.05}
    async with open_scheduler(db, workers, shutdown_timeout=0, **ENDURING) as holder, open_scheduler(db, **quick):
        await holder.enqueue("long")
        while not jobs.count_documents({"status": "processing"}):
            await trio.sleep(0.01)
        for step in (60.0 * minutes, 0.0):
            moved = step
            before = beat_of(jobs)
            # It grows, whichever way the time went; the other one looks every tenth of a second.
            while beat_of(jobs) <= before:
                await trio.sleep(0.02)
        assert reasons == []
        assert jobs.count_documents({"status": "processing", "attempts": 1, "rescues": {"$exists": False}}) == 1
    assert reasons == ["shutdown"]


def beat_of(jobs: Collection) -> datetime:
    document = jobs.find_one()
    assert document is not None
    beat = document["lastHeartbeat"]
    assert isinstance(beat, datetime)
    return beat


@pytest.mark.full
@pytest.mark.parametrize("hours", one_in(2, [-1, 1]))
async def test_instance_on_a_machine_whose_clock_is_an_hour_off_works_as_any_other(
    db: Database, jobs: Collection, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "wall_clock", lambda: datetime.now(UTC) + timedelta(hours=hours))
    workers, started, reported = Workers(), dict[str, datetime](), list[object]()

    @workers.register("due")
    async def due(job: RunningJob[str]) -> None:
        started[job.data] = datetime.now(UTC)
        await trio.sleep(0.9)  # In which the other one looks many times.

    quick: dict[str, Any] = {"heartbeat_interval": 0.2, "poll_interval": 0.05}
    heard = {JobClaimLost: reported.append, JobCompleted: reported.append}
    async with (
        open_scheduler(db, workers, listeners=heard, **ENDURING) as scheduler,
        open_scheduler(db, **quick),  # It would rescue what seems dead.
    ):
        asked = datetime.now(UTC)
        await scheduler.enqueue("due", "now")
        await scheduler.enqueue("due", "later", delay=1.5)
        # By another machine, whose clock is right: due at that moment of the server's.
        theirs = ObjectId()
        by_hand = {"_id": theirs, "name": "due", "data": "theirs", "status": "pending", "failCount": 0}
        moment = asked + timedelta(seconds=1.7)
        jobs.insert_one({**by_hand, "nextRunAt": moment, "createdAt": asked, "updatedAt": asked})
        while jobs.count_documents({"status": "completed"}) < 3:
            await trio.sleep(0.02)
    assert [type(event) for event in reported] == [JobCompleted] * 3
    assert jobs.count_documents({"attempts": 1}) == 3
    delays = {name: (moment - asked).total_seconds() for name, moment in started.items()}
    for name, expected in (("now", 0.0), ("later", 1.5), ("theirs", 1.7)):
        # Not early by more than the offset to the server may be wrong by; late by an hour would be the test's end.
        assert delays[name] > expected - 0.5


def test_run_on_the_real_clock_inside_a_thread_of_a_virtual_run_has_real_time() -> None:
    async def inner() -> bool:
        return virtual_time() is None

    async def outer() -> bool:
        assert virtual_time() is not None
        limiter = cast("trio.CapacityLimiter", FreezingLimiter(1))
        return await trio.to_thread.run_sync(partial(trio.run, inner), limiter=limiter)

    assert trio.run(outer, clock=MockClock(autojump_threshold=0))


class LocalTimes(monitoring.CommandListener):
    """What the server answered to each `hello`."""

    def __init__(self) -> None:
        self.reported: list[datetime] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None: ...

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        if event.command_name == "hello":
            self.reported.append(event.reply["localTime"])

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


@pytest.mark.parametrize(
    ("took", "counts"),
    [
        pytest.param([0.2, 0.004], 1, id="the next is good enough"),
        pytest.param([0.2, 0.05, 0.1], 1, id="none is good enough"),
        pytest.param([0.2, 0.1, 0.05], 2, id="each is faster than the one before"),
    ],
)
def test_first_sample_of_a_client_whose_connection_is_opened_meanwhile_does_not_count(
    mongod: Any, monkeypatch: pytest.MonkeyPatch, took: Sequence[float], counts: int
) -> None:
    """Half of what it took would be added to the server's clock, and delayed jobs would start early by that."""
    server = LocalTimes()
    # The moments before and after each sample; were more asked for, there would be none.
    moments = iter([moment for number, seconds in enumerate(took) for moment in (number, number + seconds)])
    monkeypatch.setattr(connection, "steady_clock", lambda: next(moments))
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[server]) as client:
        offset = connection.measure_clock_offset(handle(client["x"]))
    assert len(server.reported) == len(took) <= connection.SAMPLES
    assert offset == pytest.approx(server.reported[counts].timestamp() - counts - took[counts] / 2, abs=1e-6)


def test_clock_offset_is_unknown_if_all_samples_are_too_slow(mongod: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LONGEST_ROUND_TRIP", 0.0)
    with MongoClient[Any](mongod.uri, tz_aware=True) as client:
        assert connection.measure_clock_offset(handle(client["x"])) is None
