"""Leaving ends within its bound whatever listeners do, and tells how many events they did not hear."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from tests.support.internals import emit, parts_of
from tests.support.store import PAST
from trio_monque import Workers, open_claims, open_scheduler
from trio_monque.events import DocumentClaimLost, Event, JobStarted
from trio_monque.jobs.job import Job
from trio_monque.scheduler.events_and_report import SchedulerReport
from trio_monque.store.driver.types import Database, ObjectId

CLEANUP: Final = 0.1
BOUND: Final = CLEANUP + 2.0  # Of a cut; `shutdown_timeout` is 0.
EVENTS: Final = 2000
STARTED: Final = JobStarted(Job(id=ObjectId(), name="job", next_run_at=PAST, created_at=PAST, updated_at=PAST))

Listener = Callable[[Any], Awaitable[None]]


async def shields_a_moment(event: Event) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(0.02)


async def shields_for_long(event: Event) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(1000)


async def swallows_one_cancellation_an_event(event: Event) -> None:
    try:
        await trio.sleep(1000)
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            await trio.sleep(30)


async def raises_a_cancelled_of_its_own(event: Event) -> None:
    leaked: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep(1)
        except trio.Cancelled as cancelled:
            leaked.append(cancelled)
    raise leaked[0]


LISTENERS: Final = (shields_a_moment, shields_for_long, swallows_one_cancellation_an_event)


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("how", ["drain", "cut"])
async def test_scheduler_is_left_in_time_whatever_a_listener_does(
    db: Database, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, listener: Listener, how: str
) -> None:
    with trio.CancelScope() as scope:
        async with open_scheduler(
            db, Workers(), listeners={JobStarted: listener}, shutdown_timeout=0.0, cleanup_timeout=CLEANUP
        ) as scheduler:
            for _ in range(EVENTS):
                emit(scheduler, STARTED)
            await trio.sleep(0.01)
            if how == "cut":
                scope.cancel()
            left_at = trio.current_time()
    assert trio.current_time() - left_at <= BOUND
    report = scheduler.report
    assert report is not None
    assert EVENTS - 0.5 / 0.02 - 5 <= report.undelivered_events <= EVENTS
    assert f"did not receive {report.undelivered_events} events" in caplog.text
    assert ("abandoned listener" in caplog.text) == (listener is not shields_a_moment)


@pytest.mark.parametrize("listener", LISTENERS)
async def test_claims_are_left_in_time_whatever_a_listener_does(
    db: Database, autojump_clock: MockClock, listener: Listener
) -> None:
    async with open_claims(
        db["documents"], {}, listeners={DocumentClaimLost: listener}, shutdown_timeout=0.0, cleanup_timeout=CLEANUP
    ) as claims:
        for number in range(EVENTS):
            parts_of(claims).event_delivery.emit(DocumentClaimLost(number, 1))
        await trio.sleep(0.01)
        left_at = trio.current_time()
    assert trio.current_time() - left_at <= BOUND
    assert claims.report is not None
    assert claims.report.undelivered_events >= EVENTS - 0.5 / 0.02 - 5


async def test_quick_listeners_get_all_events_and_nothing_is_logged(
    db: Database, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Event] = []

    async def hear(event: Event) -> None:
        heard.append(event)

    async with open_scheduler(db, Workers(), listeners={JobStarted: [hear, heard.append]}) as scheduler:
        for _ in range(EVENTS):
            emit(scheduler, STARTED)
    assert len(heard) == 2 * EVENTS
    assert scheduler.report == SchedulerReport()
    assert [record for record in caplog.records if record.name.startswith("trio_monque.events")] == []


async def test_listener_that_leaks_a_cancellation_gets_the_next_event(
    db: Database, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_scheduler(db, Workers(), listeners={JobStarted: raises_a_cancelled_of_its_own}) as scheduler:
        for _ in range(3):
            emit(scheduler, STARTED)
    assert scheduler.report is not None
    assert scheduler.report.undelivered_events == 0
    assert caplog.text.count("raised the Cancelled of its own cancel scope") == 3


def test_run_ends_though_a_listener_that_was_left_behind_is_still_there(mongod: Any) -> None:
    """The end of the whole run cancels it, and waits for it: no task outlives a run of trio."""
    from pymongo import MongoClient

    ended: list[float] = []

    async def lingers(event: Event) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(100)
        ended.append(trio.current_time())

    async def main(db: Database) -> float:
        async with open_scheduler(
            db, Workers(), listeners={JobStarted: lingers}, shutdown_timeout=0.0, cleanup_timeout=CLEANUP
        ) as scheduler:
            emit(scheduler, STARTED)
            await trio.sleep(0.01)
        return trio.current_time()

    with MongoClient[Any](mongod.uri, tz_aware=True) as client:
        try:
            left_at = trio.run(main, client["monque_listeners_left"], clock=MockClock(autojump_threshold=0))
        finally:
            client.drop_database("monque_listeners_left")
    assert left_at <= BOUND + 0.02
    assert [round(moment) for moment in ended] == [100]
