"""Which scheduler claims which job, in which order, and how many at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import trio
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.interception import Interceptor, Recorder, is_claim, is_look
from tests.support.internals import look_for_jobs
from tests.support.jobs_in_memory import flat
from tests.support.node_peer import NodePeer
from tests.support.store import PAST, handle, insert, stamp
from tests.support.thoroughly import one_in
from trio_monque import Discard, Monque, NewJob, RunningJob, Snooze, Workers, loop_time
from trio_monque.embedded import EmbeddedServer
from trio_monque.engine import claimer as claimer_module
from trio_monque.events import SchedulerErrorOccurred
from trio_monque.scheduler import assembly
from trio_monque.store.driver.types import Collection, Database, MongoClient
from trio_monque.store.jobs import claiming, due
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, fail_next, now, quiesce, start_virtual_time

START = datetime(2026, 3, 1, 12, 20, tzinfo=UTC)


@pytest.fixture
def polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers poll in virtual time as they do in real time, instead of waiting for announcements alone."""
    monkeypatch.setattr(loop_time, "is_run_virtual", lambda: False)
    monkeypatch.setattr(assembly, "JobStream", lambda *_: None)


def batched(names: Sequence[str], count: int) -> Sequence[Sequence[str]]:
    return [names[place : place + count] for place in range(0, len(names), count)]


class Log:
    """Handlers that sleep, and what they saw: who ran what, when, and how many ran at a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.starts: list[float] = []
        self.runs: Counter[Any] = Counter()
        self.instances: Counter[str] = Counter()
        self.running = 0
        self.most = 0

    async def sleep(self, job: RunningJob[Any]) -> None:
        self.starts.append(trio.current_time())
        self.runs[job.id] += 1
        self.instances[job.scheduler.id] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await trio.sleep(self.seconds if job.data is None else job.data)
        self.running -= 1

    def workers(self, **options: Any) -> Workers:
        workers = Workers()
        workers.register("job", self.sleep, **options)
        return workers


# --- Which jobs are claimed ---


async def test_claim_writes_the_holder_of_the_job_and_the_time(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    start_virtual_time(START)
    workers = Workers()
    seen: list[Any] = []
    workers.register("job", lambda job: seen.append(jobs.find_one({"_id": job.id})))
    job = await monque.enqueue("job")
    await trio.sleep(60)
    async with open_test_scheduler(workers, heartbeat_interval=7.25) as scheduler:
        await quiesce()
    (claimed,) = seen
    at = START + timedelta(seconds=60)
    token = claimed.pop("claimToken")
    as_enqueued = {"_id": job.id, "name": "job", "data": None, "nextRunAt": START, "failCount": 0, "createdAt": START}
    assert claimed == as_enqueued | {
        "status": "processing",
        "attempts": 1,
        "claimedBy": scheduler.id,
        "lockedAt": at,
        "lastHeartbeat": at,
        "renewedAt": at,
        "heartbeatInterval": 7250,
        "updatedAt": at,
    }
    assert token.startswith(scheduler.id)


async def test_pending_job_that_has_an_owner_is_reported_once_and_not_claimed(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log(0)
    left_over = [(await monque.enqueue("job")).id for _ in range(3)]
    jobs.update_many({}, {"$set": {"claimedBy": "long gone"}})
    before = list(jobs.find())
    async with open_test_scheduler(log.workers(concurrency=1)) as scheduler:
        await quiesce()
        # They stand at the head of the queue, and block no other job.
        good = await scheduler.enqueue("job")
        for _ in range(5):
            await advance(1)
    assert log.runs == {good.id: 1}
    assert list(jobs.find({"_id": {"$in": left_over}})) == before
    for job_id in left_over:
        assert [str(job_id) in record.getMessage() for record in caplog.records].count(True) == 1
    assert caplog.text.count("still has claimedBy='long gone'") == 3


async def test_job_whose_owner_was_unset_is_claimed(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    log = Log(0)
    job = await monque.enqueue("job")
    jobs.update_one({}, {"$set": {"claimedBy": "long gone"}})
    async with open_test_scheduler(log.workers()):
        await quiesce()
        jobs.update_one({}, {"$unset": {"claimedBy": ""}})
        await advance(1)
    assert log.runs == {job.id: 1}


def test_of_many_simultaneous_claims_on_one_job_exactly_one_wins(db: Database, jobs: Collection) -> None:
    store = handle(db)
    job = insert(store)
    everybody_has_seen_it = threading.Barrier(20)

    def claim(number: int) -> list[str]:
        found = due.look(store, {"greet": 1}, PAST).jobs
        everybody_has_seen_it.wait()
        return [str(flat(taken).claimed_by) for taken in claiming.take(store, found, PAST, stamp(f"us-{number}")).jobs]

    with ThreadPoolExecutor(20) as pool:
        winners = [winner for won in pool.map(claim, range(20)) for winner in won]
    assert len(winners) == 1
    document = jobs.find_one({"_id": job.id})
    assert document is not None
    assert (document["claimedBy"], document["attempts"]) == (winners[0], 1)


async def test_hundred_jobs_are_run_once_each_by_three_instances(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    log = Log(1)
    made = await monque.enqueue_many([NewJob(name="job") for _ in range(100)])
    workers = log.workers()
    async with open_test_scheduler(workers), open_test_scheduler(workers), open_test_scheduler(workers):
        await advance(7)
    assert log.runs == {job.id: 1 for job in made}
    assert len(log.instances) == 3
    assert jobs.count_documents({"status": "completed", "attempts": 1}) == 100


async def test_polls_every_ten_milliseconds_claim_nothing_twice(
    mongod: EmbeddedServer, db: Database, polling: None, jobs: Collection, autojump_clock: MockClock
) -> None:
    log, recorder = Log(0.2), Recorder()
    made = await Monque(db).enqueue_many([NewJob(name="job") for _ in range(12)])
    with MongoClient(mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        open_one, workers = SchedulerOpener(client[db.name]), log.workers(concurrency=10)
        # More slots than jobs: while these run, everybody looks for more.
        async with open_one(workers, poll_interval=0.01), open_one(workers, poll_interval=0.01):
            await trio.sleep(0.5)
    assert recorder.count(is_look) > 50
    assert log.runs == {job.id: 1 for job in made}
    assert jobs.count_documents({"status": "completed", "attempts": 1}) == 12


async def test_jobs_that_another_instance_holds_are_left_alone(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    log, peer = Log(50), NodePeer(jobs)
    theirs = peer.enqueue("job", nextRunAt=PAST)
    before = peer.claim("job", now())
    assert before is not None
    async with open_test_scheduler(log.workers(), heartbeat_interval=5) as holder:
        ours = await holder.enqueue("job")
        await quiesce()
        async with open_test_scheduler(log.workers(), heartbeat_interval=5):
            for _ in range(8):
                await advance(5)
                found = jobs.find_one({"_id": ours.id})
                assert found is not None
                assert (found["status"], found["claimedBy"], found["attempts"]) == ("processing", holder.id, 1)
    assert log.instances == {holder.id: 1}
    assert jobs.find_one({"_id": theirs}) == {**before}


# --- How many at a time ---


async def test_worker_runs_no_more_than_it_may_however_often_it_is_made_to_look(
    open_test_scheduler: SchedulerOpener, polling: None, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    log = Log(0)
    await monque.enqueue_many([NewJob(name="job", data=0.1 + number / 40) for number in range(12)])
    async with open_test_scheduler(log.workers(concurrency=3), poll_interval=0.01) as scheduler:
        for _ in range(100):
            look_for_jobs(scheduler)
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.011)
        await quiesce()
    assert log.most == 3
    assert jobs.count_documents({"status": "completed", "attempts": 1}) == 12


async def test_wakes_during_a_look_cause_one_full_look_more(
    mongod: EmbeddedServer, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    log, interceptor, recorder = Log(1000), Interceptor(), Recorder()
    workers = log.workers()
    workers.register("other", log.sleep)
    unseen = await Monque(db).document("other")
    token = trio.lowlevel.current_trio_token()
    with MongoClient(mongod.uri, tz_aware=True, event_listeners=[interceptor, recorder]) as client:
        async with SchedulerOpener(client[db.name])(workers, shutdown_timeout=0) as scheduler:
            await quiesce()

            def meanwhile() -> None:
                """The look is over and its claim is about to be sent: a job comes that it has not seen."""
                jobs.insert_one(unseen)
                for _ in range(5):
                    trio.from_thread.run_sync(partial(look_for_jobs, scheduler), trio_token=token)

            interceptor.before(is_claim, meanwhile)
            recorder.commands.clear()
            await scheduler.enqueue_many([NewJob(name="job")] * 2)
            await quiesce()
            assert interceptor.times == 1
            # The jobs that were seen still run: no end of them has caused the second look.
            assert (log.running, recorder.count(is_look), trio.current_time()) == (3, 2, 0)


# --- Fairness and refilling ---


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        *one_in(4, ["a", "m", "z"], [1, 3], first=1),
        pytest.param("m", 2, marks=pytest.mark.full),
        pytest.param("m", 5, marks=pytest.mark.full),
    ],
)
async def test_job_of_another_worker_starts_within_a_round_although_others_never_rest(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, slots: int, name: str
) -> None:
    lasts = {"b": 1.0, "n": 1.125, "y": 1.25, name: 1.0}
    workers, starts = Workers(), list[tuple[float, str]]()

    async def work(job: RunningJob[Any]) -> None:
        starts.append((trio.current_time(), job.name))
        if job.name != name:
            await job.scheduler.enqueue(job.name, run_at=PAST)  # Its backlog never ends, and is always older.
        await trio.sleep(lasts[job.name])

    for one in lasts:
        workers.register(one, work, concurrency=5)
    await monque.enqueue_many([NewJob(name=one, run_at=PAST) for one in lasts for _ in range(10) if one != name])
    async with open_test_scheduler(workers, concurrency=slots, shutdown_timeout=0):
        for until in (10.3, 18.3, 26.3):  # Between the instants at which slots become free.
            await trio.sleep(until - trio.current_time())
            starts.clear()
            await monque.enqueue(name, run_at=PAST + timedelta(days=1))
            await trio.sleep(7)
            (started,) = (at for at, one in starts if one == name)
            # The four names take turns, at each instant at which slots become free.
            assert len({at for at, _ in starts if at <= started}) <= 4


@pytest.mark.parametrize("slots", [1, 2])
async def test_priority_orders_names_and_starves_none(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, slots: int
) -> None:
    workers, started = Workers(), list[str]()

    async def work(job: RunningJob[Any]) -> None:
        started.append(job.name)
        await trio.sleep(1)

    workers.register("high", work, priority=3)
    workers.register("low", work, priority=-2)
    # The backlog of the lower one is older, and both outlast the test.
    await monque.enqueue_many([NewJob(name="low", run_at=PAST) for _ in range(30)])
    await monque.enqueue_many([NewJob(name="high") for _ in range(100)])
    async with open_test_scheduler(workers, concurrency=slots, shutdown_timeout=0):
        await trio.sleep(59.5 / slots)
    # Five slots more than in turns of equals, and then it has its turn. (Of those that start at once, any is first.)
    in_turn = ([*["high"] * 6, "low"] * 10)[:60]
    assert [*map(sorted, batched(started, slots))] == [*map(sorted, batched(in_turn, slots))]


ENDS: dict[str, Callable[[], object]] = {
    "success": lambda: None,
    "failure with a retry": lambda: _raise(ValueError("no")),
    "recurring completion": lambda: None,
    "recurring failure": lambda: _raise(ValueError("no")),
    "last failure": lambda: _raise(Discard("no")),
    "snooze": lambda: _raise(Snooze(after=1000)),
}


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(("concurrency", "end"), one_in(2, [1, 2], list(ENDS)))
async def test_slot_is_refilled_at_the_instant_at_which_it_is_free(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    end: str,
    concurrency: int,
) -> None:
    workers, log = Workers(), Log(7)

    @workers.register("job", concurrency=concurrency)
    async def work(job: RunningJob[Any]) -> None:
        await log.sleep(job)
        ENDS[end]()

    await monque.enqueue_many([NewJob(name="job") for _ in range(3 * concurrency)])
    if end.startswith("recurring"):
        jobs.update_many({}, {"$set": {"repeatInterval": "30 4 1 1 *"}})
    async with open_test_scheduler(workers, base_retry_interval=1000):
        await trio.sleep(30)
    assert log.starts == sorted([0.0, 7.0, 14.0] * concurrency)
    assert len(log.runs) == 3 * concurrency


@pytest.mark.parametrize("poll_interval", [0.05, 1.0, 3600.0])
async def test_backlog_takes_as_long_as_its_jobs_whatever_the_poll_interval(
    open_test_scheduler: SchedulerOpener,
    polling: None,
    monque: Monque,
    autojump_clock: MockClock,
    poll_interval: float,
) -> None:
    log = Log(1)
    await monque.enqueue_many([NewJob(name="job") for _ in range(60)])
    async with open_test_scheduler(log.workers(concurrency=4), poll_interval=poll_interval) as scheduler:
        await trio.sleep(15)
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=60)
    assert log.starts == [float(second) for second in range(15) for _ in range(4)]


@pytest.mark.parametrize("command", ["^look for due jobs$", "^claim jobs$"])
async def test_claim_that_fails_is_tried_again_though_nothing_else_happens(
    open_test_scheduler: SchedulerOpener,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setattr(claimer_module, "FIRST_RETRY", 0.001)
    log, reported = Log(1000), list[SchedulerErrorOccurred]()
    error = AutoReconnect("gone")
    async with open_test_scheduler(
        log.workers(), listeners={SchedulerErrorOccurred: reported.append}, shutdown_timeout=0
    ) as scheduler:
        await scheduler.enqueue("job")
        await quiesce()
        with fail_next(scheduler, error, command=command):
            # Two: one alone is claimed without a look.
            await scheduler.enqueue_many([NewJob(name="job")] * 2)
            await trio.sleep(1)
        assert log.starts == [0.0] * 3  # The first one runs all the while.
        if "look" in command:
            # A lost answer to the claim itself is looked up, and reported only if that fails, too.
            assert [event.error.__cause__ for event in reported] == [error]
