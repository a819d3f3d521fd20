"""Opening a scheduler, opening it again, and shutting it down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import trio
from pymongo.collection import Collection as PyMongoCollection
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.interception import Recorder, is_look
from tests.support.store import PAST, handle
from tests.support.thoroughly import one_in
from trio_monque import Monque, RunningJob, Scheduler, Workers, run_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError
from trio_monque.store.driver.types import Collection, Database, MongoClient
from trio_monque.store.jobs import indexes
from trio_monque.testing import SchedulerOpener, advance, drain, fail_next, quiesce

GONE = AutoReconnect("gone")


class Ran:
    """A worker, and what it ran."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.data: list[Any] = []
        self.workers = Workers()
        self.seconds = seconds

        @self.workers.register("job")
        async def job(job: RunningJob[Any]) -> None:
            self.data.append(job.data)
            await trio.sleep(self.seconds)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def watched(mongod: EmbeddedServer, db: Database, recorder: Recorder) -> Iterator[Database]:
    """The test's database, through a client whose commands are recorded."""
    with MongoClient(mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        yield client[db.name]


def is_index_creation(name: str, _: Any) -> bool:
    return name == "createIndexes"


# --- Indexes ---


async def test_indexes_are_asked_for_once_by_each_client_and_opening_again_changes_none(
    watched: Database, jobs: Collection, recorder: Recorder, autojump_clock: MockClock
) -> None:
    monque = Monque(watched)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(monque.enqueue, "job")
    await monque.enqueue("job")
    assert recorder.count(is_index_creation) == 1
    made = jobs.index_information()
    assert len(made) == len(indexes.ALL) + 1
    for opened in (2, 3):
        async with SchedulerOpener(watched)() as scheduler:
            await scheduler.enqueue("other")
        assert recorder.count(is_index_creation) == opened
    assert jobs.index_information() == made


def stages(plan: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(plan, Mapping):
        if "stage" in plan:
            yield plan
        for key, value in plan.items():
            yield from stages(value if key != "rejectedPlans" else ())
    elif isinstance(plan, list):
        for value in plan:
            yield from stages(value)


def plan_of(database: Database, command: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the server would answer it; leaves out what it ran, so that only plans are there to be looked at."""
    explained: Mapping[str, Any] = database.command({"explain": dict(command), "verbosity": "queryPlanner"})
    return {"plan": [explained[part] for part in ("queryPlanner", "stages") if part in explained]}


def explainable(name: str, command: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The same command, or its statements one by one, without what belongs to its session."""
    own = ("find", "aggregate", "filter", "sort", "limit", "projection", "pipeline", "hint", "cursor")
    if name == "update":
        yield from ({"update": command["update"], "updates": [one]} for one in command["updates"])
    elif name in ("find", "aggregate"):
        yield {key: command[key] for key in own if key in command}


async def test_each_query_of_a_scheduler_uses_an_index_without_a_sort(
    watched: Database, db: Database, recorder: Recorder, autojump_clock: MockClock
) -> None:
    """Looks, claims, owners, heartbeats, settlements and releases, as they are sent in a scheduler's whole life."""
    ran = Ran(seconds=25)

    @ran.workers.cron("* * * * *", "tick")
    async def tick(job: RunningJob[Any]) -> None:
        raise ValueError("no")

    # A history, and not an empty collection, in which each index is as good as any other.
    ended = {**await Monque(db).document("job", run_at=PAST), "status": "completed"}
    db["monque_jobs"].insert_many([{**ended, "_id": number} for number in range(300)])
    async with SchedulerOpener(watched)(ran.workers, heartbeat_interval=10, shutdown_timeout=0) as scheduler:
        job = await scheduler.enqueue("job", unique_key="k")
        await advance(130)
        assert (await scheduler.get_job(job.id)) is not None
        with fail_next(scheduler, GONE, when="after", command="^claim jobs$"):
            await scheduler.enqueue("job")
            await quiesce()
        with (
            fail_next(scheduler, GONE, when="after", command="^claim jobs$"),
            fail_next(scheduler, GONE, command="^check the outcome of a claim$"),
        ):
            await scheduler.enqueue("job")
            await advance(11)
        await scheduler.enqueue("job")
        await quiesce()
    asked = {
        json.dumps(one, default=str): one
        for name, command in recorder.commands
        for one in explainable(name, command)
        if command[name] == "monque_jobs"
    }
    by_owner = [one for one in asked if '"claimedBy": "' in one and '"_id"' not in one]
    assert len(by_owner) >= 3  # The look-up of a lost claim (a renewal and a read), and its release.
    assert any('"$max": {"lastHeartbeat"' in one and '"_id"' in one for one in asked)
    for text, one in asked.items():
        used = list(stages(plan_of(db, one)))
        assert {stage["stage"] for stage in used} & {"IXSCAN", "IDHACK", "EXPRESS_IXSCAN"}, text
        assert not {stage["stage"] for stage in used} & {"COLLSCAN", "SORT"}, text
        names = {stage["indexName"] for stage in used if "indexName" in stage}
        if text in by_owner:
            assert names == {"trio_monque_held"}, text
        elif is_look(next(iter(one)), one):
            assert names == {"trio_monque_claim"}, text


@pytest.mark.parametrize(
    "documented",
    [
        {"status": "pending", "nextRunAt": {"$lte": PAST}, "claimedBy": None},
        {"claimedBy": "us", "status": "processing"},
    ],
    ids=["polling", "owner"],  # Those of recovery and monitoring come with rescues.
)
def test_queries_that_the_documentation_of_monque_shows_use_an_index(db: Database, documented: dict[str, Any]) -> None:
    indexes.ensure(handle(db))
    found = {stage["stage"] for stage in stages(plan_of(db, {"find": "monque_jobs", "filter": documented}))}
    assert "IXSCAN" in found
    assert "COLLSCAN" not in found


# --- Opening and opening again ---


async def test_scheduler_whose_start_failed_can_be_opened_again(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = Ran()

    def fails(*_: object, **__: object) -> None:
        raise GONE

    for _ in range(2):
        with monkeypatch.context() as patched, pytest.raises(MonqueConnectionError) as caught:
            patched.setattr(PyMongoCollection, "create_indexes", fails)
            async with open_test_scheduler(ran.workers, instance_id="us", start_timeout=0):
                pytest.fail("it must not open")
        assert caught.value.__cause__ is GONE
    async with open_test_scheduler(ran.workers, instance_id="us") as scheduler:
        await scheduler.enqueue("job", 1)
        await drain(scheduler)
    assert ran.data == [1]


class BodyError(Exception):
    pass


@pytest.mark.parametrize(
    ("instance_id", "left"), one_in(3, [None, "us"], ["in order", "by an error", "by cancellation"])
)
async def test_opening_again_after_leaving_works_with_the_same_workers_database_and_id(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    left: str,
    instance_id: str | None,
) -> None:
    ran = Ran(seconds=5)
    lives: list[Scheduler] = []
    for life in range(4):
        await monque.enqueue("job", (life, "waited for it"))
        with trio.CancelScope() as scope:
            try:
                async with open_test_scheduler(ran.workers, instance_id=instance_id) as scheduler:
                    lives.append(scheduler)
                    await scheduler.enqueue("job", (life, "came meanwhile"))
                    await drain(scheduler)
                    if left == "by an error":
                        raise BodyError
                    if left == "by cancellation":
                        scope.cancel()
                        await trio.sleep_forever()
            except BodyError:
                pass
        assert scope.cancelled_caught == (left == "by cancellation")
        assert sorted(ran.data[2 * life :]) == [[life, "came meanwhile"], [life, "waited for it"]]
        # Each life has its own report, which begins with nothing.
        report = lives[life].report
        assert report is not None
        assert (report.completed, report.unfinished) == (2, ())
    assert len({one.id for one in lives}) == (4 if instance_id is None else 1)
    assert jobs.count_documents({"status": "completed", "attempts": 1}) == 8


async def test_job_that_was_cut_short_is_run_again_by_the_next_life_of_its_instance(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    ran = Ran(seconds=100)
    for life in range(3):
        async with open_test_scheduler(ran.workers, instance_id="us", shutdown_timeout=0) as scheduler:
            if life == 0:
                await scheduler.enqueue("job")
            await quiesce()
            assert jobs.count_documents({"status": "processing", "claimedBy": "us", "attempts": life + 1}) == 1
    assert len(ran.data) == 3
    assert jobs.count_documents({"status": "pending", "failCount": 0, "claimedBy": None}) == 1


# --- Leaving ---


async def test_error_of_the_body_keeps_the_cause_and_the_context_that_it_had(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    cause, context = KeyError("why"), ValueError("what was going on")
    error = BodyError()
    error.__cause__, error.__context__ = cause, context
    with pytest.raises(BodyError) as caught:
        async with open_test_scheduler():
            raise error
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (cause, context)


async def test_all_callers_of_the_shutdown_wait_for_its_end_and_nothing_more_is_claimed(
    db: Database, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    ran = Ran(seconds=20)
    ended: list[float] = []
    async with trio.open_nursery() as nursery:
        scheduler = await nursery.start(run_scheduler, db, ran.workers)
        await scheduler.enqueue("job", "runs")
        await quiesce()

        async def leave(after: float) -> None:
            await trio.sleep(after)
            scheduler.drain()
            await scheduler.wait_drained()
            ended.append(trio.current_time())

        for after in (0, 0, 5, 19):
            nursery.start_soon(leave, after)
        for client in (monque, scheduler):
            await trio.sleep(1)
            await client.enqueue("job", "too late")
        await advance(10)
        assert ended == []
    assert ended == [20.0] * 4
    scheduler.drain()
    await scheduler.wait_drained()
    assert trio.current_time() == 20.0
    assert ran.data == ["runs"]
    assert jobs.count_documents({"status": "pending", "data": "too late", "attempts": None}) == 2
