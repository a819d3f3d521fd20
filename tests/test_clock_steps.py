"""The clocks of a machine step or stand still: due times go by the server all the same."""

from __future__ import annotations

import ast
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient, monitoring

import trio_monque
from tests.support.internals import beat, context_of, engine_of, next_known_look, parts_of, sources_of
from tests.support.store import handle
from trio_monque import Claim, Monque, RunningJob, Workers, clock, open_claims, open_scheduler, run_claims
from trio_monque.client.rescuer import Rescuer
from trio_monque.client.server_time import MOST_DRIFT, ServerTime
from trio_monque.clock import MOST_DISAGREEMENT, OFFSET_GOOD_FOR, ClockReadings, do_clocks_agree, to_milliseconds
from trio_monque.engine import watchdog
from trio_monque.engine.demand import KnownItem
from trio_monque.engine.waker import NOTHING_DUE
from trio_monque.scheduler.job_finder import JobKey
from trio_monque.store.driver import connection
from trio_monque.store.driver.database_threads import Channel, DatabaseThreads
from trio_monque.store.driver.types import Collection, Database

DAY: Final = 86400.0
HOUR: Final = 3600.0
STEPS: Final = (2 * DAY, -2 * DAY, 300.0)

NEVER_BY_ITSELF: Final[dict[str, Any]] = {"heartbeat_interval": 300.0, "lock_timeout": None, "poll_interval": 0.05}
"""The server's time is not measured with a heartbeat while the test lasts."""

AT_MOST: Final = 10.0
"""Seconds by which a date may differ from the right one on a busy machine: far less than any step."""


class Machine:
    """Whose clocks a test steps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._steady = clock.steady_clock
        self._asleep = 0.0
        # Once, for all suspends: each is then one step, also for a thread that measures the server's time meanwhile.
        patch.setattr(clock, "steady_clock", self._steady_clock)
        patch.setattr(connection, "steady_clock", self._steady_clock)

    def _steady_clock(self) -> float:
        return self._steady() + self._asleep

    def step_wall_clock(self, seconds: float) -> None:
        self._patch.setattr(clock, "wall_clock", lambda: datetime.now(UTC) + timedelta(seconds=seconds))

    def suspend(self, seconds: float) -> None:
        """As seen after the resume. The server's time has not passed: what is known of it is wrong by so much."""
        self._asleep += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """While it is busy, the server takes long to answer: such an answer counts, too, or the time stays unknown."""
    monkeypatch.setattr(connection, "LONGEST_ROUND_TRIP", AT_MOST)
    return Machine(monkeypatch)


class Questions(monitoring.CommandListener):
    """How often the server was asked for its time."""

    def __init__(self) -> None:
        self.count = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.count += event.command_name == "hello"

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


@pytest.fixture
def questions() -> Questions:
    return Questions()


@pytest.fixture
def asked_db(db: Database, mongod: Any, questions: Questions) -> Iterator[Database]:
    """The same database, by a client whose questions are counted."""
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[questions]) as client:
        yield client[db.name]


def is_near(moment: datetime, seconds: float) -> bool:
    """Whether the moment is `seconds` from now, by the server's clock, which is this machine's real one."""
    return abs((moment - datetime.now(UTC)).total_seconds() - seconds) < AT_MOST


# --- What the clocks tell ---

READINGS: Final = ClockReadings(steady=1000.0, awake=500.0, wall=1.8e9)
A_BIT: Final = 2 * MOST_DISAGREEMENT


@pytest.mark.parametrize(
    ("steady", "awake", "wall", "agree"),
    [
        pytest.param(30.0, 30.0, 30.0, True, id="time passed"),
        pytest.param(30.0, 30.0, 30.0 + MOST_DISAGREEMENT / 2, True, id="the readings took their time"),
        pytest.param(30.0, 30.0, 30.0 + 2 * DAY, False, id="wall clock set forward by days"),
        pytest.param(30.0, 30.0, 30.0 - HOUR, False, id="wall clock set back by an hour"),
        pytest.param(30.0, 30.0, 30.0 + A_BIT, False, id="wall clock set forward by a bit"),
        pytest.param(30.0, 30.0, 30.0 - A_BIT, False, id="wall clock set back by a bit"),
        pytest.param(8 * HOUR, 30.0, 8 * HOUR, False, id="suspended"),
        pytest.param(30.0 + A_BIT, 30.0, 30.0 + A_BIT, False, id="suspended for a moment"),
        pytest.param(30.0, 30.0, 8 * HOUR, False, id="paused by the hypervisor, and the wall clock set right"),
        pytest.param(30.0 + HOUR, 30.0, 30.0, False, id="suspended, and the wall clock not set right"),
    ],
)
def test_clocks_agree_while_nothing_but_time_passes(steady: float, awake: float, wall: float, agree: bool) -> None:
    later = ClockReadings(READINGS.steady + steady, READINGS.awake + awake, READINGS.wall + wall)
    assert do_clocks_agree(READINGS, later) is agree


@pytest.mark.full
def test_only_one_module_reads_the_clocks_that_can_be_set() -> None:
    package = Path(trio_monque.__file__).parent
    found = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                read = f"{node.value.id}.{node.attr}"
                if read in {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}:
                    found.append(f"{path.relative_to(package)}: {read}")
    # A preview asks no server: its page and its help name this clock.
    assert found == ["cli/jobs/preview_command.py: datetime.now", "clock.py: datetime.now"]


# --- A client without a scheduler ---


def test_delay_of_the_blocking_client_goes_by_the_server_whatever_the_wall_clock_does(
    asked_db: Database, machine: Machine, questions: Questions
) -> None:
    calls = Monque(asked_db).sync
    calls.enqueue("job", delay=HOUR)
    before = questions.count
    calls.enqueue("job", delay=HOUR)
    assert questions.count == before, "nothing happened: nothing is asked"
    for number, step in enumerate(STEPS, start=1):
        machine.step_wall_clock(step)
        for job in (calls.enqueue("job", delay=HOUR), calls.enqueue("job", delay=HOUR)):
            assert is_near(job.next_run_at, HOUR)
            assert is_near(job.created_at, 0)
        assert before + number <= questions.count <= before + number * connection.SAMPLES, "asked once for each step"
    assert datetime.now(UTC) < calls.schedule("* * * * *", "job").next_run_at < datetime.now(UTC) + timedelta(minutes=1)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_delay_of_the_async_client_goes_by_the_server_on_any_host(db: Database, machine: Machine, backend: str) -> None:
    async def enqueue() -> None:
        monque = Monque(db)
        await monque.enqueue("job", delay=HOUR)
        for step in STEPS:
            machine.step_wall_clock(step)
            assert is_near((await monque.enqueue("job", delay=HOUR)).next_run_at, HOUR)

    anyio.run(enqueue, backend=backend)


def test_time_is_asked_for_again_after_a_suspend(db: Database, machine: Machine) -> None:
    calls = Monque(db).sync
    calls.enqueue("job")
    for seconds in (HOUR, 8 * HOUR, 1.0):
        machine.suspend(seconds)
        before = datetime.now(UTC)
        job = calls.enqueue("job", delay=HOUR)
        error = timedelta(seconds=0.5)
        assert before - error < job.created_at < datetime.now(UTC) + error


def test_what_happens_while_the_time_is_measured_is_noticed(
    db: Database, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monque = Monque(db)
    measure = connection.measure_clock_offset

    def measure_and_be_suspended(reaching: Any) -> float | None:
        offset = measure(reaching)
        monkeypatch.undo()
        Machine(monkeypatch).suspend(HOUR)
        return offset

    monkeypatch.setattr("trio_monque.client.server_time.measure_clock_offset", measure_and_be_suspended)
    context_of(monque).measure_clock_offset()
    assert context_of(monque).is_clock_stale()


def test_sample_during_which_the_machine_was_suspended_does_not_count(
    asked_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By time.monotonic() it took no time, and half of the suspend would be added to the server's time."""
    asleep, real = [0.0, HOUR], clock.steady_clock
    monkeypatch.setattr(connection, "steady_clock", lambda: real() + (asleep.pop(0) if asleep else HOUR))
    assert connection.measure_clock_offset(handle(asked_db)) is None


def test_offset_is_measured_again_once_it_is_old(monkeypatch: pytest.MonkeyPatch, db: Database) -> None:
    known = context_of(Monque(db)).clock
    readings = ClockReadings.now()
    for age, stale in ((OFFSET_GOOD_FOR - 5, False), (OFFSET_GOOD_FOR + 1, True)):
        known.set_offset(0.0, ClockReadings(*(reading - age for reading in readings)))
        assert known.is_stale() is stale


# --- A scheduler ---


@pytest.fixture
def _switch_off_the_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    """But the code under test."""
    monkeypatch.setattr(watchdog, "LOOK_INTERVAL", HOUR)


async def wait_for(jobs: Collection, **wanted: Any) -> dict[str, Any]:
    while (found := jobs.find_one(wanted)) is None:
        await trio.sleep(0.01)
    return dict(found)


@pytest.mark.parametrize("step", STEPS)
async def test_wall_clock_moves_no_due_time_of_a_scheduler(
    db: Database, jobs: Collection, machine: Machine, step: float
) -> None:
    workers, ran = Workers(), list[str]()

    @workers.register("job")
    async def job(job: RunningJob[str]) -> None:
        ran.append(job.data)
        machine.step_wall_clock(step)
        if job.data == "fails":
            await job.scheduler.enqueue("job", "by a handler", delay=HOUR)
            raise ValueError("once")

    options: dict[str, Any] = {"base_retry_interval": HOUR / 2, "retry_jitter": 0, **NEVER_BY_ITSELF}
    async with open_scheduler(db, workers, **options) as scheduler:
        later = await scheduler.enqueue("job", "in an hour", delay=HOUR)
        cron = await scheduler.schedule("0 0 * * *", "job", "cron")
        await scheduler.reschedule_job(cron.id, datetime.now(UTC))
        await wait_for(jobs, _id=cron.id, status="pending", attempts=1)
        await scheduler.enqueue("job", "fails")
        failed = await wait_for(jobs, data="fails", failCount=1, status="pending")
        # It is found by a look, at which what is due is claimed first.
        await scheduler.enqueue("job", "now")
        await wait_for(jobs, data="now", status="completed")
    assert ran == ["cron", "fails", "now"]
    assert is_near(failed["nextRunAt"], HOUR)
    assert is_near((await wait_for(jobs, data="by a handler"))["nextRunAt"], HOUR)
    assert (await wait_for(jobs, _id=later.id))["status"] == "pending"
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    assert (await wait_for(jobs, _id=cron.id))["nextRunAt"] == midnight


@pytest.mark.usefixtures("_switch_off_the_watchdog")
async def test_time_is_asked_for_again_before_the_end_of_a_run_decides_what_is_due_when(
    db: Database, jobs: Collection, machine: Machine
) -> None:
    workers = Workers()

    @workers.register("job")
    async def job(job: RunningJob[str]) -> None:
        machine.suspend(2 * DAY)
        if job.data == "fails":
            raise ValueError("once")

    options: dict[str, Any] = {"base_retry_interval": HOUR / 2, "retry_jitter": 0, **NEVER_BY_ITSELF}
    async with open_scheduler(db, workers, **options) as scheduler:
        await scheduler.enqueue("job", "fails")
        assert is_near((await wait_for(jobs, failCount=1, status="pending"))["nextRunAt"], HOUR)
        cron = await scheduler.schedule("* * * * *", "job")
        await scheduler.reschedule_job(cron.id, datetime.now(UTC))
        next_run = (await wait_for(jobs, _id=cron.id, status="pending", attempts=1))["nextRunAt"]
        assert next_run < datetime.now(UTC) + timedelta(seconds=60 + AT_MOST)


@pytest.mark.usefixtures("_switch_off_the_watchdog")
async def test_time_is_asked_for_again_before_a_transaction_ends_its_job(
    db: Database, jobs: Collection, machine: Machine
) -> None:
    workers = Workers()

    @workers.register("job")
    async def job(job: RunningJob[str]) -> None:
        machine.suspend(2 * DAY)
        await job.transaction(lambda _session: None)

    async with open_scheduler(db, workers, **NEVER_BY_ITSELF) as scheduler:
        await scheduler.enqueue("job")
        assert is_near((await wait_for(jobs, status="completed"))["finishedAt"], 0)


@pytest.mark.usefixtures("_switch_off_the_watchdog")
async def test_time_is_asked_for_again_before_a_claim(db: Database, jobs: Collection, machine: Machine) -> None:
    workers = Workers()

    @workers.register("job")
    async def job(job: RunningJob[str]) -> None: ...

    async with open_scheduler(db, workers, **NEVER_BY_ITSELF) as scheduler:
        later = await scheduler.enqueue("job", "in an hour", delay=HOUR)
        machine.suspend(DAY)
        # By another program, so that no call of ours asks for the time before the claim does.
        now = datetime.now(UTC)
        by_hand = {"name": "job", "status": "pending", "failCount": 0, "nextRunAt": now, "createdAt": now}
        jobs.insert_one({**by_hand, "data": "now", "updatedAt": now})
        await wait_for(jobs, data="now", status="completed")
        assert (await wait_for(jobs, _id=later.id))["status"] == "pending"


@pytest.mark.usefixtures("_switch_off_the_watchdog")
async def test_time_is_asked_for_again_before_an_instance_says_that_it_lives(db: Database, machine: Machine) -> None:
    async with open_scheduler(db, instance_id="one", **NEVER_BY_ITSELF) as scheduler:
        machine.suspend(DAY)
        assert await beat(scheduler)
        (instance,) = await scheduler.instances()
        assert is_near(instance.last_heartbeat, 0)


def test_time_is_asked_for_again_before_a_rescue_decides_what_is_due_when(
    db: Database, jobs: Collection, machine: Machine
) -> None:
    monque = Monque(db)
    monque.sync.enqueue("job")
    now = datetime.now(UTC)
    held = {"status": "processing", "claimedBy": "dead", "lockedAt": now, "lastHeartbeat": now, "rescues": 1}
    token = f"dead:{round(now.timestamp() * 1000)}:x"
    jobs.update_one({}, {"$set": {**held, "heartbeatInterval": 1000, "claimToken": token, "attempts": 1}})
    rescuer = Rescuer(context_of(monque))
    (dead,) = rescuer.look()
    machine.suspend(DAY)
    assert len(rescuer.take([dead])) == 1
    found = jobs.find_one()
    assert found is not None
    assert (found["status"], found["rescues"]) == ("pending", 2)
    assert is_near(found["nextRunAt"], 0)


async def test_what_came_due_while_the_machine_was_suspended_starts_after_the_resume(
    db: Database, machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Trio's clock stood still: by its timers it would be an hour later."""
    workers, ran = Workers(), trio.Event()

    @workers.register("job")
    async def job(job: RunningJob[None]) -> None:
        ran.set()

    await Monque(db).enqueue("job", delay=HOUR)
    options = {**NEVER_BY_ITSELF, "poll_interval": HOUR, "change_stream": False}
    async with open_scheduler(db, workers, **options) as scheduler:
        while next_known_look(scheduler) == NOTHING_DUE:
            await trio.sleep(0.01)
        measure = connection.measure_clock_offset
        monkeypatch.setattr(
            "trio_monque.client.server_time.measure_clock_offset", lambda reaching: (measure(reaching) or 0.0) + HOUR
        )
        machine.suspend(HOUR)
        await ran.wait()
    assert [record.levelno for record in caplog.records if "suspended for 3600" in record.message] == [logging.WARNING]


# --- Documents ---


@pytest.mark.parametrize("happens", ["step", "suspend"])
async def test_locks_of_documents_go_by_the_server(
    db: Database, machine: Machine, happens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LOOK_INTERVAL", HOUR)
    things = db["things"]
    soon = to_milliseconds(datetime.now(UTC)) + timedelta(hours=1)
    waiting = {"by": None, "until": soon, "tries": 1}
    things.insert_many([{"_id": "first"}, {"_id": "second"}, {"_id": "waits", "lock": waiting}])
    worked_on = []

    async def work(claim: Claim[Any]) -> None:
        worked_on.append(claim.id)
        (machine.step_wall_clock if happens == "step" else machine.suspend)(2 * DAY)
        if len(worked_on) == 2:
            claims_done.set()
        raise ValueError("once")

    claims_done = trio.Event()
    options: dict[str, Any] = {"base_retry_interval": HOUR / 2, "retry_jitter": 0, "heartbeat_interval": 300.0}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_claims, things, {}, work, concurrency=1, **options))
        await claims_done.wait()
        for name in ("first", "second"):
            while (failed := things.find_one({"_id": name, "lock.by": None, "lock.tries": 1})) is None:
                await trio.sleep(0.01)
            assert is_near(failed["lock"]["until"], HOUR)
        nursery.cancel_scope.cancel()
    assert sorted(worked_on) == ["first", "second"]
    assert things.find_one({"_id": "waits"}) == {"_id": "waits", "lock": waiting}


@pytest.mark.usefixtures("_switch_off_the_watchdog")
async def test_renewed_lock_of_a_document_says_until_when_by_the_server(db: Database, machine: Machine) -> None:
    """Programs that know only `until` go by it."""
    things = db["things"]
    things.insert_one({"_id": 0})
    async with open_claims(things, {}, heartbeat_interval=300.0) as claims:
        await anext(claims)
        machine.suspend(DAY)
        parts = parts_of(claims)
        await parts.sources.renewals.renew(parts.engine.unfinished)
        lock = (things.find_one() or {})["lock"]
        assert is_near(lock["until"], 900)


# --- Each decision asks for the time ---


@pytest.fixture
def refreshed(monkeypatch: pytest.MonkeyPatch) -> set[trio.lowlevel.Task]:
    """The tasks that have asked, as loops of the scheduler may do at the same moment."""
    tasks, ask = set[trio.lowlevel.Task](), ServerTime.refreshed

    async def ask_and_note(time: ServerTime, db_threads: DatabaseThreads, channel: Channel) -> datetime:
        tasks.add(trio.lowlevel.current_task())
        return await ask(time, db_threads, channel)

    monkeypatch.setattr(ServerTime, "refreshed", ask_and_note)
    return tasks


@pytest.mark.usefixtures("_switch_off_the_watchdog")
async def test_time_is_asked_for_again_before_a_look_at_the_claims_of_others(db: Database, machine: Machine) -> None:
    options: dict[str, Any] = {**NEVER_BY_ITSELF, "poll_interval": HOUR, "change_stream": False}
    async with open_scheduler(db, **options) as scheduler:
        machine.suspend(DAY)
        await sources_of(scheduler).rescues.observe([])
        assert not context_of(scheduler).is_clock_stale()


def test_time_measured_at_a_deposed_primary_is_measured_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    context, primaries = context_of(Monque(db)), [("old", 1)]
    monkeypatch.setattr("trio_monque.client.server_time.known_primary", lambda _: (primaries or [("new", 1)]).pop())
    context.measure_clock_offset()
    assert context.is_clock_stale()


@pytest.mark.parametrize("tz_aware", [True, False])
def test_time_zone_of_the_host_plays_no_part(mongod: Any, monkeypatch: pytest.MonkeyPatch, tz_aware: bool) -> None:
    with MongoClient[Any](mongod.uri, tz_aware=tz_aware) as client, monkeypatch.context() as patch:
        try:
            patch.setenv("TZ", "Pacific/Kiritimati")
            time.tzset()
            offset = connection.measure_clock_offset(handle(client["x"]))
        finally:
            patch.undo()
            time.tzset()
    assert offset is not None
    assert abs(clock.steady_clock() + offset - time.time()) < AT_MOST


@pytest.mark.usefixtures("_switch_off_the_watchdog")
@pytest.mark.parametrize("decision", ["claim", "claim by id", "end of a run"])
async def test_time_is_asked_for_again_before_each_decision_of_a_scheduler(
    db: Database, machine: Machine, decision: str, refreshed: set[trio.lowlevel.Task]
) -> None:
    options: dict[str, Any] = {**NEVER_BY_ITSELF, "poll_interval": HOUR, "change_stream": False}
    async with open_scheduler(db, **options) as scheduler:
        sources, demand = sources_of(scheduler), engine_of(scheduler).slots.demand()
        machine.suspend(DAY)
        match decision:
            case "claim":
                await sources.claims.claim(demand)
            case "claim by id":
                await sources.claims.claim_one(KnownItem(JobKey(ObjectId(), datetime.now(UTC)), "job"), demand)
            case _:
                await sources.settlements.prepare([])
        assert trio.lowlevel.current_task() in refreshed
        assert not context_of(scheduler).is_clock_stale()


@pytest.mark.usefixtures("_switch_off_the_watchdog")
@pytest.mark.parametrize("decision", ["whether anything is left", "rescue", "end of a run"])
async def test_time_is_asked_for_again_before_each_decision_about_documents(
    db: Database, machine: Machine, decision: str, refreshed: set[trio.lowlevel.Task]
) -> None:
    async with open_claims(db["things"], {}, heartbeat_interval=300.0, poll_interval=HOUR) as claims:
        sources = parts_of(claims).sources
        machine.suspend(DAY)
        match decision:
            case "whether anything is left":
                await sources.claims.is_anything_left()
            case "rescue":
                await sources.rescues.rescue([])
            case _:
                await sources.settlements.prepare([])
        assert trio.lowlevel.current_task() in refreshed
        assert not parts_of(claims).time.is_clock_stale()


def test_timers_are_set_again_where_the_servers_time_moves_either_way(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, moved = context_of(Monque(db)), list[float]()
    right = ClockReadings.now().wall - ClockReadings.now().steady
    context.clock.set_offset(right, ClockReadings.now())
    now = 0.0
    context.when_clock_moves(lambda: moved.append(now))
    for now in (0.0, -HOUR, MOST_DRIFT / 2 - HOUR, HOUR, HOUR):
        monkeypatch.setattr(
            "trio_monque.client.server_time.measure_clock_offset", lambda _, seconds=now: right + seconds
        )
        context.measure_clock_offset()
    assert moved == [-HOUR, HOUR]
