"""What a handler that is run alone sees as its scheduler: production's checks, and nothing stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from trio.testing import MockClock

from trio_monque import MonqueError, NewJob, RunningJob, Workers
from trio_monque.errors import (
    InvalidCronError,
    InvalidJobIdentifierError,
    InvalidOptionError,
    InvalidPayloadError,
    PayloadTooLargeError,
)
from trio_monque.jobs.job_parts import Schedule
from trio_monque.testing import NoDatabaseError, run_job

workers = Workers()


@dataclass
class Order:
    number: int
    at: datetime | None = None


@workers.register("charge", payload=Order)
async def charge(job: RunningJob[Order]) -> None: ...


async def test_outcome_lists_the_jobs_that_a_handler_enqueues(autojump_clock: MockClock) -> None:
    tomorrow = datetime(2126, 1, 1, tzinfo=UTC)

    async def handler(job: RunningJob[Any]) -> None:
        order = Order(1)
        first = await job.scheduler.enqueue(charge, order, delay=5, unique_key="k")
        order.number = 2
        assert (first.name, first.status, first.data) == ("charge", "pending", {"number": 1, "at": None})
        assert first.next_run_at - first.created_at == timedelta(seconds=5)
        again = await job.scheduler.enqueue(charge, order, unique_key="k")
        assert again == first  # As production returns the job that has the key.
        itself = await job.scheduler.enqueue(job.name, unique_key=job.unique_key)
        assert itself.id == job.id
        await job.scheduler.enqueue("now", [1])
        await job.scheduler.enqueue_many([NewJob(name="many", run_at=tomorrow)])
        scheduled = await job.scheduler.schedule("@daily", "report", timezone="Europe/Berlin")
        assert scheduled.schedule == Schedule(cron="0 0 * * *", timezone="Europe/Berlin")
        job.scheduler.drain()

    outcome = await run_job(handler, unique_key="me")
    assert outcome.enqueued == (
        NewJob(name="charge", data={"number": 1, "at": None}, delay=5, unique_key="k"),
        NewJob(name="now", data=[1]),
        NewJob(name="many", run_at=tomorrow),
    )
    assert [(new.name, new.cron, new.timezone) for new in outcome.scheduled] == [("report", "@daily", "Europe/Berlin")]
    assert outcome.drained


async def test_what_production_refuses_to_enqueue_is_refused() -> None:
    async def handler(job: RunningJob[Any]) -> None:
        scheduler = job.scheduler
        with pytest.raises(InvalidJobIdentifierError):
            await scheduler.enqueue("no spaces")
        with pytest.raises(InvalidPayloadError, match="takes Order"):
            await scheduler.enqueue(charge, {"number": 1})  # type: ignore[misc]
        with pytest.raises(PayloadTooLargeError):
            await scheduler.enqueue("big", "x" * 100)
        with pytest.raises(InvalidOptionError, match="delay"):
            await scheduler.enqueue("late", delay=-1)
        with pytest.raises(InvalidOptionError, match="NewJob") as caught:
            await scheduler.enqueue_many([NewJob(name="fine"), "job"])  # type: ignore[list-item]
        assert "number 1 (from 0) of 2" in caught.value.__notes__[0]
        with pytest.raises(InvalidCronError):
            await scheduler.schedule("never", "report")
        with pytest.raises(InvalidOptionError, match="on_conflict"):
            await scheduler.schedule("@daily", "report", on_conflict="guess")

    outcome = await run_job(handler, max_payload_size=50)
    assert (outcome.enqueued, outcome.scheduled) == ((), ())


async def test_cancelled_before_it_was_sent_nothing_is_enqueued() -> None:
    async def handler(job: RunningJob[Any]) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await job.scheduler.enqueue("a")
        assert scope.cancelled_caught

    assert (await run_job(handler)).enqueued == ()


async def test_jobs_of_one_key_are_replaced_debounced_or_run_again_as_in_a_database(autojump_clock: MockClock) -> None:
    """Also the job itself, which has its own key while it runs."""
    found = []

    async def handler(job: RunningJob[Any]) -> None:
        for key in ("other", "me"):
            for number, conflict in enumerate(("replace", "debounce", "debounce", "keep")):
                options: Any = {"delay": 10, "max_wait": 15} if conflict == "debounce" else {}
                options |= {"unique_key": key, "on_conflict": conflict}
                found.append(await job.scheduler.enqueue_with_outcome(job.name, number, **options))
                await trio.sleep(8)

    outcome = await run_job(handler, unique_key="me")
    assert [one.outcome for one in found[:4]] == ["created", "replaced", "replaced", "kept"]
    assert [one.outcome for one in found[4:]] == ["again", "again", "again", "kept"]
    # Due 15 seconds after the first of the two that debounce.
    pending, running = found[3].job, found[7].job
    assert pending.debounced_since is not None
    assert (pending.data, pending.next_run_at) == (2, pending.debounced_since + timedelta(seconds=15))
    again = running.again
    assert again is not None
    assert again.debounced_since is not None
    assert (again.data, again.next_run_at) == (2, again.debounced_since + timedelta(seconds=15))
    assert len(outcome.enqueued) == 6


async def test_call_that_needs_a_database_raises_no_database_error() -> None:
    async def handler(job: RunningJob[Any]) -> None:
        assert not hasattr(job.scheduler, "get_jobs")
        with (
            MongoClient[Any](connect=False) as client,
            client.start_session() as session,
            pytest.raises(NoDatabaseError, match="session"),
        ):
            await job.scheduler.enqueue("a", session=session)
        with pytest.raises(InvalidOptionError, match="must be a pymongo ClientSession"):
            await job.scheduler.enqueue("a", session=object())  # type: ignore[call-overload]
        with pytest.raises(NoDatabaseError, match=r"sync\.get_queue_stats"):
            job.scheduler.sync.get_queue_stats()
        with pytest.raises(NoDatabaseError, match=r"job\.transaction"):
            await job.transaction(lambda _: None)
        await job.scheduler.get_job("1")

    with pytest.raises(NoDatabaseError, match=r"job\.scheduler\.get_job is not there.*open_test_scheduler") as caught:
        await run_job(handler)
    assert isinstance(caught.value, MonqueError)


async def test_stand_in_takes_the_place_of_the_scheduler() -> None:
    stand_in = object()

    async def handler(job: RunningJob[Any]) -> None:
        assert job.scheduler is stand_in

    await run_job(handler, scheduler=stand_in)


async def test_schedule_may_be_declared_anew() -> None:
    """On the real clock, where a query for the server's time would need a server."""

    async def handler(job: RunningJob[Any]) -> None:
        for _ in range(2):
            await job.scheduler.schedule("@hourly", "report", unique_key="one", on_conflict="update")

    outcome = await run_job(handler)
    assert [new.unique_key for new in outcome.scheduled] == ["one", "one"]
