"""Listeners: each hears everything of its type in order, and none is in another's way."""

from __future__ import annotations

import threading

import pytest
import trio
from bson import ObjectId
from trio.testing import MockClock

from tests.support.store import PAST
from trio_monque.client import subscription
from trio_monque.client.event_delivery import EventDelivery
from trio_monque.errors import InvalidOptionError
from trio_monque.events import Event, JobCompleted, JobStarted
from trio_monque.jobs.job import Job
from trio_monque.testing import quiesce


def job(name: str) -> Job:
    return Job(id=ObjectId(), name=name, next_run_at=PAST, created_at=PAST, updated_at=PAST)


STARTED = [JobStarted(job(str(number))) for number in range(5)]
COMPLETED = JobCompleted(job("done"), 1.0)


async def test_each_listener_gets_its_types_in_order(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    event_delivery = EventDelivery()
    by_plain: list[Event] = []
    by_async: list[Event] = []
    all_of_it: list[Event] = []
    in_thread: list[bool] = []

    def plain(event: JobStarted) -> None:
        by_plain.append(event)
        in_thread.append(threading.current_thread() is not threading.main_thread())

    async def asynchronous(event: JobStarted) -> None:
        await trio.sleep(1)
        by_async.append(event)

    class Called:
        async def __call__(self, event: JobStarted) -> None:
            await asynchronous(event)

    event_delivery.on(JobStarted, plain)
    event_delivery.on(JobStarted, Called())
    event_delivery.on(Event, all_of_it.append)
    await nursery.start(event_delivery.run)
    for event in STARTED:
        event_delivery.emit(event)
    event_delivery.emit(COMPLETED)
    await event_delivery.wait_caught_up()
    assert by_plain == by_async == STARTED
    assert all_of_it == [*STARTED, COMPLETED]
    assert in_thread == [True] * 5
    assert trio.current_time() == 5
    nursery.cancel_scope.cancel()


async def test_listener_may_be_added_and_removed_while_events_flow(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    event_delivery = EventDelivery()
    await nursery.start(event_delivery.run)
    heard: list[Event] = []
    remove = event_delivery.on(JobStarted, heard.append)
    event_delivery.emit(STARTED[0])
    await event_delivery.wait_caught_up()
    remove()
    remove()
    event_delivery.emit(STARTED[1])
    await quiesce()
    assert heard == STARTED[:1]
    nursery.cancel_scope.cancel()


async def test_slow_listener_misses_events_and_does_not_delay_others(
    autojump_clock: MockClock,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(subscription, "MOST_WAITING", 3)
    event_delivery = EventDelivery()
    heard: list[Event] = []

    async def never_ends(event: Event) -> None:
        await trio.sleep_forever()

    event_delivery.on(Event, never_ends)
    event_delivery.on(Event, heard.append)
    await nursery.start(event_delivery.run)
    for event in STARTED:
        event_delivery.emit(event)
        await quiesce()
    assert heard == STARTED
    event_delivery.emit(COMPLETED)
    assert caplog.text.count("too slow") == 1
    nursery.cancel_scope.cancel()


def test_on_refuses_a_type_that_is_not_an_event_and_a_listener_that_is_not_callable() -> None:
    with pytest.raises(InvalidOptionError):
        EventDelivery().on(int, print)  # type: ignore[type-var]
    with pytest.raises(InvalidOptionError):
        EventDelivery().on(JobStarted, "print")  # type: ignore[arg-type]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_listener_that_removes_itself_gets_none_of_the_waiting_events(
    autojump_clock: MockClock, nursery: trio.Nursery, asynchronous: bool
) -> None:
    event_delivery = EventDelivery()
    heard: list[Event] = []

    def once(event: Event) -> None:
        heard.append(event)
        remove()

    async def once_async(event: Event) -> None:
        once(event)

    remove = event_delivery.on(Event, once_async if asynchronous else once)
    await nursery.start(event_delivery.run)
    for event in STARTED:
        event_delivery.emit(event)
    await event_delivery.wait_caught_up()
    await quiesce()
    event_delivery.emit(COMPLETED)
    await event_delivery.wait_caught_up()
    assert heard == STARTED[:1]
    nursery.cancel_scope.cancel()
