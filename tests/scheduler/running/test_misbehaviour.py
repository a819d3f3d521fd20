"""Handlers, listeners and documents that misbehave: each harms its own job at most."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import bson
import pytest
import trio
import trio.lowlevel
from bson import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.internals import after_each_settlement
from tests.support.node_peer import NodePeer
from tests.support.thoroughly import one_in
from trio_monque import Monque, RunningJob, Scheduler, Workers, run_until_signalled
from trio_monque.client.event_delivery import EventDelivery
from trio_monque.errors import InvalidOptionError
from trio_monque.events import JobClaimLost, JobStarted
from trio_monque.scheduler.claiming import JobClaims
from trio_monque.scheduler.events_and_report import SchedulerReport
from trio_monque.scheduler.renewals import JobRenewals
from trio_monque.scheduler.runs import JobRuns
from trio_monque.scheduler.settling import JobSettling
from trio_monque.scheduler.start import SchedulerStart
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain, quiesce, run_virtual


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_handler_may_drain_and_register(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, asynchronous: bool
) -> None:
    workers = Workers()
    ran: list[str] = []

    def act(job: RunningJob[Any]) -> None:
        if not ran:
            assert isinstance(job.scheduler, Scheduler)
            job.scheduler.register("late", lambda job: ran.append("late"))
            job.scheduler.sync_in_loop.enqueue("late")
        else:
            job.scheduler.drain()
        ran.append("first")

    async def act_async(job: RunningJob[Any]) -> None:
        act(job)

    workers.register("job", act_async if asynchronous else act)
    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("job")
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=2)
        assert sorted(ran) == ["first", "late"]
        await scheduler.enqueue("job")
        await scheduler.wait_drained()
    assert jobs.count_documents({"status": "completed"}) == 3


async def test_plain_listener_may_drain(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("job", lambda job: None)
    schedulers: list[Scheduler] = []
    async with open_test_scheduler(workers, listeners={JobStarted: lambda event: schedulers[0].drain()}) as scheduler:
        schedulers.append(scheduler)
        await scheduler.enqueue("job")
        await scheduler.wait_drained()
    assert jobs.count_documents({"status": "completed"}) == 1


async def innocent_job_beside(
    open_test_scheduler: SchedulerOpener, jobs: Collection, handler: Callable[[RunningJob[Any]], Any]
) -> dict[str, Any]:
    """What becomes of a job whose handler misbehaves, while another one runs and the scheduler goes on."""
    workers = Workers()
    workers.register("guilty", handler, max_attempts=1)

    @workers.register("innocent")
    async def innocent(job: RunningJob[Any]) -> None:
        await trio.sleep(10)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("innocent")
        await quiesce()
        await assert_enqueued(scheduler, name="innocent", status="processing", count=1)
        guilty = await scheduler.enqueue("guilty")
        await drain(scheduler)
        await assert_enqueued(scheduler, status=["completed", "failed"], count=2)
        await scheduler.enqueue("innocent")
        await drain(scheduler)
        await assert_enqueued(scheduler, name="innocent", status="completed", count=2)
    document = jobs.find_one({"_id": guilty.id})
    assert document is not None
    return dict(document)


async def leaks_a_cancellation(job: RunningJob[Any]) -> None:
    leaked: BaseException | None = None
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            leaked = error
    assert leaked is not None
    raise leaked


async def leaks_a_cancellation_in_a_group(job: RunningJob[Any]) -> None:
    try:
        await leaks_a_cancellation(job)
    except trio.Cancelled as error:
        raise BaseExceptionGroup("both", [error, ValueError("no")]) from None


async def raises_a_deep_group(job: RunningJob[Any]) -> None:
    error: Exception = ValueError("at the bottom")
    for _ in range(3000):
        error = ExceptionGroup("deeper", [error])
    raise error


async def returns_a_coroutine(job: RunningJob[Any]) -> None: ...


@pytest.mark.full
@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (leaks_a_cancellation, "LeakedCancellationError"),
        (leaks_a_cancellation_in_a_group, "ValueError: no"),
        (raises_a_deep_group, "ValueError: at the bottom"),
        (lambda job: returns_a_coroutine(job), "TypeError: the handler"),
    ],
)
async def test_handler_that_misbehaves_fails_its_own_job_and_no_other(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, handler: Any, reason: str
) -> None:
    document = await innocent_job_beside(open_test_scheduler, jobs, handler)
    assert document["status"] == "failed"
    assert document["failReason"].startswith(reason)


async def test_handler_that_calls_asyncio_fails_with_what_to_use_instead(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def current(job: RunningJob[Any]) -> None:
        await asyncio.sleep(1)

    async def bare(job: RunningJob[Any]) -> None:
        await asyncio.sleep(0)  # Yields to the loop without a word to it.

    workers = Workers()
    workers.register("current", current, max_attempts=1)
    workers.register("bare", bare, max_attempts=1)
    for name in workers.names:
        caplog.clear()
        async with open_test_scheduler(workers) as scheduler:
            await scheduler.enqueue(name)
            await drain(scheduler)
        assert "Handlers run on trio, not on asyncio: use trio.sleep" in caplog.text
        assert "`trio-monque run --loop asyncio`" in caplog.text
        assert 'Workers(loop="asyncio")' in caplog.text


async def test_handler_that_breaks_its_task_ends_the_scheduler_and_strands_nothing(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("breaks")
    async def breaks(job: RunningJob[Any]) -> None:
        await trio.open_nursery().__aenter__()

    @workers.register("sleeps")
    async def sleeps(job: RunningJob[Any]) -> None:
        await trio.sleep(1000)

    with pytest.raises(RuntimeError, match="Nursery stack"):
        async with open_test_scheduler(workers) as scheduler:
            await scheduler.enqueue("sleeps")
            await quiesce()
            await assert_enqueued(scheduler, status="processing", count=1)
            await scheduler.enqueue("breaks")
            await trio.sleep_forever()
    assert jobs.count_documents({"status": "processing"}) == 0
    assert jobs.count_documents({"name": "sleeps", "status": "pending"}) == 1


def test_interrupt_in_the_handlers_own_nursery_is_settled_and_raised_on(
    open_test_scheduler: SchedulerOpener, jobs: Collection
) -> None:
    workers = Workers()

    async def interrupted() -> None:
        raise KeyboardInterrupt

    @workers.register("nursery")
    async def nursery(job: RunningJob[Any]) -> None:
        async with trio.open_nursery() as own:
            own.start_soon(interrupted)

    async def main() -> None:
        async with open_test_scheduler(workers) as scheduler:
            await scheduler.enqueue("nursery")
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        run_virtual(main)
    assert jobs.count_documents({"status": "pending", "failReason": "KeyboardInterrupt"}) == 1


async def test_our_own_loops_are_protected_from_ctrl_c_and_handlers_are_not(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    protected: dict[str, bool] = {}

    def recording(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def record(*arguments: Any, **options: Any) -> Any:
            protected[name] = trio.lowlevel.currently_ki_protected()
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, record)

    recording(JobClaims, "claim")
    recording(JobRuns, "execute")
    recording(JobRuns, "conclude")
    recording(JobSettling, "prepare")
    recording(JobRenewals, "renew")
    recording(EventDelivery, "wait_caught_up")
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        protected["handler"] = trio.lowlevel.currently_ki_protected()
        await trio.sleep(2)

    async with open_test_scheduler(workers, heartbeat_interval=1) as scheduler:
        await scheduler.enqueue("job")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert not protected.pop("handler")
    protected.pop("wait_caught_up")  # In the task of the caller, who may be interrupted.
    assert protected == dict.fromkeys(("claim", "prepare", "conclude", "renew", "execute"), True)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_listener_that_raises_anything_at_all_ends_nothing(
    open_test_scheduler: SchedulerOpener,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    asynchronous: bool,
) -> None:
    def exits(event: JobStarted) -> None:
        raise SystemExit(3)

    async def exits_async(event: JobStarted) -> None:
        exits(event)

    workers = Workers()
    workers.register("job", lambda job: None)
    listener: Any = exits_async if asynchronous else exits
    async with open_test_scheduler(workers, listeners={JobStarted: listener}) as scheduler:
        for _ in range(3):
            await scheduler.enqueue("job")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=3)
    assert caplog.text.count("SystemExit: 3") == 3


FAR = datetime(9999, 12, 31, tzinfo=UTC)


def far_date(document: dict[str, Any], field: str) -> RawBSONDocument:
    """The document with a date in it that Python cannot hold: JavaScript's last one."""
    raw = bson.encode({**document, field: FAR})
    near = bson.encode({"": FAR})[6:14]
    return RawBSONDocument(raw.replace(near, (8_640_000_000_000_000).to_bytes(8, "little")))


def not_text(document: dict[str, Any], field: str) -> RawBSONDocument:
    return RawBSONDocument(bson.encode({**document, field: "@@@@"}).replace(b"@@@@", b"\xff\xfe@@"))


POISON: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a far date in the data": lambda document: far_date({**document, "data": {}}, "data"),
    "a far date of ours": lambda document: far_date(document, "startedAt"),
    "bytes that are no text": lambda document: not_text(document, "failReason"),
    "a timeout that is no number": lambda document: {**document, "timeout": float("nan")},
    "a timeout of zero": lambda document: {**document, "timeout": 0},
    "a counter that is full": lambda document: {**document, "attempts": Int64(2**63 - 1)},
    "a counter that is text": lambda document: {**document, "rescues": "many"},
    "attempts that are null": lambda document: {**document, "attempts": None},
    "failures that are null": lambda document: {**document, "failCount": None},
    "rescues that are null": lambda document: {**document, "rescues": None},
    "a revision that is null": lambda document: {**document, "rev": None},
}


@pytest.mark.full
@pytest.mark.parametrize("poison", one_in(3, list(POISON)))
async def test_poisoned_document_is_left_alone_and_harms_no_other(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    poison: str,
) -> None:
    at = datetime(2020, 1, 1, tzinfo=UTC)
    plain = {"name": "job", "status": "pending", "nextRunAt": at, "createdAt": at, "updatedAt": at, "failCount": 0}
    job_id = bson.ObjectId()
    jobs.insert_one(POISON[poison]({"_id": job_id, **plain}))
    workers = Workers()
    workers.register("job", lambda job: None, concurrency=1)
    async with open_test_scheduler(workers) as scheduler:
        for _ in range(3):
            await scheduler.enqueue("job")
        await quiesce()
        assert jobs.count_documents({"status": "completed"}) == 3
    assert jobs.count_documents({"_id": job_id, "status": "pending"}) == 1
    assert caplog.text.count("is not a job") == 1
    assert len(await monque.get_jobs()) == 3


async def test_counters_that_were_stored_as_doubles_are_whole_numbers(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    NodePeer(jobs).enqueue("job", failCount=1.0, maxRetries=3.0, attempts=2.0)
    seen: list[tuple[int, int]] = []
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        seen.append((job.attempt, job.fail_count))

    async with open_test_scheduler(workers) as scheduler:
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert seen == [(3, 1)]


@pytest.mark.full
async def test_thousands_of_names_are_looked_for(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    for number in range(1500):
        workers.register(f"name-{number}", lambda job: None)
    async with open_test_scheduler(workers) as scheduler:
        for number in (0, 700, 1499):
            await scheduler.enqueue(f"name-{number}")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=3)


async def test_settlement_known_to_be_written_is_not_lost_when_another_must_be_decided_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Both end in one batch; the schedule of the second changed, and the first is claimed again meanwhile."""
    workers = Workers()
    ready = trio.Event()

    @workers.register("once")
    async def once(job: RunningJob[Any]) -> None:
        await ready.wait()

    @workers.register("tick")
    async def tick(job: RunningJob[Any]) -> None:
        await ready.wait()
        jobs.update_one({"_id": job.id}, {"$set": {"repeatInterval": "30 4 1 1 *"}})

    lost: list[JobClaimLost] = []
    async with open_test_scheduler(workers, listeners={JobClaimLost: lost.append}) as scheduler:
        recurring = await scheduler.enqueue("tick", delay=1)
        jobs.update_one({"_id": recurring.id}, {"$set": {"repeatInterval": "* * * * *"}})
        await scheduler.enqueue("once", delay=1)
        rounds: list[int] = []

        def overwrite(settlements: int) -> None:
            rounds.append(settlements)
            jobs.update_many({"status": "completed"}, {"$set": {"receipt": "of a later claim"}})

        after_each_settlement(scheduler, overwrite)
        await advance(1)
        await assert_enqueued(scheduler, status="processing", count=2)
        ready.set()
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
        assert jobs.count_documents({"status": "pending", "finishedAt": {"$exists": True}}) == 1
    assert rounds == [2, 1]
    assert lost == []
    assert scheduler.report is not None
    assert scheduler.report.completed == 2


def test_process_that_is_signalled_drains_and_then_cuts(db: Database, jobs: Collection) -> None:
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        await trio.sleep(job.data)

    async def main(*, cut: bool) -> Any:
        reports: list[Any] = []

        async def run(*, task_status: Any) -> None:
            reports.append(await run_until_signalled(db, workers, task_status=task_status))

        async with trio.open_nursery() as nursery:
            scheduler: Scheduler = await nursery.start(run)
            await scheduler.enqueue("job", 20.0)
            await quiesce()
            await assert_enqueued(scheduler, status="processing", count=1)
            signal.raise_signal(signal.SIGTERM)
            await trio.sleep(1)
            if cut:
                signal.raise_signal(signal.SIGINT)
        return reports[0]

    drained = run_virtual(partial(main, cut=False))
    assert (drained.completed, drained.released) == (1, 0)
    cut = run_virtual(partial(main, cut=True))
    assert (cut.completed, cut.released) == (0, 1)
    assert jobs.count_documents({"status": "pending"}) == 1


@pytest.mark.parametrize("answers", [True, False])
def test_process_that_is_signalled_while_it_starts_hands_out_a_scheduler_that_has_ended(
    db: Database, unused_port: int, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    get_ready = SchedulerStart.get_ready

    async def signalled_before(self: SchedulerStart) -> None:
        signal.raise_signal(signal.SIGTERM)
        await get_ready(self)
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(SchedulerStart, "get_ready", signalled_before)

    async def main(used: Database) -> tuple[Any, Any]:
        reports: list[Any] = []

        async def run(*, task_status: Any) -> None:
            reports.append(await run_until_signalled(used, Workers(), task_status=task_status))

        async with trio.open_nursery() as nursery:
            scheduler: Scheduler = await nursery.start(run)
            await scheduler.wait_drained()
            scheduler.drain()
        return scheduler.report, reports[0]

    with MongoClient[Any]("127.0.0.1", unused_port, serverSelectionTimeoutMS=10) as nowhere:
        in_scheduler, returned = run_virtual(partial(main, db if answers else nowhere[db.name]))
    assert in_scheduler == returned == SchedulerReport()


async def test_errors_of_a_worker_process_are_not_wrapped(db: Database) -> None:
    with pytest.raises(InvalidOptionError, match="poll_interval"):
        await run_until_signalled(db, Workers(), poll_interval=0)
