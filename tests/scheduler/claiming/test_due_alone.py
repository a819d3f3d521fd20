"""A job that alone is due at its moment: claimed by its id, one command, then one question. Counted, not timed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Interceptor, Recorder, is_claim, is_look
from tests.support.internals import context_of, engine_of, sources_of
from trio_monque import Monque, RunningJob, Workers
from trio_monque.embedded import EmbeddedServer
from trio_monque.engine.demand import Granted, KnownItem
from trio_monque.events import JobStarted
from trio_monque.scheduler.job_finder import JobKey
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, assert_enqueued, now, quiesce


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def recorded(mongod: EmbeddedServer, db: Database, recorder: Recorder) -> Iterator[Database]:
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        yield client[db.name]


@pytest.fixture
def starts() -> list[tuple[Any, float]]:
    """Which jobs started, and how many virtual seconds after they were due."""
    return []


@pytest.fixture
def workers(starts: list[tuple[Any, float]]) -> Workers:
    workers = Workers()

    @workers.register("greet", concurrency=5)
    async def greet(job: RunningJob[Any]) -> None:
        starts.append((job.data, (now() - job.next_run_at) / timedelta(seconds=1)))

    return workers


def is_question(name: str, command: Any) -> bool:
    return name == "find" and "projection" in command and "$gt" in str(command["filter"])


def commands(recorder: Recorder) -> list[str]:
    return [name for name, _ in recorder.commands if name not in ("getMore", "hello", "endSessions")]


async def test_delayed_job_is_claimed_by_its_id_exactly_when_it_is_due(
    recorded: Database, recorder: Recorder, workers: Workers, starts: list[Any], autojump_clock: MockClock
) -> None:
    async with SchedulerOpener(recorded)(workers) as scheduler:
        for number in range(3):
            await scheduler.enqueue("greet", number, delay=10 + 100 * number)
        await quiesce()
        for number in range(3):
            recorder.commands.clear()
            await trio.sleep(100)
            await quiesce()
            assert sorted(commands(recorder)) == ["find", "findAndModify", "update"]
            assert (recorder.count(is_claim), recorder.count(is_look)) == (1, 0)
            assert starts == [(one, 0.0) for one in range(number + 1)]


@pytest.mark.parametrize("attempts", [0, 3])
async def test_job_found_by_a_look_is_claimed_by_its_id_after_any_number_of_attempts(
    recorded: Database,
    recorder: Recorder,
    jobs: Collection,
    workers: Workers,
    starts: list[Any],
    attempts: int,
    autojump_clock: MockClock,
) -> None:
    job = await Monque(recorded).enqueue("greet", "found", delay=50)
    jobs.update_one({"_id": job.id}, {"$set": {"attempts": attempts}})
    async with SchedulerOpener(recorded)(workers) as scheduler:
        await quiesce()
        recorder.commands.clear()
        await trio.sleep(1000)
        await assert_enqueued(scheduler, status="completed", count=1)
        stored = await scheduler.get_job(job.id)
    assert (recorder.count(is_claim), recorder.count(is_look)) == (1, 0)
    assert starts == [("found", 0.0)]
    assert stored is not None
    assert stored.attempts == attempts + 1


async def test_two_that_are_due_at_one_moment_are_looked_for(
    recorded: Database, recorder: Recorder, workers: Workers, starts: list[Any], autojump_clock: MockClock
) -> None:
    client = Monque(recorded)
    moment = now() + timedelta(seconds=50)
    for number in range(2):
        await client.enqueue("greet", number, run_at=moment)
    async with SchedulerOpener(recorded)(workers):
        await quiesce()
        recorder.commands.clear()
        await trio.sleep(1000)
        assert (recorder.count(is_claim), recorder.count(is_look)) == (1, 1)
    assert sorted(starts) == [(0, 0.0), (1, 0.0)]


@pytest.mark.full
@pytest.mark.parametrize(
    "change",
    [
        {"$set": {"status": "cancelled"}},
        {"$set": {"status": "processing", "claimedBy": "another"}},
        {"$unset": {"name": True}},
    ],
)
async def test_job_changed_without_notice_is_not_run_and_the_next_one_is(
    recorded: Database,
    recorder: Recorder,
    jobs: Collection,
    workers: Workers,
    starts: list[Any],
    change: Any,
    autojump_clock: MockClock,
) -> None:
    async with SchedulerOpener(recorded)(workers) as scheduler:
        gone = await scheduler.enqueue("greet", "gone", delay=10)
        await scheduler.enqueue("greet", "next", delay=20)
        await quiesce()
        jobs.update_one({"_id": gone.id}, change)
        recorder.commands.clear()
        await trio.sleep(100)
        assert (recorder.count(is_claim), recorder.count(is_look)) == (2, 0)
    assert starts == [("next", 0.0)]


async def test_job_postponed_without_notice_runs_at_its_new_time(
    recorded: Database, jobs: Collection, workers: Workers, starts: list[Any], autojump_clock: MockClock
) -> None:
    async with SchedulerOpener(recorded)(workers) as scheduler:
        job = await scheduler.enqueue("greet", "put off", delay=10)
        await quiesce()
        jobs.update_one({"_id": job.id}, {"$set": {"nextRunAt": job.next_run_at + timedelta(seconds=33)}})
        await trio.sleep(100)
    assert starts == [("put off", 0.0)]


async def test_job_claimed_and_released_without_notice_is_found_by_a_look(
    recorded: Database, recorder: Recorder, jobs: Collection, workers: Workers, starts: list[Any], autojump_clock: Any
) -> None:
    async with SchedulerOpener(recorded)(workers) as scheduler:
        job = await scheduler.enqueue("greet", "given back", delay=10)
        await quiesce()
        jobs.update_one({"_id": job.id}, {"$set": {"attempts": 3}})
        recorder.commands.clear()
        await trio.sleep(100)
        assert (recorder.count(is_claim), recorder.count(is_look)) == (2, 1)
    assert starts == [("given back", 0.0)]


async def test_suspect_is_looked_for(
    recorded: Database, recorder: Recorder, jobs: Collection, workers: Workers, starts: list[Any], autojump_clock: Any
) -> None:
    job = await Monque(recorded).enqueue("greet", "suspect", delay=10)
    jobs.update_one({"_id": job.id}, {"$set": {"attempts": 2, "rescues": 2}})
    async with SchedulerOpener(recorded)(workers):
        await quiesce()
        recorder.commands.clear()
        await trio.sleep(100)
        assert recorder.count(is_claim) == 1
        assert recorder.count(is_look) > 0
    assert starts == [("suspect", 0.0)]


async def test_paused_one_waits_until_it_is_resumed(
    recorded: Database, recorder: Recorder, workers: Workers, starts: list[Any], autojump_clock: MockClock
) -> None:
    client = Monque(recorded)
    async with SchedulerOpener(recorded)(workers) as scheduler:
        await scheduler.enqueue("greet", "paused", delay=10)
        await quiesce()
        await client.pause("greet")
        await trio.sleep(20)
        assert (starts, recorder.count(is_claim)) == ([], 0)
        await client.resume("greet")
        await quiesce()
    assert [data for data, _ in starts] == ["paused"]


async def test_on_a_real_clock_the_claim_is_on_its_way_and_not_sent_before_it_is_due(
    mongod: EmbeddedServer, db: Database, recorder: Recorder, workers: Workers, starts: list[Any]
) -> None:
    interceptor, sent = Interceptor(), list[float]()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[interceptor, recorder]) as client:
        async with SchedulerOpener(client[db.name])(workers, change_stream=False, poll_interval=30.0) as scheduler:
            while not recorder.count(is_question):
                await trio.sleep(0.01)
            clock = context_of(scheduler).clock
            due = clock.now() + timedelta(seconds=0.3)
            interceptor.before(is_claim, lambda: sent.append(clock.seconds_until(due)))
            async with scheduler.events(JobStarted) as started:
                await scheduler.enqueue("greet", "real", run_at=due)
                await anext(started)
    assert sent[0] <= 0
    # By its id, and at the first attempt.
    assert [name for name, command in recorder.commands if is_claim(name, command)] == ["findAndModify"]
    assert [data for data, _ in starts] == ["real"]


async def test_one_that_is_not_due_yet_by_the_servers_time_is_left_to_a_look(
    recorded: Database, recorder: Recorder, workers: Workers, starts: list[Any], autojump_clock: MockClock
) -> None:
    """As where that was measured anew since the timer was set."""
    async with SchedulerOpener(recorded)(workers) as scheduler:
        job = await scheduler.enqueue("greet", "later", delay=10)
        await quiesce()
        early = KnownItem(JobKey(job.id, job.next_run_at), "greet")
        assert await sources_of(scheduler).claims.claim_one(early, engine_of(scheduler).slots.demand()) == Granted(
            [], more=True
        )
        assert (recorder.count(is_claim), starts) == (0, [])


async def test_of_a_fleet_each_other_instance_loses_one_command_and_asks_once(
    recorded: Database, recorder: Recorder, workers: Workers, starts: list[Any], autojump_clock: MockClock
) -> None:
    opened = SchedulerOpener(recorded)
    async with opened(workers) as one, opened(workers), opened(workers):
        await one.enqueue("greet", "for one", delay=10)
        await quiesce()
        recorder.commands.clear()
        await trio.sleep(100)
        await quiesce()
        assert recorder.count(is_claim) <= 3
        assert (recorder.count(is_look), commands(recorder).count("find")) == (0, 3)
    assert starts == [("for one", 0.0)]
