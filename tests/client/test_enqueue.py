"""enqueue: what it stores, unique keys, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.fast_driver import fast_driver
from tests.support.interception import Recorder
from tests.support.thoroughly import in_full
from trio_monque import JobStatus, Monque, NewJob, RunningJob, Workers
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import (
    InvalidJobIdentifierError,
    InvalidOptionError,
    InvalidPayloadError,
    MonqueConnectionError,
    PayloadTooLargeError,
)
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain


@dataclass
class Email:
    to: str
    copies: list[str]


async def test_new_job_is_pending_and_due_now_by_enqueue_and_by_now(db: Database, autojump_clock: MockClock) -> None:
    monque = Monque(db)
    before = (await monque.enqueue("clock")).created_at
    await trio.sleep(5)
    job = await monque.enqueue("greet", {"a": 1})
    assert (job.status, job.fail_count, job.data) == (JobStatus.PENDING, 0, {"a": 1})
    assert job.created_at == job.updated_at == job.next_run_at
    assert job.created_at - before == timedelta(seconds=5)
    assert await monque.get_job(job.id) == job


async def test_moment_is_stored_to_the_millisecond_and_a_past_one_is_due_at_once(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("greet", lambda job: None)
    at = datetime(2035, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
    async with open_test_scheduler(workers) as scheduler:
        future = await scheduler.enqueue("greet", "future", run_at=at)
        past = await scheduler.enqueue("greet", "past", run_at=datetime(1999, 1, 1, tzinfo=UTC))
        await drain(scheduler)
        assert jobs.count_documents({"_id": past.id, "status": "completed"}) == 1
    assert jobs.find_one({"_id": future.id, "nextRunAt": at, "status": "pending"})


@pytest.mark.parametrize("data", ["text", 7, -2.5, {"a": {"b": [1, {"c": None}]}}, [1, "x", [True, False]], None, True])
def test_payload_round_trips(db: Database, data: Any) -> None:
    monque = Monque(db)
    job = monque.sync.enqueue("greet", data)
    found = monque.sync.get_job(job.id)
    assert found is not None
    assert found.data == data == job.data
    assert monque.sync.enqueue_many([NewJob(name="greet", data=data)])[0].data == data


def test_what_was_not_given_is_absent_and_what_was_given_is_there(db: Database, jobs: Collection) -> None:
    always = {"_id", "name", "data", "status", "nextRunAt", "failCount", "createdAt", "updatedAt"}
    options: dict[str, Any] = {"unique_key": "k", "max_attempts": 0, "max_rescues": 0, "timeout": 9}
    monque = Monque(db)
    monque.sync.enqueue("plain")
    monque.sync.enqueue("full", **options)
    plain, full = jobs.find().sort("_id")
    assert set(plain) == always
    assert {key: full[key] for key in set(full) - always} == {
        "uniqueKey": "k", "maxRetries": 0, "maxRescues": 0, "timeout": 9.0,
    }  # fmt: skip


async def test_client_that_runs_nothing_leaves_its_job_pending_and_wakes_no_scheduler(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    ran: list[str] = []
    workers = Workers()
    workers.register("greet", lambda job: ran.append(job.name))
    async with open_test_scheduler(workers, collection_name="elsewhere"):
        await monque.enqueue("greet")
        await advance(100)
    assert ran == []
    assert jobs.count_documents({"status": "pending"}) == 1


async def test_failed_insert_is_a_connection_error_with_its_cause(unused_port: int) -> None:
    with fast_driver(), MongoClient[Any]("127.0.0.1", unused_port) as client:
        monque = Monque(client["nowhere"], operation_timeout=0.05)
        calls: list[Callable[[], Any]] = [
            lambda: monque.enqueue("greet"),
            lambda: monque.enqueue("greet", unique_key="k"),
            lambda: monque.schedule("@daily", "greet"),
            lambda: monque.enqueue_many([NewJob(name="greet")]),
        ]
        for call in calls:
            with pytest.raises(MonqueConnectionError) as caught:
                await call()
            assert caught.value.__cause__ is not None
            assert caught.value.transient
            assert not caught.value.unknown_outcome  # No server was found: nothing was sent.


@pytest.mark.parametrize("status", ["pending", "processing"])
async def test_live_job_keeps_its_key_and_its_data(db: Database, jobs: Collection, status: str) -> None:
    monque = Monque(db)
    first = await monque.enqueue("greet", "first", unique_key="k")
    jobs.update_one({}, {"$set": {"status": status}})
    for again in (
        await monque.enqueue("greet", "second", unique_key="k"),
        (await monque.enqueue_many([NewJob(name="greet", data="third", unique_key="k")]))[0],
        await monque.schedule("@daily", "greet", "fourth", unique_key="k"),
    ):
        assert (again.id, again.data, again.status) == (first.id, "first", status)
    assert jobs.count_documents({}) == 1


def test_ended_jobs_other_names_other_keys_and_no_key_do_not_block(db: Database, jobs: Collection) -> None:
    sync = Monque(db).sync
    for status in ("completed", "failed", "cancelled"):
        sync.enqueue("greet", unique_key="k")
        jobs.update_many({"status": "pending"}, {"$set": {"status": status}})
    made = [
        sync.enqueue("greet", unique_key="k"),
        sync.enqueue("other", unique_key="k"),
        sync.enqueue("greet", unique_key="l"),
        sync.enqueue("greet"),
        sync.enqueue("greet"),
    ]
    assert len({job.id for job in made}) == 5
    assert jobs.count_documents({}) == 8


@pytest.mark.larger_in_full
async def test_hundred_rounds_of_twenty_concurrent_enqueues_give_one_job_and_no_error_each(
    db: Database, jobs: Collection
) -> None:
    """From two clients, so that nothing but the database decides; what an error did would surface."""
    monques = [Monque(db), Monque(db)]
    rounds = in_full(10, 100)
    for number in range(rounds):
        got: list[ObjectId] = []

        async def enqueue(monque: Monque, key: str, got: list[ObjectId] = got) -> None:
            got.append((await monque.enqueue("greet", unique_key=key)).id)

        async with trio.open_nursery() as nursery:
            for caller in range(20):
                nursery.start_soon(enqueue, monques[caller % 2], f"key-{number}")
        assert len(got) == 20
        assert len(set(got)) == 1
    assert jobs.count_documents({}) == rounds


@pytest.mark.parametrize("name", ["", " ", "a b", "a\nb", "a\0b", "x" * 256])
@pytest.mark.parametrize("call", ["enqueue", "schedule", "document", "enqueue_many"])
async def test_invalid_name_is_refused_before_any_call(unused_port: int, call: str, name: str) -> None:
    with MongoClient[Any]("127.0.0.1", unused_port) as client:
        monque = Monque(client["nowhere"])
        calls: dict[str, Callable[[], Any]] = {
            "enqueue": lambda: monque.enqueue(name),
            "schedule": lambda: monque.schedule("@daily", name),
            "document": lambda: monque.document(name),
            "enqueue_many": lambda: monque.enqueue_many([NewJob(name="good"), NewJob(name=name)]),
        }
        with pytest.raises(InvalidJobIdentifierError) as caught:
            await calls[call]()
        assert (caught.value.field, caught.value.value) == ("name", name)


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "a\0b", "x" * 1025])
async def test_invalid_unique_key_is_refused_before_any_call(unused_port: int, key: str) -> None:
    with MongoClient[Any]("127.0.0.1", unused_port) as client:
        monque = Monque(client["nowhere"])
        for call in (
            monque.enqueue("greet", unique_key=key),
            monque.schedule("@daily", "greet", unique_key=key),
            monque.enqueue_many([NewJob(name="greet", unique_key=key)]),
        ):
            with pytest.raises(InvalidJobIdentifierError) as caught:
                await call
            assert (caught.value.field, caught.value.value) == ("unique_key", key)


async def test_valid_names_and_unique_keys_are_stored(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    for name in ("email:send.v2_worker-1", "job-*/15-*", "x" * 255):
        await monque.enqueue(name, unique_key="order 7 / line 3")
    assert jobs.count_documents({"uniqueKey": "order 7 / line 3"}) == 3


async def test_payload_may_be_as_large_as_the_limit_and_no_larger(db: Database, jobs: Collection) -> None:
    monque = Monque(db, max_payload_size=100)
    fits, large = "x" * 95, "x" * 96  # A string is 5 bytes more in BSON.
    await monque.enqueue("greet", fits)
    await monque.schedule("@daily", "greet", fits)
    for call in (
        monque.enqueue("greet", large),
        monque.enqueue("greet", large, unique_key="k"),
        monque.schedule("@daily", "greet", large),
        monque.document("greet", large),
        monque.enqueue_many([NewJob(name="greet", data=large)]),
    ):
        with pytest.raises(PayloadTooLargeError) as caught:
            await call
        assert (caught.value.actual, caught.value.maximum) == (101, 100)
    await Monque(db, max_payload_size=None).enqueue("greet", "x" * 5_000_000)
    assert jobs.count_documents({}) == 3


@pytest.mark.parametrize("data", [object(), {1, 2}, {1: "a"}, 1 << 70, "\ud800"])
async def test_enqueue_refuses_a_payload_that_bson_does_not_know_with_its_cause(unused_port: int, data: Any) -> None:
    with MongoClient[Any]("127.0.0.1", unused_port) as client:
        monque = Monque(client["nowhere"])
        for call in (monque.enqueue("greet", data), monque.schedule("@daily", "greet", data)):
            with pytest.raises(InvalidPayloadError) as caught:
                await call
            assert caught.value.__cause__ is not None


async def test_dataclass_is_stored_as_a_document_and_its_worker_checks_the_type(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    got: list[Email] = []
    workers = Workers()

    @workers.register("send", payload=lambda stored: Email(**stored))
    async def loose(job: RunningJob[Email]) -> None:
        got.append(job.data)

    @workers.register("strict", payload=Email)
    async def strict(job: RunningJob[Email]) -> None: ...

    email = Email("a@b.c", ["d"])
    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue(loose, email)
        assert job.data == {"to": "a@b.c", "copies": ["d"]}
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
        for call in (
            scheduler.enqueue(strict, {"to": "a@b.c"}),  # type: ignore[misc]
            scheduler.schedule("@daily", strict, "text"),  # type: ignore[misc]
            scheduler.document(strict),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidPayloadError, match="'strict' takes Email"):
                await call
    assert got == [email]


async def test_document_is_what_enqueue_would_have_stored_and_runs_when_another_driver_inserts_it(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("greet", lambda job: None)
    async with open_test_scheduler(workers) as scheduler:
        document = await scheduler.document("greet", Email("a@b.c", []), unique_key="k", max_attempts=2)
        assert jobs.count_documents({}) == 0
        assert "name_1_uniqueKey_1" in jobs.index_information()  # Before the caller's transaction needs it.
        jobs.insert_one(document)
        await drain(scheduler)
        ran = {"_id": document["_id"], "status": "completed", "maxRetries": 2, "uniqueKey": "k"}
        assert jobs.count_documents(ran) == 1


async def test_indexes_and_clock_cost_a_job_nothing_once_they_are_known(mongod: EmbeddedServer, db: Database) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        monque = Monque(client[db.name])
        await monque.enqueue("greet")
        recorder.commands.clear()
        await monque.enqueue("greet")
        await monque.enqueue("greet", unique_key="k")
        assert [name for name, _ in recorder.commands] == ["insert", "findAndModify"]


@pytest.mark.parametrize(("backend", "options"), [("trio", {}), ("asyncio", {}), ("asyncio", {"use_uvloop": True})])
def test_every_way_in_works_on_every_backend(db: Database, backend: str, options: dict[str, Any]) -> None:
    monque = Monque(db)

    async def main() -> list[str]:
        await monque.enqueue("enqueue")
        await monque.enqueue("unique", unique_key="k")
        await monque.enqueue_many([NewJob(name="many"), NewJob(name="many-unique", unique_key="k")])
        await monque.schedule("@daily", "schedule")
        db["monque_jobs"].insert_one(await monque.document("document"))
        assert len((await monque.preview("0 9 * * *", "Europe/Berlin", 3)).runs) == 3
        return sorted(job.name for job in await monque.get_jobs())

    assert anyio.run(main, backend=backend, backend_options=options) == [
        "document", "enqueue", "many", "many-unique", "schedule", "unique",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("dealy", "delay"),
        ("unique", "unique_key"),
        ("countdown", "delay"),
        ("eta", "run_at"),
        ("retries", "max_attempts"),
    ],
)
async def test_unknown_option_is_refused_with_the_nearest_one(db: Database, option: str, meant: str) -> None:
    monque: Any = Monque(db)
    expected = rf"^{option}=5: is not an option of (enqueue|document): did you mean '{meant}'\? Options: delay, "
    for call in (monque.enqueue, monque.document):
        with pytest.raises(InvalidOptionError, match=expected):
            await call("greet", **{option: 5})
    with pytest.raises(InvalidOptionError, match=expected):
        await trio.to_thread.run_sync(partial(monque.sync.enqueue, "greet", **{option: 5}))
    with pytest.raises(
        InvalidOptionError, match=r"^timezon='UTC': is not an option of schedule: did you mean 'timezone'"
    ):
        await monque.schedule("@daily", "greet", timezon="UTC")
