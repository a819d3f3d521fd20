"""Events between loops and threads: one emits them, another handles them, and neither blocks the other."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_monque import Monque, MonqueError, NewJob, Workers
from trio_monque.errors import InvalidOptionError
from trio_monque.events import Event, JobCancelled
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, assert_enqueued, drain, quiesce


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
async def test_call_from_another_loop_emits_its_event_in_the_loop_of_the_scheduler(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, backend: str
) -> None:
    reported: list[Event] = []

    async def listener(event: JobCancelled) -> None:
        reported.append(event)

    async with open_test_scheduler(listeners={JobCancelled: listener}) as scheduler:
        made = [await scheduler.enqueue("x", delay=99) for _ in range(2)]

        async def elsewhere() -> None:
            assert await scheduler.cancel_job(made[0].id) is not None

        if backend == "trio":
            await trio.to_thread.run_sync(trio.run, elsewhere)
        else:
            await trio.to_thread.run_sync(lambda: asyncio.run(elsewhere()))
        await scheduler.cancel_job(made[1].id)
        await quiesce()
    assert len(reported) == 2


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
async def test_stream_in_another_loop_gets_events_and_ends_with_the_scheduler(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, backend: str
) -> None:
    workers = Workers()
    workers.register("job", lambda job: None)
    reported: list[str] = []
    listening = threading.Event()

    async with open_test_scheduler(workers) as scheduler:

        async def listen() -> None:
            async with scheduler.events(Event) as stream:
                listening.set()
                async for event in stream:
                    reported.append(type(event).__name__)  # noqa: PERF401  # As it happens.

        def run() -> None:
            trio.run(listen) if backend == "trio" else asyncio.run(listen())

        thread = threading.Thread(target=run)
        thread.start()
        await trio.to_thread.run_sync(listening.wait, 50)
        await scheduler.enqueue("job")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    await trio.to_thread.run_sync(thread.join, 50)
    assert not thread.is_alive()
    assert reported == ["JobStarted", "JobCompleted"]


async def test_stream_whose_loop_is_gone_is_in_nobodys_way(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("job", lambda job: None)
    async with open_test_scheduler(workers) as scheduler:
        left_open = scheduler.events(Event)
        streams: list[Any] = []

        def open_and_forget() -> None:
            loop = asyncio.new_event_loop()
            streams.append(loop.run_until_complete(left_open.__aenter__()))
            loop.close()

        await trio.to_thread.run_sync(open_and_forget)
        await scheduler.enqueue("job")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    streams[0].close()


async def test_stream_opened_after_the_end_ends_at_once(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler() as scheduler:
        pass
    async with scheduler.events(Event) as stream:
        assert [event async for event in stream] == []
    with pytest.raises(InvalidOptionError):
        async with scheduler.events():
            pass


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_listener_that_removes_itself_is_called_once(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, asynchronous: bool
) -> None:
    workers = Workers()
    workers.register("job", lambda job: None)
    calls: list[Event] = []

    def once(event: Event) -> None:
        calls.append(event)
        removers.pop()()

    async def once_async(event: Event) -> None:
        once(event)

    async with open_test_scheduler(workers) as scheduler:
        listener: Any = once_async if asynchronous else once
        removers = [scheduler.on(Event, listener)]
        for _ in range(5):
            await scheduler.enqueue("job")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=5)
    assert len(calls) == 1


async def test_plain_listener_that_returns_a_coroutine_is_logged_with_advice(
    db: Database, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def listener(event: Event) -> None: ...

    monque = Monque(db)
    wrapped: Any = lambda event: listener(event)  # noqa: E731
    monque.on(Event, wrapped)
    job = await monque.enqueue("x")
    await monque.cancel_job(job.id)
    assert "give the async function" in caplog.text


async def test_payload_that_the_server_refuses_fails_no_other_caller(db: Database, jobs: Collection) -> None:
    """A validator refuses it: what is wrong with the data alone is found before anything is sent."""
    monque = Monque(db)
    await monque.enqueue("warm-up")
    db.command("collMod", jobs.name, validator={"data": {"$ne": "refused"}})
    outcomes: list[object] = []

    async def enqueue(data: Any) -> None:
        try:
            await monque.enqueue("x", data)
            outcomes.append("stored")
        except MonqueError as error:
            outcomes.append(type(error).__name__)

    async with trio.open_nursery() as nursery:
        for data in (1, "refused", 2, 3):
            nursery.start_soon(enqueue, data)
    assert sorted(map(str, outcomes)) == ["DocumentRefusedError", "stored", "stored", "stored"]
    assert jobs.count_documents({"name": "x"}) == 3


@pytest.mark.parametrize("given", [None, 5, {"a": 1}, "names", [NewJob(name="a b")], iter([NewJob(name="a b")])])
async def test_invalid_list_is_refused_with_an_error_of_the_library(db: Database, given: Any) -> None:
    with pytest.raises(MonqueError):
        await Monque(db).enqueue_many(given)


async def test_second_request_to_cancel_a_run_changes_nothing(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("job")
    async def handler(job: Any) -> None:
        await trio.sleep(5)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("job")
        await quiesce()
        await assert_enqueued(scheduler, status="processing", count=1)
        first = await scheduler.cancel_job(job.id)
        assert first is not None
        assert await scheduler.cancel_job(job.id) == first
