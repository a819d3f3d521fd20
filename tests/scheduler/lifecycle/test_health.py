"""What a scheduler says of itself, over the real database: whether it is healthy, and what it has done."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.internals import engine_of, host_of, look_for_dead_claims, sources_of
from tests.support.thoroughly import one_in
from trio_monque import Discard, Health, NewJob, Retry, RunningJob, Snooze, Statistics, Workers
from trio_monque.bridge.handler_loop import ON_TRIO
from trio_monque.engine import pauses
from trio_monque.errors import MonqueConnectionError
from trio_monque.events import Event, JobFailed, ShutdownTimedOut, StaleJobsRecovered
from trio_monque.options_and_defaults import scheduler_config
from trio_monque.scheduler import LoopHealth
from trio_monque.scheduler.scheduler import opened_scheduler
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, crash, drain, fail_next, now, quiesce, start_virtual_time

START = datetime(2030, 1, 1, tzinfo=UTC)
LOOPS = {
    *("claimer", "waker", "settler", "heartbeat", "orphan releaser", "reaper"),
    *("presence", "look for resumes", "follow-ups", "start limits", "nursery sweeper"),
}


def loop_of(health: Health, name: str) -> LoopHealth:
    (loop,) = (loop for loop in health.loops if loop.name == name)
    return loop


# --- When a scheduler is healthy ---


async def test_scheduler_is_healthy_while_it_runs_and_neither_before_nor_after(
    db: Database, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("job", lambda job: None)
    config = scheduler_config({})
    scheduler = opened_scheduler(db, workers, None, None, config, ON_TRIO).public
    assert not scheduler.is_healthy()
    assert scheduler.health().reasons == ("the scheduler has not started",)
    assert scheduler.health().last_database_contact is None
    assert scheduler.statistics().uptime == 0
    async with trio.open_nursery() as nursery:
        await nursery.start(host_of(scheduler).run_in_nursery)
        assert scheduler.is_healthy()
        await scheduler.enqueue("job")
        await drain(scheduler)
        health = scheduler.health()
        assert (health.healthy, health.reasons, health.draining) == (True, (), False)
        assert {loop.name for loop in health.loops} == LOOPS
        scheduler.drain()
        assert scheduler.is_healthy(), "it does what it is asked to"
        assert scheduler.health().draining
    assert not scheduler.is_healthy()
    assert scheduler.health().reasons == ("the scheduler has ended",)
    assert not scheduler.health().healthy


async def test_scheduler_that_could_not_start_is_not_healthy(unused_port: int) -> None:
    uri = f"mongodb://127.0.0.1:{unused_port}"
    with MongoClient[Any](uri, serverSelectionTimeoutMS=50) as client:
        config = scheduler_config({"operation_timeout": 0.2, "start_timeout": 0})
        scheduler = opened_scheduler(client["nowhere"], None, None, None, config, ON_TRIO).public
        with pytest.raises(MonqueConnectionError):
            await host_of(scheduler).run(lambda: None)
    assert not scheduler.is_healthy()


# --- A database that fails ---

# What fails, which loop that stops, and what makes it ask: in virtual time nothing is asked without a reason.
FAULTS = {
    "claim jobs": "claimer",
    "settle jobs": "settler",
    "renew claims": "heartbeat",
    "read the claims": "reaper",
}


@pytest.mark.full
@pytest.mark.parametrize("purpose", FAULTS)
async def test_database_that_fails_turns_it_unhealthy_in_time_with_loop_and_cause_and_healthy_again_after(
    open_test_scheduler: SchedulerOpener,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    purpose: str,
) -> None:
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)  # The outage takes virtual time.
    start_virtual_time(START)
    name = FAULTS[purpose]
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[float]) -> None:
        await trio.sleep(job.data)

    options: dict[str, Any] = {"heartbeat_interval": 30.0, "operation_timeout": 10.0}
    async with open_test_scheduler(workers, **options) as scheduler:
        await scheduler.enqueue("job", 1000.0)
        await quiesce()
        with fail_next(scheduler, AutoReconnect("no primary"), command=purpose, times=None):
            if name == "reaper":
                look_for_dead_claims(scheduler)
            else:
                await scheduler.enqueue("job", 1.0)
            began = trio.current_time()
            while scheduler.is_healthy():
                assert trio.current_time() - began < 1 + 30 + 30 + 1, "the next act, and max(2 * 10, 30)"
                await trio.sleep(0.5)
            assert trio.current_time() - began > 30, "an election is no reason for alarm"
            health = scheduler.health()
        loop = loop_of(health, name)
        assert not health.healthy
        assert health.reasons == (loop.reason,)
        assert loop.reason is not None
        assert f"the {name} has failed for 30." in loop.reason
        assert loop.reason.endswith(f"could not {purpose}: no primary")
        assert loop.lag > 30
        # All of it is in virtual time.
        assert loop.last_error_at is not None
        assert START < loop.last_error_at <= now() < START + timedelta(minutes=2)
        assert loop.last_progress == now() - timedelta(seconds=loop.last_progress_age)
        assert [other for other in health.loops if not other.healthy] == [loop]
        await advance(3)
        assert scheduler.is_healthy()
        healed = loop_of(scheduler.health(), name)
        assert (healed.healthy, healed.reason, healed.lag) == (True, None, 0)
        assert healed.last_error == loop.last_error
        last = scheduler.health().last_database_contact
        assert last is not None
        assert now() - last <= timedelta(seconds=3)


# --- The event loop, and other threads ---


@pytest.mark.full
async def test_handler_that_blocks_the_loop_is_seen_from_a_thread_without_waiting_for_the_loop(
    open_test_scheduler: SchedulerOpener,
) -> None:
    workers = Workers()
    seen: list[Health] = []

    @workers.register("rude")
    async def rude(job: RunningJob[Any]) -> None:
        def look() -> None:
            while not seen or job.scheduler.is_healthy():
                seen.append(job.scheduler.health())
                time.sleep(0.01)
            seen.append(job.scheduler.health())
            counted.append(job.scheduler.statistics())

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()  # The loop is blocked for as long as it looks healthy.

    counted: list[Statistics] = []
    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("rude")
        await drain(scheduler)
        while not scheduler.is_healthy():
            await trio.sleep(0.01)
    (reason,) = seen[-1].reasons
    assert re.match(r"the event loop did not answer for [1-9]", reason)  # How late it was seen is the machine's affair.
    assert seen[-1].event_loop_lag is not None
    assert seen[0].healthy
    assert counted[0].running_by_name == {"rude": 1}


@pytest.fixture
def short_turns() -> Iterator[None]:
    """No thread has the interpreter for long while others wait for it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.full
@pytest.mark.usefixtures("short_turns")
async def test_it_can_be_asked_from_threads_at_any_time(open_test_scheduler: SchedulerOpener) -> None:
    workers = Workers()
    workers.register("job", lambda job: None, concurrency=20)
    over = threading.Event()
    troubles: list[BaseException] = []
    asked: list[Statistics] = []

    def ask() -> None:
        try:
            while not over.is_set():
                scheduler.health()
                asked.append(scheduler.statistics())
                time.sleep(0.0005)  # What it asks about gets on, too.
        except BaseException as error:  # noqa: BLE001
            troubles.append(error)

    async with open_test_scheduler(workers) as scheduler:
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            await scheduler.enqueue_many([NewJob(name="job") for _ in range(300)])
            for number in range(30):
                scheduler.register(f"other-{number}", lambda job: None)
                await scheduler.enqueue(f"other-{number}")
            await drain(scheduler)
        finally:
            over.set()
            for thread in threads:
                await trio.to_thread.run_sync(thread.join)
    assert troubles == []
    assert len(asked) > 10
    assert scheduler.statistics().completed == 330
    assert all(one.completed <= one.claimed <= 330 for one in asked)


async def test_names_that_come_at_any_step_of_an_answer_do_no_harm(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    """As the run may go on at any step of a thread that asks."""
    steps = itertools.count(1)
    added: list[str] = []

    def step(frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes = True
        if next(steps) % 50 == 0:
            added.append(f"other-{len(added)}")
            scheduler.register(added[-1], lambda job: None)
            engine_of(scheduler).slots.take(added[-1])
        return step

    async with open_test_scheduler() as scheduler:
        first = [f"first-{number}" for number in range(20)]
        for name in first:
            scheduler.register(name, lambda job: None)
            engine_of(scheduler).slots.take(name)
        before = sys.gettrace()
        sys.settrace(step)
        try:
            scheduler.health()
            statistics = scheduler.statistics()
        finally:
            sys.settrace(before)
        for name in (*first, *added):
            engine_of(scheduler).slots.free(name)
    assert len(added) > 10
    assert 20 <= len(statistics.running_by_name) < 20 + len(added)


async def test_crashed_loop_is_named_after_the_end_too(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        await trio.sleep(1000)

    async def bug(_: object) -> None:
        raise ZeroDivisionError("a bug")

    during: list[Health] = []

    async def hear(_: ShutdownTimedOut) -> None:
        during.append(scheduler.health())

    with pytest.raises(ZeroDivisionError):
        async with open_test_scheduler(workers, listeners={ShutdownTimedOut: hear}) as scheduler:
            await scheduler.enqueue("job")
            await quiesce()
            monkeypatch.setattr(sources_of(scheduler).renewals, "renew", bug)
            await trio.sleep_forever()
    crashed = "the heartbeat crashed, which stops the scheduler: ZeroDivisionError: a bug"
    assert [health.reasons[0] for health in during] == [crashed]
    assert scheduler.health().reasons == (crashed, "the scheduler has ended")


async def test_health_and_statistics_can_be_written_as_data(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler() as scheduler:
        health = dataclasses.asdict(scheduler.health())
        assert {loop["name"] for loop in health["loops"]} == LOOPS
        assert dataclasses.asdict(scheduler.statistics())["running_by_name"] == {}


# --- Statistics ---

ENDS: dict[str, Callable[[], BaseException | None]] = {
    "completed": lambda: None,
    "failed": lambda: ValueError("no"),
    "retried": lambda: Retry(after=5),
    "discarded": lambda: Discard("useless"),
    "snoozed": lambda: Snooze(after=7),
}


class Ledger:
    """What the events said, and for what no event tells, the handlers."""

    def __init__(self) -> None:
        self.heard: Counter[str] = Counter()
        self.own: Counter[str] = Counter()
        self.cut_short = 0

    @property
    def listeners(self) -> dict[type[Event], Any]:
        return {Event: self.hear}

    async def hear(self, event: Event) -> None:
        self.heard[type(event).__name__] += 1
        if isinstance(event, JobFailed):
            self.heard["retried"] += event.will_retry
        if isinstance(event, ShutdownTimedOut):
            self.cut_short += len(event.jobs)


def all_ends(statistics: Statistics) -> int:
    one = statistics
    return one.completed + one.failed + one.snoozed + one.released + one.cancelled + one.claims_lost


@pytest.mark.full
@pytest.mark.parametrize("seed", one_in(5, range(5)))
async def test_each_run_is_counted_once_by_how_it_ended(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, jobs: Collection, seed: int
) -> None:
    chance = random.Random(seed)
    workers, ledger = Workers(), Ledger()

    @workers.register("job", concurrency=4, max_attempts=3)
    async def handler(job: RunningJob[Any]) -> None:
        await trio.sleep(chance.randrange(5))
        end = "completed" if job.attempt > 6 else chance.choice(list(ENDS))
        ledger.own[end] += 1
        if (error := ENDS[end]()) is not None:
            raise error

    @workers.register("long", concurrency=3)
    async def long(job: RunningJob[Any]) -> None:
        await trio.sleep(100_000)

    async with open_test_scheduler(
        workers, listeners=ledger.listeners, deterministic=True, seed=seed, shutdown_timeout=0.0
    ) as scheduler:
        await scheduler.enqueue_many([NewJob(name="job", delay=chance.randrange(20)) for _ in range(60)])
        held = [await scheduler.enqueue("long") for _ in range(3)]
        pending = await scheduler.enqueue("long")
        for _ in range(120):
            await trio.sleep(chance.random())
            moment = scheduler.statistics()
            assert moment.claimed == all_ends(moment) + moment.running + moment.unsettled
            assert moment.running == sum(moment.running_by_name.values())
            assert moment.running <= 7
            assert moment.free_slots == 7 - moment.running
        await scheduler.cancel_job(pending.id)  # Not a run.
        await scheduler.cancel_job(held[0].id)
        jobs.delete_one({"_id": held[1].id})
        await advance(1000)
        before = scheduler.statistics()
        assert before.running_by_name == {"long": 1}
        assert before.unsettled == 0
    counted = scheduler.statistics()
    own, heard = ledger.own, ledger.heard
    assert counted.claimed == heard["JobStarted"] == sum(own.values()) + 3
    assert counted.completed == heard["JobCompleted"] == own["completed"]
    assert counted.failed == heard["JobFailed"] == own["failed"] + own["retried"] + own["discarded"]
    assert counted.retried == heard["retried"]
    assert counted.discarded == own["discarded"] > 0
    assert counted.snoozed == own["snoozed"] > 0
    assert counted.released == ledger.cut_short == 1
    assert counted.cancelled == heard["JobCancelled"] - 1 == 1
    assert counted.claims_lost == heard["JobClaimLost"] == 1
    assert counted.claimed == all_ends(counted)
    assert (counted.running, counted.unsettled) == (0, 0)
    report = scheduler.report
    assert report is not None
    assert (report.completed, report.failed) == (counted.completed, counted.failed)
    assert report.released == counted.released + counted.snoozed


async def test_recurring_job_that_moves_on_is_retried_and_a_refused_end_is_a_failure(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    start_virtual_time(START)
    workers = Workers()

    @workers.register("hourly", max_attempts=1)
    async def hourly(job: RunningJob[Any]) -> None:
        raise ValueError("no")

    @workers.register("unstorable", store_result=True, max_attempts=1)
    async def unstorable(job: RunningJob[Any]) -> object:
        return object()

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.schedule("0 * * * *", "hourly")
        await scheduler.enqueue("unstorable")
        await advance(3600)
        counted = scheduler.statistics()
    assert (counted.failed, counted.retried, counted.discarded) == (2, 1, 0)


async def test_settlement_whose_answer_was_lost_is_counted_once(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("job", lambda job: None)
    async with open_test_scheduler(workers) as scheduler:
        with (
            fail_next(scheduler, AutoReconnect("gone"), when="after", command="settle jobs"),
            fail_next(scheduler, AutoReconnect("gone"), when="after", command="claim jobs"),
        ):
            await scheduler.enqueue_many([NewJob(name="job") for _ in range(5)])
            await drain(scheduler)
        counted = scheduler.statistics()
    assert (counted.claimed, counted.completed) == (5, 5)


async def test_renewals_and_rescues_and_batches_are_counted(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers, reported = Workers(), list[StaleJobsRecovered]()

    @workers.register("job", concurrency=5)
    async def handler(job: RunningJob[Any]) -> None:
        if job.attempt == 1:
            await trio.sleep_forever()
        await trio.sleep(65)

    # In turns: a look in the middle of a renewal would see some claims renewed, and rescue the others earlier.
    async with open_test_scheduler(workers, deterministic=True) as dying:
        await dying.enqueue_many([NewJob(name="job") for _ in range(3)])
        await quiesce()
        assert dying.statistics().free_slots == 2
        async with open_test_scheduler(workers, listeners={StaleJobsRecovered: reported.append}) as scheduler:
            await advance(31)
            assert (dying.statistics().renewals, scheduler.statistics().renewals) == (3, 0)
            await crash(dying)
            await advance(180)
            counted = scheduler.statistics()
    assert counted.rescued == sum(event.count for event in reported) == 3
    assert counted.claimed == counted.completed == 3
    assert counted.renewals == 2 * 3
    for count, largest in (
        (counted.claim_batches, counted.largest_claim_batch),
        (counted.settlement_batches, counted.largest_settlement_batch),
    ):
        assert 1 <= count <= 3
        assert 1 <= largest <= 3 <= count * largest
    assert (counted.start_lag_average, counted.start_lag_max) == (0, 0), "virtual time stands still meanwhile"
    assert counted.uptime == 31 + 180


async def test_start_lag_is_the_time_from_the_claim_to_the_handler(open_test_scheduler: SchedulerOpener) -> None:
    workers = Workers()
    began: list[float] = []

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        began.append(trio.current_time())

    before = trio.current_time()  # The claim may be asked for while the job is still being inserted.
    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("job")
        await drain(scheduler)
        counted = scheduler.statistics()
    assert 0 < counted.start_lag_average == counted.start_lag_max < began[0] - before


async def test_deterministic_runs_report_the_same_health(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, jobs: Collection
) -> None:
    workers = Workers()

    @workers.register("job", max_attempts=2, backoff=3)
    async def handler(job: RunningJob[float]) -> None:
        await trio.sleep(job.data)
        if job.attempt == 1:
            raise ValueError("no")

    async def one_life() -> list[object]:
        reported: list[object] = []
        began = trio.current_time()
        async with open_test_scheduler(workers, deterministic=True, seed=7) as scheduler:
            await scheduler.enqueue_many([NewJob(name="job", data=float(number)) for number in range(9)])
            for _ in range(20):
                await trio.sleep(1.5)
                health = scheduler.health()
                ages = [(loop.name, round(loop.last_progress_age, 3), loop.lag) for loop in health.loops]
                reported += [
                    sorted(ages),
                    health.reasons,
                    scheduler.statistics(),
                    round(trio.current_time() - began, 3),
                ]
        return reported

    lives = [await one_life() for _ in range(2)]
    assert lives[0] == lives[1]
