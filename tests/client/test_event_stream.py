"""A stream of events: bounded, in order, and without effect after its end."""

from __future__ import annotations

import anyio
import pytest
import trio
import trio.testing
from bson import ObjectId

from tests.support.store import PAST
from trio_monque.client import EventStream, event_stream
from trio_monque.events import Event, JobCompleted, JobFailed, JobStarted
from trio_monque.jobs.job import Job

JOB = Job(id=ObjectId(), name="x", next_run_at=PAST, created_at=PAST, updated_at=PAST)
STARTED = [JobStarted(JOB) for _ in range(5)]
COMPLETED = JobCompleted(JOB, 1.0)


async def read(stream: EventStream[Event]) -> list[Event]:
    """All of it. Left open, its end would be reported as a leak."""
    try:
        return [event async for event in stream]
    finally:
        stream.close()


def opened(*types: type[Event]) -> EventStream[Event]:
    return EventStream(*types or (Event,))


async def test_slow_reader_loses_the_newest_events_which_are_counted_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_stream, "MOST_WAITING", 3)
    stream = opened()
    for event in STARTED:
        stream.offer(event)
    stream.end()
    assert await read(stream) == STARTED[:3]
    assert (stream.dropped, caplog.text.count("dropped an event")) == (2, 1)


async def test_stream_has_the_events_of_its_types_only() -> None:
    stream = opened(JobStarted, JobFailed)
    for event in (STARTED[0], COMPLETED, STARTED[1]):
        stream.offer(event)
    stream.end()
    assert await read(stream) == STARTED[:2]
    takes = [stream.takes(one) for one in (JobStarted, JobFailed, JobCompleted)]
    assert takes == [True, True, False]


async def test_events_from_a_thread_come_in_order_before_the_end_that_it_gives() -> None:
    stream = opened()

    def offer_all() -> None:
        for event in STARTED:
            stream.offer(event)
        stream.end()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, offer_all)
        with trio.fail_after(30):
            assert await read(stream) == STARTED


@pytest.mark.parametrize("from_thread", [False, True])
async def test_event_for_a_stream_that_was_closed_has_no_effect(*, from_thread: bool) -> None:
    """An error in a callback of the loop would end the program."""
    stream = opened()
    stream.close()
    if from_thread:
        await trio.to_thread.run_sync(stream.offer, COMPLETED)
        await trio.testing.wait_all_tasks_blocked()
    else:
        stream.offer(COMPLETED)
    assert stream.dropped == 0


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_reader_in_another_task_ends_when_the_stream_is_closed(loop: str) -> None:
    async def main() -> None:
        stream, has_ended = opened(), anyio.Event()

        async def listen() -> None:
            assert await read(stream) == []
            has_ended.set()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                await anyio.wait_all_tasks_blocked()
                stream.close()
                await has_ended.wait()
                assert await read(stream) == []

    anyio.run(main, backend=loop)
