"""What was sent is awaited although cancelled: as long as a clean-up, and never beyond the lease or a bound.

A database that does not answer freezes virtual time: these tests move it on by hand.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import trio
from pymongo.errors import AutoReconnect, ServerSelectionTimeoutError
from trio.testing import MockClock

from tests.support.internals import context_of, interference_of
from tests.support.thoroughly import one_in
from trio_monque import Monque, NewJob, RunningJob, Workers
from trio_monque.client.group_enqueue import Caller, Gathering
from trio_monque.errors import MonqueConnectionError
from trio_monque.events import JobCompleted
from trio_monque.scheduler.running_job import RunCancelled
from trio_monque.store.driver.types import Collection
from trio_monque.store.jobs import claiming
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain, fail_next

T = TypeVar("T")

H = 0.4
LEASE = 3 * H
HANGS: dict[str, Any] = {
    "heartbeat_interval": H,
    "cleanup_timeout": 0.2,
    "lock_timeout": None,
    "operation_timeout": 30.0,
}
STEP = 0.01


class Silence:
    """In place of answers: while it lasts, every command of the clients that it was put before hangs."""

    def __init__(self, *clients: Monque) -> None:
        self.over = threading.Event()
        self.begun = threading.Event()
        self.lasts = False
        for client in clients:
            interference_of(client).append(self)

    def takes(self, purpose: str) -> bool:
        return self.lasts

    def inject(self, call: Callable[[], T]) -> T:
        self.begun.set()
        self.over.wait()
        raise AutoReconnect("silence")

    async def wait_begun(self) -> None:
        """Until something hangs."""
        await trio.to_thread.run_sync(self.begun.wait)


async def pass_time(clock: MockClock, seconds: float) -> None:
    """Lets almost `seconds` pass. What must be over by then needs no more."""
    end = trio.current_time() + seconds - 2 * STEP
    while trio.current_time() < end:
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(STEP)


async def enqueue_in_a_task_inside(job: RunningJob[Any], _: Monque) -> None:
    async with trio.open_nursery() as outer, trio.open_nursery() as inner:
        outer.start_soon(trio.sleep, 0)
        inner.start_soon(job.scheduler.enqueue, "other")


CALLS: dict[str, Callable[[RunningJob[Any], Monque], Awaitable[object]]] = {
    "save": lambda job, _: job.save("state"),
    "enqueue": lambda job, _: job.scheduler.enqueue("other"),
    "enqueue with a key": lambda job, _: job.scheduler.enqueue("other", unique_key="key"),
    "enqueue in a task inside": enqueue_in_a_task_inside,
    "enqueue elsewhere": lambda _, monque: monque.enqueue("other"),
    "read elsewhere": lambda job, monque: monque.get_job(job.id),
}


@pytest.mark.full
@pytest.mark.parametrize(("call", "in_cleanup"), one_in(3, list(CALLS), [False, True]))
async def test_handler_that_waits_for_an_answer_ends_before_its_lease(
    open_test_scheduler: SchedulerOpener, monque: Monque, mock_clock: MockClock, call: str, in_cleanup: bool
) -> None:
    workers = Workers()
    ended = trio.Event()
    took: list[float] = []
    await monque.get_queue_stats()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        silence.lasts = True
        began = trio.current_time()
        try:
            if in_cleanup:
                with job.cleanup(1000):
                    await CALLS[call](job, monque)
            else:
                await CALLS[call](job, monque)
        finally:
            took.append(trio.current_time() - began)
            ended.set()

    async with open_test_scheduler(workers, **HANGS) as scheduler:
        silence = Silence(monque, scheduler)
        await scheduler.enqueue("job")
        await silence.wait_begun()
        await pass_time(mock_clock, LEASE)
        await ended.wait()
        silence.lasts = False
        silence.over.set()
    assert LEASE / 2 < took[0] < LEASE


@pytest.mark.parametrize("who", ["body", "listener"])
async def test_leaving_waits_no_longer_for_the_answers_of_others(
    open_test_scheduler: SchedulerOpener, monque: Monque, mock_clock: MockClock, who: str
) -> None:
    workers = Workers()
    asked = trio.Event()

    async def ask() -> None:
        silence.lasts = True
        asked.set()
        await scheduler.enqueue("other")

    async def hear(_: JobCompleted) -> None:
        await ask()

    workers.register("job", lambda _: None)
    options: dict[str, Any] = {**HANGS, "shutdown_timeout": 0.2}
    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            await asked.wait()
            await silence.wait_begun()
            scope.cancel()
            await pass_time(mock_clock, 0.2 + 2 + 0.1)  # Some steps more than its bound.

        nursery.start_soon(cancel)
        with trio.CancelScope() as scope:
            async with open_test_scheduler(workers, listeners={JobCompleted: hear}, **options) as scheduler:
                silence = Silence(scheduler)
                if who == "body":
                    await ask()
                else:
                    await scheduler.enqueue("job")
                    await trio.sleep_forever()
        silence.over.set()
    assert scope.cancelled_caught
    assert scheduler.report is not None


async def test_caller_is_not_taken_by_a_thread_whose_leader_waits_no_longer() -> None:
    """It would never hear how it ended."""
    gathering, draft = Gathering(), Any
    callers = [Caller(draft) for _ in range(3)]  # type: ignore[arg-type]
    for caller in callers:
        gathering.join(caller)
    assert not gathering.stop(callers[0])
    batch: list[Caller] = []
    gathering.take(callers[0], batch)
    assert batch == []
    assert gathering.leave(callers[0])
    assert callers[1].turn.is_set()


async def test_task_that_outlives_the_run_that_started_it_is_answered_as_any_other(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    """A handler may start something in a nursery of the program's own, which goes on when its lease is over."""
    workers = Workers()
    stored: list[str] = []

    async def goes_on(job: RunningJob[Any]) -> None:
        for number in range(5):
            await trio.sleep(100)
            stored.append((await monque.enqueue("later", unique_key=str(number))).name)
            stored.append((await job.scheduler.enqueue("later")).name)

    @workers.register("starts")
    async def starts(job: RunningJob[Any]) -> None:
        job.resources.start_soon(goes_on, job)

    async with trio.open_nursery() as nursery, open_test_scheduler(workers, resources=nursery) as scheduler:
        await scheduler.enqueue("starts")
        await advance(1000)
    assert stored == ["later"] * 10


# --- Orphaned claims ---


async def test_claim_that_was_disowned_is_given_back_before_leaving_ends(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("job", lambda _: None)
    gone = AutoReconnect("gone")
    async with open_test_scheduler(workers) as scheduler:
        with (
            fail_next(scheduler, gone, when="after", command="claim jobs"),
            fail_next(scheduler, gone, command="check the outcome of a claim") as unknown,
        ):
            await scheduler.enqueue("job")
            while not unknown.happened:
                await trio.lowlevel.checkpoint()
        assert jobs.count_documents({"status": "processing"}) == 1
    assert jobs.count_documents({"status": "pending", "attempts": 1}) == 1


async def test_claim_whose_read_back_finds_no_server_is_not_stranded(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write before it was applied, whatever the error says of being sent."""
    workers = Workers()
    workers.register("job", lambda _: None, concurrency=20)
    count = claiming.MOST_PASTS + 1
    await monque.enqueue_many([NewJob(name="job") for _ in range(count)])
    for number, job in enumerate(await monque.get_jobs()):  # Too many different pasts to be pinned.
        context_of(monque).jobs.collection.update_one({"_id": job.id}, {"$set": {"attempts": number}})
    failed: list[bool] = []

    def fails_once(*arguments: Any) -> Any:
        if not failed:
            failed.append(True)
            raise ServerSelectionTimeoutError("no primary")
        return read_back(*arguments)

    read_back = claiming.read_back
    monkeypatch.setattr(claiming, "read_back", fails_once)
    async with open_test_scheduler(workers) as scheduler:
        await drain(scheduler)
        await assert_enqueued(monque, name="job", status="completed", count=count)
    assert failed


# --- Plain handlers ---


async def test_plain_handler_that_waits_for_an_answer_ends_before_its_lease(
    open_test_scheduler: SchedulerOpener, monque: Monque, mock_clock: MockClock
) -> None:
    """Also where it calls back by trio's own means, which on the run belongs to no task of ours."""
    workers = Workers()
    ended = trio.Event()

    @workers.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        silence.lasts = True
        try:
            trio.from_thread.run(job.scheduler.enqueue, "other")
        finally:
            trio.from_thread.run_sync(ended.set)

    async with open_test_scheduler(workers, **HANGS) as scheduler:
        silence = Silence(monque, scheduler)
        await scheduler.enqueue("plain")
        await silence.wait_begun()
        await pass_time(mock_clock, LEASE)
        await ended.wait()
        silence.lasts = False
        silence.over.set()


async def test_what_a_thread_awaits_is_cancelled_with_its_run(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    ends: list[tuple[float, str]] = []

    @workers.register("plain", timeout=10)
    def plain(job: RunningJob[Any]) -> None:
        try:
            job.from_thread(trio.sleep, 1000)
        except RunCancelled:
            ends.append((job.from_thread(trio.current_time), str(job.cancel_reason)))
            raise

    async with open_test_scheduler(workers, max_attempts=1) as scheduler:
        await scheduler.enqueue("plain")
        await advance(20)
        await assert_enqueued(scheduler, status="failed", count=1)
    assert ends == [(10.0, "timeout")]


async def test_handler_that_unwinds_without_being_cancelled_has_failed(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        raise RunCancelled

    async with open_test_scheduler(workers, max_attempts=1) as scheduler:
        await scheduler.enqueue("plain")
        await drain(scheduler)
        job = await assert_enqueued(scheduler, status="failed")
    assert "nothing had cancelled its run" in str(job.fail_reason)


async def test_call_that_was_never_sent_has_a_known_outcome(monque: Monque) -> None:
    with fail_next(monque, ServerSelectionTimeoutError("no primary"), command="enqueue", times=None):
        with pytest.raises(MonqueConnectionError) as caught:
            await monque.enqueue("job", unique_key="key")
    assert not caught.value.unknown_outcome
