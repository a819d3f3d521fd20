"""The client: on every backend, from a module's top level, through the same blocking calls."""

from __future__ import annotations

import inspect
import pydoc
import re
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_origin, get_type_hints

import anyio
import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Interceptor
from tests.support.internals import context_of
from trio_monque import JobStatus, Monque, Workers
from trio_monque.client import (
    bulk,
    enqueue,
    enqueue_many,
    findings_and_overview,
    fleet,
    job_counting,
    lists_and_counts,
    one_job,
    questions,
    recovery,
    schedules,
)
from trio_monque.client.operation import Operation
from trio_monque.client.sync_monque import SyncMonque
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InvalidOptionError, InvalidPayloadError, PayloadTooLargeError
from trio_monque.jobs.job_parts import JobLimits
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain, quiesce

BACKENDS = [("trio", {}), ("asyncio", {}), ("asyncio", {"use_uvloop": True})]


def test_one_client_made_outside_serves_every_backend_one_after_another(db: Database, jobs: Collection) -> None:
    monque = Monque(db)

    async def main(backend: str) -> None:
        async with anyio.create_task_group() as group:
            for number in range(25):  # More at once than there are threads for them.
                group.start_soon(monque.enqueue, "greet", {"backend": backend, "n": number})
        first = (await monque.get_jobs(name="greet", limit=1))[0]
        assert (await monque.get_job(first.id)) == first
        assert (await monque.get_job(str(first.id))) == first

    for backend, options in [*BACKENDS, *BACKENDS]:
        anyio.run(main, backend, backend=backend, backend_options=options)
    assert anyio.run(monque.get_queue_stats, backend="trio").pending == 150
    assert Counter(document["data"]["backend"] for document in jobs.find()) == {"trio": 50, "asyncio": 100}


def test_blocking_calls_are_the_same(db: Database) -> None:
    monque = Monque(db)
    job = monque.sync.enqueue("greet", {"a": 1}, delay=60)
    assert monque.sync.get_job(job.id) == job
    assert list(monque.sync.get_jobs()) == [job]
    assert monque.sync.get_queue_stats().pending == 1


CORE = (
    *(enqueue, enqueue_many, schedules, one_job, bulk, lists_and_counts, fleet, recovery, job_counting),
    *(findings_and_overview, questions),
)


def operations() -> dict[str, Callable[..., object]]:
    """The operations of the core: what it has that takes a context and makes an Operation."""
    found: dict[str, Callable[..., object]] = {}
    for module in CORE:
        for name, made in inspect.getmembers(module, inspect.isfunction):
            if made.__module__ == module.__name__ and name[0] != "_":
                returned = get_type_hints(made).get("return")
                kind = get_origin(returned) or returned
                if isinstance(kind, type) and issubclass(kind, Operation):
                    found[name] = made
    return found


def public(door: type) -> dict[str, Callable[..., object]]:
    return {name: call for name, call in inspect.getmembers(door, inspect.isfunction) if name[0] != "_"}


def test_both_doors_have_every_operation_of_the_core_with_its_signature() -> None:
    """Three are written out on both doors, for the types of their data: so their signatures cannot drift apart.

    A wait is not an operation: it would keep a thread for as long as it lasts.
    """
    waits = {"wait_job", "wait_jobs"}
    for name in waits:
        awaited, blocking = inspect.signature(public(Monque)[name]), inspect.signature(public(SyncMonque)[name])
        assert awaited == blocking
    core = operations()
    assert {"enqueue", "schedule", "cancel_jobs", "get_queue_stats", "pause", "recover_stale_jobs"} <= core.keys()
    for door, others in ((Monque, {"events", "on"}), (SyncMonque, set[str]())):
        assert public(door).keys() - others - waits == core.keys()
        for name, operation in core.items():
            method = inspect.signature(public(door)[name])
            assert list(method.parameters.values())[1:] == list(inspect.signature(operation).parameters.values())[1:]
            made = get_type_hints(operation)["return"]
            (result,) = get_args(made) or get_args(vars(made)["__orig_bases__"][0])
            assert get_type_hints(public(door)[name])["return"] == result, name


def test_help_of_both_doors_has_what_the_core_says() -> None:
    """Those that are written out have it on the async door, where an editor shows it."""
    for name, operation in operations().items():
        awaited, blocking = inspect.getdoc(public(Monque)[name]), inspect.getdoc(public(SyncMonque)[name])
        assert awaited
        if name in ("enqueue", "enqueue_with_outcome", "schedule", "document"):
            assert f"See `Monque.{name}`" in str(blocking)
        else:
            assert awaited == blocking == inspect.getdoc(operation)
            # A long signature is one line, or one line for each parameter from Python 3.13 on.
            assert re.search(rf"{name}\(\s*self", pydoc.plain(pydoc.render_doc(public(Monque)[name])))


async def test_enqueued_job_has_the_fields_that_were_asked_for(db: Database, autojump_clock: MockClock) -> None:
    monque = Monque(db)
    at = datetime(2031, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
    job = await monque.enqueue(
        "greet", [1, None, {"x": 2.5}], run_at=at, unique_key="k", max_attempts=3, max_rescues=1, timeout=4
    )
    assert (job.status, job.next_run_at, job.unique_key) == (JobStatus.PENDING, at, "k")
    assert job.limits == JobLimits(max_attempts=3, max_rescues=1, timeout=4.0)
    assert await monque.get_job(job.id) == job
    now = await monque.enqueue("greet", "x")
    assert now.next_run_at == now.created_at


async def test_unique_key_gives_the_pending_or_processing_job_that_has_it(
    db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    monque = Monque(db)
    first = await monque.enqueue("greet", "first", unique_key="k")
    assert await monque.enqueue("greet", "second", unique_key="k") == first
    jobs.update_one({}, {"$set": {"status": "processing"}})
    assert (await monque.enqueue("greet", "third", unique_key="k")).id == first.id
    assert (await monque.enqueue("other", unique_key="k")).id != first.id
    assert (await monque.enqueue("greet", unique_key="l")).id != first.id
    for status in ("completed", "failed", "cancelled"):
        jobs.update_many({"name": "greet", "uniqueKey": "k"}, {"$set": {"status": status}})
        assert (await monque.enqueue("greet", unique_key="k")).status is JobStatus.PENDING
    assert jobs.count_documents({"name": "greet", "uniqueKey": "k"}) == 4


async def test_concurrent_enqueues_of_one_key_all_get_the_same_job(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    for round_number in range(10):
        got: list[ObjectId] = []

        async def enqueue(key: str, got: list[ObjectId] = got) -> None:
            got.append((await monque.enqueue("greet", unique_key=key)).id)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(enqueue, f"key-{round_number}")
        assert len(got) == 20
        assert len(set(got)) == 1
    assert jobs.count_documents({}) == 10


async def test_what_cannot_be_stored_is_refused_before_anything_is_sent(unused_port: int) -> None:
    with MongoClient[Any]("127.0.0.1", unused_port, serverSelectionTimeoutMS=3_600_000) as client:
        monque = Monque(client["nowhere"], max_payload_size=10)
        with pytest.raises(PayloadTooLargeError):
            await monque.enqueue("greet", "x" * 100)
        with pytest.raises(InvalidPayloadError):
            await monque.enqueue("greet", {1, 2})
        with pytest.raises(InvalidOptionError, match="run_at"):
            await monque.enqueue("greet", run_at=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(InvalidOptionError, match="limit"):
            await monque.get_jobs(limit=0)
        with pytest.raises(InvalidOptionError, match="status"):
            await monque.get_jobs(status="lost")
        assert await monque.get_job("no id at all") is None
        assert await monque.get_job(ObjectId().binary.hex()[:10]) is None


async def test_pages_are_earliest_first_and_filtered(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    base = datetime(2030, 1, 1, tzinfo=UTC)
    for number in (2, 0, 1, 3):
        await monque.enqueue("a" if number < 3 else "b", number, run_at=base + timedelta(days=number))
    jobs.update_one({"data": 1}, {"$set": {"status": "failed"}})
    assert [job.data for job in await monque.get_jobs()] == [0, 1, 2, 3]
    assert [job.data for job in await monque.get_jobs(limit=2, skip=1)] == [1, 2]
    assert [job.data for job in await monque.get_jobs(name="a")] == [0, 1, 2]
    assert [job.data for job in await monque.get_jobs(status="failed")] == [1]
    assert [job.data for job in await monque.get_jobs(name="b", status=["failed", JobStatus.PENDING])] == [3]


async def test_page_leaves_out_malformed_jobs(db: Database, jobs: Collection, caplog: pytest.LogCaptureFixture) -> None:
    monque = Monque(db)
    job = await monque.enqueue("greet")
    jobs.insert_one({"name": "greet", "status": "limbo", "nextRunAt": job.next_run_at})
    for _ in range(3):
        assert list(await monque.get_jobs()) == [job]
    assert caplog.text.count("is not a job") == 1


async def test_statistics_count_by_status_and_name(monque: Monque, jobs: Collection) -> None:
    assert (await monque.get_queue_stats()).total == 0
    for status in ["pending"] * 3 + ["completed"] * 2 + ["failed"]:
        job = await monque.enqueue("a")
        jobs.update_one({"_id": job.id}, {"$set": {"status": status}})
    await monque.enqueue("b")
    jobs.insert_one({"name": "a", "status": "limbo"})
    stats = await monque.get_queue_stats()
    assert (stats.pending, stats.processing, stats.completed, stats.failed, stats.cancelled) == (4, 0, 2, 1, 0)
    assert stats.total == 7
    assert (await monque.get_queue_stats(name="a")).total == 6


async def test_enqueue_wakes_the_scheduler_of_the_same_run_at_once(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("greet", lambda job: None)
    async with open_test_scheduler(workers) as scheduler:
        await advance(10)
        await monque.enqueue("greet")
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=1)
        assert trio.current_time() == 10


async def test_other_collection_is_another_queue(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("greet", lambda job: None)
    async with open_test_scheduler(workers, collection_name="other_jobs") as scheduler:
        await monque.enqueue("greet")
        await scheduler.enqueue("greet")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert (await monque.get_queue_stats()).pending == 1


async def test_weaker_write_concern_is_used_and_says_what_it_voids(
    open_test_scheduler: SchedulerOpener, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("greet", lambda job: None)
    async with open_test_scheduler(workers, write_concern=1) as scheduler:
        await scheduler.enqueue("greet")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert "Guarantees 1 to 4 hold only with 'majority'" in caplog.text
    assert context_of(scheduler).jobs.collection.write_concern.document == {"w": 1}


async def test_calls_while_one_is_held_open_go_on(mongod: EmbeddedServer, db: Database) -> None:
    interceptor = Interceptor()
    entered, release = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        release.wait(50)

    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        monque = Monque(client[db.name], skip_index_creation=True)
        await monque.enqueue("first")
        interceptor.before(lambda name, _: name == "insert", hold)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(monque.enqueue, "held")
            assert await trio.to_thread.run_sync(entered.wait, 50)
            assert (await monque.get_queue_stats()).pending == 1
            release.set()
    assert (await Monque(db).get_queue_stats()).pending == 2
