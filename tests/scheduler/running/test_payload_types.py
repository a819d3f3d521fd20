"""Payloads that have a type: checked at each way in, stored as plain BSON, and read before the handler."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from trio.testing import MockClock

from trio_monque import Discard, JobStatus, Monque, NewJob, Retry, RunningJob, Snooze, Workers
from trio_monque.errors import InvalidPayloadError, UnreadablePayloadError, WorkerRegistrationError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain


class Priority(Enum):
    HIGH = "high"


@dataclass
class Line:
    price: Decimal
    tags: set[str] = field(default_factory=set)


@dataclass
class Order:
    id: UUID
    at: datetime
    lines: list[Line]
    priority: Priority = Priority.HIGH
    day: date | None = None
    within: timedelta | None = None


class OrderModel(pydantic.BaseModel):
    id: UUID
    at: datetime
    lines: list[Line]


class OrderStruct(msgspec.Struct):
    id: UUID
    at: datetime
    lines: list[Line]


class OrderDict(TypedDict):
    id: UUID
    at: datetime
    lines: list[Line]


AT = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
# Fixed: it is in the names of tests, which all processes of a run must collect alike.
ONE = UUID("00000000-0000-4000-8000-000000000001")
VALUES: dict[str, Any] = {"id": ONE, "at": AT, "lines": [Line(Decimal("1.50"), {"a"})]}


@pytest.mark.full
@pytest.mark.parametrize(
    ("payload", "data"),
    [
        (Order, Order(**VALUES, day=AT.date(), within=timedelta(hours=1))),
        (OrderModel, OrderModel(**VALUES)),
        (OrderStruct, OrderStruct(**VALUES)),
        (OrderDict, VALUES),
        (list[Order], [Order(**VALUES)]),
        (Order | None, None),
        (UUID, VALUES["id"]),
        (set, {1, 2}),
    ],
    ids=str,
)
async def test_the_handler_gets_what_was_enqueued(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, payload: Any, data: Any
) -> None:
    workers = Workers()
    got: list[Any] = []

    @workers.register("order", payload=payload)
    async def order(job: RunningJob[Any]) -> None:
        got.append(job.data)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue(order, data)
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert got == [data]
    assert type(got[0]) is type(data)


def _order_worker(workers: Workers) -> Any:
    return workers.register("order", lambda job: None, payload=Order)


WAYS_IN: dict[str, Callable[[Monque, Any, Any], Any]] = {
    "enqueue": lambda monque, worker, data: monque.enqueue(worker, data),
    "unique": lambda monque, worker, data: monque.enqueue(worker, data, unique_key="k"),
    "schedule": lambda monque, worker, data: monque.schedule("@daily", worker, data),
    "document": lambda monque, worker, data: monque.document(worker, data),
    "sync.enqueue": lambda monque, worker, data: monque.sync_in_loop.enqueue(worker, data),
    "sync.schedule": lambda monque, worker, data: monque.sync_in_loop.schedule("@daily", worker, data),
    "sync.document": lambda monque, worker, data: monque.sync_in_loop.document(worker, data),
    "NewJob": lambda monque, worker, data: NewJob(worker, data),
    "cron": lambda monque, worker, data: Workers().cron("@daily", "x", data=data, payload=Order)(lambda job: None),
}


@pytest.mark.parametrize("way_in", WAYS_IN.values(), ids=WAYS_IN)
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (Order(ONE, AT, [Line(Decimal(1)), Line("much")]), "data.lines[1].price: must be a number"),  # type: ignore[arg-type]
        (Order(ONE, AT.replace(tzinfo=None), []), " has no time zone: give it one"),
        ({"id": ONE, "at": AT, "lines": []}, "takes Order as its data, not dict"),
        (None, "takes Order as its data, not NoneType"),
    ],
    ids=["path", "naive", "dict", "nothing"],
)
async def test_data_of_another_form_is_refused_at_each_way_in(
    monque: Monque, jobs: Collection, way_in: Callable[[Monque, Any, Any], Any], data: Any, problem: str
) -> None:
    worker = _order_worker(Workers())
    with pytest.raises(InvalidPayloadError, match=re.escape(problem)):
        answer = way_in(monque, worker, data)
        await answer
    assert jobs.count_documents({}) == 0


async def test_each_way_in_stores_the_same(monque: Monque, jobs: Collection) -> None:
    worker = _order_worker(Workers())
    data = Order(**VALUES)
    document = await monque.document(worker, data)
    await monque.enqueue(worker, data)
    await monque.enqueue("order", data)
    await monque.enqueue_many([NewJob(worker, data), NewJob(name="order", data=data)])
    await monque.schedule("@daily", worker, data)
    stored = [found["data"] for found in jobs.find()]
    assert len(stored) == 5
    assert all(one == stored[0] for one in stored)
    assert document["data"]["priority"] == stored[0]["priority"] == "high"


async def test_declared_schedule_runs_with_its_data_and_is_not_written_again_while_it_says_the_same(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    got: list[Any] = []

    def declared() -> Workers:
        workers = Workers()

        @workers.cron("0 0 * * *", "nightly", payload=Order, data=Order(**VALUES))
        async def nightly(job: RunningJob[Order]) -> None:
            got.append(job.data)

        return workers

    async with open_test_scheduler(declared()):
        before = jobs.find_one()
    async with open_test_scheduler(declared()):
        assert jobs.find_one() == before
        await advance(86400)
    assert got == [Order(**VALUES)]


# --- Deploys ---


async def test_an_old_worker_ignores_a_field_that_a_newer_producer_added(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    got: list[Any] = []

    @workers.register("line", payload=list[Line])
    async def line(job: RunningJob[list[Line]]) -> None:
        got.extend(job.data)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("line", [{"price": "1.50", "tags": [], "added": {"by": "a newer release"}}])
        await drain(scheduler)
    assert got == [Line(Decimal("1.50"))]


async def test_data_that_an_old_worker_cannot_read_waits_for_the_new_one(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()
    got: list[Any] = []

    # The error is not one of the handler's: which of these are tried again does not concern it.
    @workers.register("charge", payload=Line, retry_on=ConnectionError)
    async def old(job: RunningJob[Line]) -> None:
        got.append("old")

    async with open_test_scheduler(workers) as scheduler:
        job = await monque.enqueue("charge", {"amount": "1.50"})  # Another process, of the new release.
        await drain(scheduler)
        failed = await monque.get_job(job.id)
        assert failed is not None
        assert (failed.status, failed.fail_count) == (JobStatus.PENDING, 1)
        assert "data.price: is missing: Line needs it" in (failed.fail_reason or "")

        @scheduler.register("charge", payload=dict[str, str], replace=True)
        async def new(job: RunningJob[dict[str, str]]) -> None:
            got.append(job.data["amount"])

        await advance(10)
    assert got == ["1.50"]
    await assert_enqueued(monque, status="completed", count=1)


class Checked(pydantic.BaseModel):
    price: int


@pytest.mark.parametrize(
    ("payload", "lines"),
    [(Line, 1), (Checked, None)],
    ids=["without a cause in code of the user", "with one"],
)
async def test_traceback_of_data_that_cannot_be_read_says_why_once(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, payload: Any, lines: int | None
) -> None:
    workers = Workers()
    workers.register("charge", lambda job: None, payload=payload, discard_on=UnreadablePayloadError)
    async with open_test_scheduler(workers) as scheduler:
        job = await monque.enqueue("charge", {"count": 2})
        await drain(scheduler)
    stored = await monque.get_job(job.id)
    assert stored is not None
    traceback = stored.errors[0]["traceback"]
    assert "UnreadablePayloadError: the stored data cannot be read" in traceback
    if lines is None:
        assert "ValidationError: 1 validation error for Checked" in traceback
    else:
        assert len(traceback.splitlines()) == lines


def _discards(stored: Any) -> Any:
    raise Discard("not for us")


@dataclass
class Discarding:
    price: int

    def __post_init__(self) -> None:
        raise Discard("not for us")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"payload": Line, "discard_on": UnreadablePayloadError}, "data.price: is missing"),
        ({"payload": _discards}, "not for us"),
        ({"payload": Discarding}, "not for us"),
    ],
    ids=["discard_on", "callable", "class"],
)
async def test_data_that_cannot_be_read_fails_for_good_where_that_is_asked_for(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, options: Any, reason: str
) -> None:
    workers = Workers()
    workers.register("charge", lambda job: None, **options)
    stored = {"price": 1} if options["payload"] is Discarding else {}
    async with open_test_scheduler(workers) as scheduler:
        job = await monque.enqueue("charge", stored)
        await drain(scheduler)
        failed = await monque.get_job(job.id)
    assert failed is not None
    assert (failed.status, failed.fail_count) == (JobStatus.FAILED, 1)
    assert reason in (failed.fail_reason or "")


@pytest.mark.parametrize(("raised", "failures"), [(Retry("not yet", after=5.0), 1), (Snooze(after=5.0), 0)])
async def test_class_of_the_payload_may_ask_for_another_attempt(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    autojump_clock: MockClock,
    raised: Exception,
    failures: int,
) -> None:
    calls: list[int] = []

    @dataclass
    class Early:
        price: int

        def __post_init__(self) -> None:
            calls.append(self.price)
            if len(calls) == 1:
                raise raised

    counts: list[int] = []
    workers = Workers()
    workers.register("charge", lambda job: counts.append(job.fail_count), payload=Early)
    async with open_test_scheduler(workers) as scheduler:
        await monque.enqueue("charge", {"price": 1})
        await drain(scheduler)
        await advance(4)
        assert calls == [1]
        await advance(2)
        await drain(scheduler)
    assert (calls, counts) == ([1, 1], [failures])


def takes_order(job: RunningJob[Order]) -> None: ...


async def takes_dict(job: RunningJob[OrderDict]) -> None: ...


def test_handler_annotated_with_a_class_requires_the_payload_option() -> None:
    """Type checkers believe the annotation, and the handler would fail at its first use of a field."""
    with pytest.raises(WorkerRegistrationError, match=r"takes a RunningJob\[Order\], .* add payload=Order"):
        Workers().register("ship", takes_order)
    with pytest.raises(WorkerRegistrationError, match="add payload=Order"):
        Workers().cron("@daily", "ship")(takes_order)
    workers = Workers()
    workers.register("by-type", takes_order, payload=Order)
    workers.register("by-function", takes_order, payload=lambda stored: Order(**stored))
    workers.register("plain-document", takes_dict)
    assert workers.names == ("by-type", "by-function", "plain-document")
