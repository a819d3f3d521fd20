"""A shortage of threads or of memory for a moment, and exceptions whose text misbehaves, end no loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import pytest
import trio
from bson import ObjectId
from trio.testing import MockClock

from tests.support.hostile_errors import HOSTILE
from tests.support.thoroughly import one_in
from trio_monque import JobStatus, Retention, Retry, RunningJob, Workers, open_scheduler, run_claims
from trio_monque.claims.claim import Claim
from trio_monque.client.event_delivery import EventDelivery
from trio_monque.engine import claimer, settler, waker
from trio_monque.events import DocumentFailed, Event, JobCompleted, JobDeleted, JobFailed
from trio_monque.jobs.error_history import LONGEST_REASON, LONGEST_TRACEBACK
from trio_monque.scheduler.runs import JobRuns
from trio_monque.scheduler.settling import JobSettling
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, assert_enqueued, drain
from trio_monque.threads_and_frozen_time import call_in_thread, starting_thread, work_unawaited

LOOPS: Final = frozenset({"settler", "heartbeat", "reaper", "presence", "pruner"})


class Threads:
    """What trio's cache of threads does: it starts them, or there are too many."""

    def __init__(self, start: Callable[..., None]) -> None:
        self._start = start
        self.are_short = False
        self.refused = 0

    def start_thread_soon(self, *arguments: Any, **options: Any) -> None:
        if self.are_short:
            self.refused += 1
            raise RuntimeError("can't start new thread")
        self._start(*arguments, **options)

    @contextmanager
    def short(self) -> Iterator[None]:
        self.are_short = True
        try:
            yield
        finally:
            self.are_short = False


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    from trio import _threads as threads_of_trio

    made = Threads(trio.lowlevel.start_thread_soon)
    monkeypatch.setattr(threads_of_trio, "start_thread_soon", made.start_thread_soon)
    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", made.start_thread_soon)
    for module in (claimer, settler):
        monkeypatch.setattr(module, "LONGEST_RETRY", 0.1)
    monkeypatch.setattr(waker, "RETRY", 0.1)
    return made


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.01)


async def test_shortage_of_threads_for_a_listener_does_not_deny_what_the_call_did(
    threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = EventDelivery()
    delivery.on(JobDeleted, print)
    with threads.short():
        await delivery.deliver_all([JobDeleted(ObjectId())])
    assert "failed for JobDeleted" in caplog.text


def test_shortage_of_threads_for_a_listener_does_not_deny_it_on_asyncio(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        delivery = EventDelivery()
        delivery.on(JobDeleted, print)
        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", start)
            await delivery.deliver_all([JobDeleted(ObjectId())])

    asyncio.run(main())
    assert "failed for JobDeleted" in caplog.text


@pytest.mark.full
async def test_shortage_of_threads_ends_no_loop_and_fails_no_job(db: Database, threads: Threads) -> None:
    workers, may_end, heard = Workers(), trio.Event(), list[Event]()

    @workers.register("async")
    async def asynchronous(job: RunningJob[Any]) -> None:
        await may_end.wait()

    workers.register("plain", lambda job: None)
    workers.register("slow", lambda job: None)

    async with open_scheduler(
        db,
        workers,
        listeners={JobCompleted: heard.append},  # A plain one, which needs a thread.
        heartbeat_interval=3.0,  # The lease lasts from the last renewal before the shortage to the first one after it.
        poll_interval=0.05,
        change_stream=False,
        retention=Retention(completed=3600.0, interval=0.05),
    ) as scheduler:
        await scheduler.enqueue("async")
        await until(lambda: scheduler.statistics().running == 1)
        with threads.short():
            may_end.set()

            def met() -> set[str]:
                return {loop.name for loop in scheduler.health().loops if "can't start" in (loop.last_error or "")}

            await until(lambda: met() >= LOOPS and bool(met() & {"claimer", "waker"}))
        await scheduler.enqueue("plain")
        await until(lambda: len(heard) == 2)
        await until(scheduler.is_healthy)
    assert scheduler.report is not None
    assert (scheduler.report.completed, scheduler.report.failed, scheduler.report.crashed) == (2, 0, ())


@pytest.mark.full
async def test_plain_handler_waits_for_its_thread(
    open_test_scheduler: SchedulerOpener, threads: Threads, autojump_clock: MockClock
) -> None:
    workers, ran = Workers(), list[int]()
    workers.register("plain", lambda job: ran.append(job.attempt), max_attempts=1)
    source_execute = JobRuns.execute

    def execute(self: JobRuns, run: Any) -> Any:
        threads.are_short = True  # From now on, until the first thread of the handler was refused twice.
        return source_execute(self, run)

    async def relieve() -> None:
        while threads.refused < 3:
            await trio.sleep(0.01)
        threads.are_short = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobRuns, "execute", execute)
        async with open_test_scheduler(workers) as scheduler, trio.open_nursery() as nursery:
            await scheduler.enqueue("plain")
            nursery.start_soon(relieve)
            await until(lambda: bool(ran))
            await drain(scheduler)
            await assert_enqueued(scheduler, status="completed")
    assert ran == [1]
    assert scheduler.report is not None
    assert scheduler.report.failed == 0


async def test_settler_survives_a_memory_error_while_it_prepares_settlements(
    open_test_scheduler: SchedulerOpener, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    prepare, failures = JobSettling.prepare, [MemoryError(), MemoryError()]

    def prepare_later(self: JobSettling, settlements: Any) -> Any:
        if failures:
            raise failures.pop()
        return prepare(self, settlements)

    monkeypatch.setattr(JobSettling, "prepare", prepare_later)
    workers = Workers()
    workers.register("job", lambda job: None)
    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("job")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed")
    assert not failures


def misbehave(name: str, kind: str) -> None:
    error = HOSTILE[name]()
    if kind == "cause":
        raise ValueError("outer") from error
    if kind == "group":
        raise BaseExceptionGroup("several", [error, KeyError("beside")])
    raise error


@pytest.mark.full
@pytest.mark.parametrize("kind", one_in(4, ["async", "plain", "cause", "group"]))
async def test_error_whose_text_misbehaves_fails_its_own_job_only(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, kind: str
) -> None:
    workers = Workers()

    def fail(job: RunningJob[str]) -> None:
        misbehave(job.data, kind)

    async def fail_async(job: RunningJob[str]) -> None:
        misbehave(job.data, kind)

    workers.register("fails", fail if kind == "plain" else fail_async, max_attempts=1, concurrency=3)
    async with reported_by_all(open_test_scheduler, workers) as heard:
        pass
    for job in jobs.find({"name": "fails"}):
        assert job["status"] == JobStatus.FAILED
        assert 0 < len(job["failReason"]) <= LONGEST_REASON
        assert all(len(entry["traceback"]) <= LONGEST_TRACEBACK for entry in job["errors"])
    assert len(heard) == len(HOSTILE)


@asynccontextmanager
async def reported_by_all(
    open_test_scheduler: SchedulerOpener,
    workers: Workers,
    listener: Callable[[JobFailed], None] | Callable[[JobFailed], Awaitable[None]] = lambda event: None,
) -> AsyncIterator[list[JobFailed]]:
    """A job "fails" for each kind of error, and beside them one that works; the scheduler ends by itself."""
    heard: list[JobFailed] = []
    workers.register("works", lambda job: None)
    listeners: dict[type[Event], Any] = {JobFailed: [heard.append, listener]}
    async with open_test_scheduler(workers, listeners=listeners) as scheduler:
        for name in HOSTILE:
            await scheduler.enqueue("fails", name)
        await scheduler.enqueue("works")
        await drain(scheduler)
        await assert_enqueued(scheduler, name="works", status="completed")
        yield heard
    assert scheduler.report is not None
    assert scheduler.report.crashed == ()


@pytest.mark.full
async def test_backoff_function_whose_error_misbehaves_costs_its_own_delay_only(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers, left = Workers(), list(HOSTILE)

    def backoff(failures: int, error: BaseException) -> float:
        misbehave(left.pop(), "")
        return 1.0

    @workers.register("fails", max_attempts=2, backoff=backoff)
    async def fail(job: RunningJob[str]) -> None:
        raise ValueError("an ordinary one")

    async with reported_by_all(open_test_scheduler, workers):
        pass
    assert left == []
    assert jobs.count_documents({"name": "fails", "status": "pending", "failCount": 1}) == len(HOSTILE)


@pytest.mark.full
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_listener_with_a_misbehaving_error_gets_the_next_event(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, asynchronous: bool
) -> None:
    workers, heard = Workers(), list[str]()

    @workers.register("fails", max_attempts=1)
    async def fail(job: RunningJob[str]) -> None:
        raise ValueError("an ordinary one")

    class Listener:
        def __call__(self, event: JobFailed) -> None:
            heard.append(event.job.data)
            misbehave(event.job.data, "")

        def __repr__(self) -> str:
            raise RecursionError

    async def listen(event: JobFailed) -> None:
        Listener()(event)

    async with reported_by_all(open_test_scheduler, workers, listen if asynchronous else Listener()):
        pass
    assert sorted(heard) == sorted(HOSTILE)


@pytest.mark.full
async def test_error_whose_text_misbehaves_fails_its_own_document_only(db: Database, autojump_clock: MockClock) -> None:
    documents, heard = db["documents"], list[DocumentFailed]()
    names = list(HOSTILE)
    documents.insert_many([{"_id": number} for number in range(len(names) + 1)])

    async def work(claim: Claim[Any]) -> None:
        number = claim.document["_id"]
        if number < len(names):
            raise HOSTILE[names[number]]()
        await claim.finish({"$set": {"done": True}})

    async def hear(event: DocumentFailed) -> None:
        heard.append(event)

    report = await run_claims(
        documents, {"done": None}, work, wait=False, max_attempts=1, listeners={DocumentFailed: hear}, allow_scan=True
    )
    assert (report.finished, report.failed, report.dead_lettered) == (1, len(names), len(names))
    assert report.crashed == ()
    assert len(heard) == len(names)


async def test_retry_whose_reason_is_huge_is_stored_in_short(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("job", max_attempts=1)
    async def handler(job: RunningJob[Any]) -> None:
        raise Retry("x" * 10_000_000)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("job")
        await drain(scheduler)
    found = jobs.find_one({})
    assert found is not None
    assert len(found["failReason"]) == LONGEST_REASON


def short_of_memory() -> None:
    raise MemoryError


async def test_shortage_inside_of_a_function_is_its_own_error_and_not_one_of_the_start_of_its_thread() -> None:
    with pytest.raises(MemoryError):
        await call_in_thread(short_of_memory, limiter=trio.CapacityLimiter(1))
    with pytest.raises(MemoryError), starting_thread(short_of_memory) as begun:
        begun()


async def test_clean_up_for_which_no_thread_starts_is_logged_and_left_to_a_lease(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", start_thread)
    work_unawaited(short_of_memory)
    assert "could not start a thread for a cleanup" in caplog.text
