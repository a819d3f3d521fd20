"""enqueue_many: checked whole, sent in slices, returned in order."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Interceptor, Recorder
from trio_monque import Monque, NewJob, Workers
from trio_monque.client import enqueue_many
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import (
    BrokenDocumentError,
    InvalidOptionError,
    InvalidPayloadError,
    MonqueConnectionError,
    PartialEnqueueError,
    ShortageError,
)
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import inserting
from trio_monque.testing import SchedulerOpener, assert_enqueued, quiesce


def inserted(recorder: Recorder) -> list[int]:
    return [len(command["documents"]) for name, command in recorder.commands if name == "insert"]


@pytest.mark.full
async def test_jobs_come_back_in_order_and_wake_the_scheduler(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("greet", lambda job: None, concurrency=200)
    async with open_test_scheduler(workers) as scheduler:
        got = await scheduler.enqueue_many([NewJob(name="greet", data=number) for number in range(1100)])
        assert [job.data for job in got] == list(range(1100))
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=1100)
    assert await monque.enqueue_many([]) == []


@pytest.mark.parametrize("in_reverse", [False, True])
def test_duplicate_keys_in_the_list_or_the_collection_give_the_winner(
    db: Database, jobs: Collection, in_reverse: bool
) -> None:
    sync = Monque(db).sync
    held = sync.enqueue("greet", "held", unique_key="held")
    new = [
        NewJob(name="greet", data="a", unique_key="k"),
        NewJob(name="greet", data="loses", unique_key="held"),
        NewJob(name="greet", data="plain"),
        NewJob(name="other", data="another name", unique_key="k"),
        NewJob(name="greet", data="b", unique_key="k"),
    ]
    got = sync.enqueue_many(new[::-1] if in_reverse else new)
    got = got[::-1] if in_reverse else got
    assert got[1] == held
    assert got[0].id == got[4].id
    assert got[0].data == ("b" if in_reverse else "a")
    assert len({job.id for job in got}) == 4
    assert jobs.count_documents({}) == 4


def test_keys_in_use_cost_one_look_for_all_of_them(mongod: EmbeddedServer, db: Database) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        sync = Monque(client[db.name]).sync
        new = [NewJob(name="greet", unique_key=str(number)) for number in range(50)]
        first = sync.enqueue_many(new)
        recorder.commands.clear()
        assert sync.enqueue_many(new) == first
        assert [name for name, _ in recorder.commands] == ["update", "find"]


def test_key_that_was_lost_to_a_job_that_ended_meanwhile_is_enqueued(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = Monque(db).sync
    held = sync.enqueue("greet", unique_key="k")
    look = inserting.holders

    def too_late(*args: Any) -> Any:
        jobs.update_one({"_id": held.id}, {"$set": {"status": "completed"}})
        return look(*args)

    monkeypatch.setattr(inserting, "holders", too_late)
    (job,) = sync.enqueue_many([NewJob(name="greet", unique_key="k")])
    assert (job.id != held.id, job.status) == (True, "pending")


def test_race_for_a_key_between_the_look_and_the_write_gives_the_winner(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        monque = Monque(client[db.name])
        winner = monque.sync.document("greet", "winner", unique_key="k")

        def come_first() -> None:
            jobs.insert_one(winner)

        interceptor.before(lambda name, _: name == "update", come_first)
        (job,) = monque.sync.enqueue_many([NewJob(name="greet", data="loser", unique_key="k")])
    assert interceptor.times == 1
    assert (job.id, job.data) == (winner["_id"], "winner")


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (NewJob(name="greet", data=object()), InvalidPayloadError),
        (NewJob(name="greet", delay=-1), InvalidOptionError),
        ({"name": "greet"}, InvalidOptionError),
    ],
)
async def test_one_that_cannot_be_is_named_and_none_is_sent(
    mongod: EmbeddedServer, db: Database, bad: Any, error: type[Exception]
) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        with pytest.raises(error) as caught:
            await Monque(client[db.name]).enqueue_many([*[NewJob(name="greet")] * 1500, bad])
        assert caught.value.__notes__ == ["It is number 1500 (from 0) of 1501 jobs, and nothing was sent."]
        assert recorder.commands == []


def test_slices_are_bounded_by_count_and_by_bytes(
    mongod: EmbeddedServer, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue_many, "MOST_JOBS", 3)
    monkeypatch.setattr(enqueue_many, "MOST_BYTES", 1000)
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        sync = Monque(client[db.name]).sync
        sizes = [1, 1, 1, 1, 2000, 1, 700, 700, 1]
        sync.enqueue_many([NewJob(name="greet", data="x" * size) for size in sizes])
        assert inserted(recorder) == [3, 1, 1, 2, 2]


@pytest.mark.full
def test_payloads_beyond_what_one_message_holds_are_all_stored(db: Database, jobs: Collection) -> None:
    large = "x" * 9_000_000
    got = Monque(db).sync.enqueue_many([NewJob(name="greet", data=large) for _ in range(6)])
    assert jobs.count_documents({"_id": {"$in": [job.id for job in got]}}) == 6


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"data": {"at": datetime(2026, 1, 1, tzinfo=UTC), "list": [1, None, b"x"]}},
        {"run_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"data": 1, "max_attempts": 0, "max_rescues": 3, "timeout": 2},
        {"data": 1, "unique_key": "k"},
    ],
)
async def test_every_way_in_stores_the_same_document(db: Database, jobs: Collection, said: dict[str, Any]) -> None:
    monque = Monque(db)
    many = await monque.enqueue_many([NewJob(name="greet", **said), NewJob(name="greet", data="another")])
    stored = [jobs.find_one_and_delete({"_id": many[0].id})]
    one = await monque.enqueue("greet", **said)
    stored.append(jobs.find_one_and_delete({"_id": one.id}))
    document = await monque.document("greet", **said)
    jobs.insert_one(document)
    stored.append(jobs.find_one_and_delete({"_id": document["_id"]}))
    alike = [{**each, "_id": 0, "createdAt": 0, "updatedAt": 0} for each in stored if each is not None]
    if "run_at" not in said:
        assert all(each is not None and each["nextRunAt"] == each["createdAt"] for each in stored)
        alike = [{**each, "nextRunAt": 0} for each in alike]
    assert len(alike) == 3
    assert alike[0] == alike[1] == alike[2]
    assert {name: type(value) for name, value in alike[0].items()} == {
        name: type(value) for name, value in alike[2].items()
    }
    assert [many[0].data, one.data] == [said.get("data")] * 2


async def test_unexpected_error_ends_the_sending_and_the_packing(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue_many, "MOST_JOBS", 2)
    insert_all = inserting.insert_all

    def broken(*args: Any, **options: Any) -> Any:
        insert_all(*args, **options)
        raise ZeroDivisionError

    monkeypatch.setattr(inserting, "insert_all", broken)
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        await Monque(db).enqueue_many([NewJob(name="greet", data=number) for number in range(6)])
    assert [document["data"] for document in jobs.find()] == [0, 1]
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("monque-enqueue")]


def test_shortage_of_threads_is_a_transient_error_and_none_is_sent(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue_many, "MOST_JOBS", 2)
    start = threading.Thread.start

    def start_if_possible(thread: threading.Thread) -> None:
        if thread.name.startswith("monque-enqueue"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_possible)
    with pytest.raises(ShortageError) as caught:
        Monque(db).sync.enqueue_many([NewJob(name="greet", data=number) for number in range(6)])
    assert caught.value.transient
    assert jobs.count_documents({}) == 0


def test_next_slice_is_made_while_one_is_in_flight(
    mongod: EmbeddedServer, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first insert is held open until the documents of the second slice have been made."""
    monkeypatch.setattr(enqueue_many, "MOST_JOBS", 2)
    made, in_time = threading.Event(), []
    parcels = inserting.parcels

    def recorded(jobs: Any) -> Any:
        packed = parcels(jobs)
        if packed[0].job.data == 2:
            made.set()
        return packed

    monkeypatch.setattr(inserting, "parcels", recorded)
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        interceptor.before(lambda name, _: name == "insert", lambda: in_time.append(made.wait(50)))
        Monque(client[db.name]).sync.enqueue_many([NewJob(name="greet", data=number) for number in range(6)])
    assert in_time == [True]


async def test_refused_job_ends_the_sending_and_the_error_lists_all_known_outcomes(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue_many, "MOST_JOBS", 3)
    db.create_collection("monque_jobs", validator={"data": {"$ne": "bad"}})
    data = ["a", "b", "c", "d", "bad", "e", "f"]
    with pytest.raises(PartialEnqueueError) as caught:
        await Monque(db).enqueue_many([NewJob(name="greet", data=one) for one in data])
    assert (set(caught.value.enqueued), caught.value.unknown) == ({0, 1, 2, 3, 5}, {})
    assert (caught.value.unknown_outcome, caught.value.transient) == (False, False)
    assert isinstance(caught.value.__cause__, MonqueConnectionError)
    assert {document["data"] for document in jobs.find()} == {"a", "b", "c", "d", "e"}


async def test_refused_job_with_a_key_raises_partial_enqueue_error_too(db: Database, jobs: Collection) -> None:
    db.create_collection("monque_jobs", validator={"data": {"$ne": "bad"}})
    new = [NewJob(name="greet", data=one, unique_key=one) for one in ("a", "bad", "b")]
    with pytest.raises(PartialEnqueueError) as caught:
        await Monque(db).enqueue_many(new)
    assert {0} <= set(caught.value.enqueued) <= {0, 2}
    assert {document["data"] for document in jobs.find()} == {"a", "b"}
    assert len(caught.value.enqueued) == 2


def test_fields_of_each_job_are_its_own(db: Database, jobs: Collection) -> None:
    sync = Monque(db).sync
    plain, limited = sync.enqueue_many([NewJob(name="a"), NewJob(name="b", delay=60, max_attempts=1, timeout=2)])
    assert (limited.next_run_at - plain.next_run_at).total_seconds() == 60
    assert [sync.get_job(plain.id), sync.get_job(limited.id)] == [plain, limited]


def test_broken_document_that_has_a_key_keeps_no_other_job_out(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = Monque(db).sync
    broken, held = (sync.enqueue("greet", unique_key=key) for key in ("broken", "held"))
    jobs.update_one({"_id": broken.id}, {"$set": {"failCount": "x"}})
    monkeypatch.setattr(inserting, "holders", lambda *args: {})  # They are asked for one by one then.
    with pytest.raises(PartialEnqueueError) as caught:
        sync.enqueue_many([NewJob("greet", unique_key=key) for key in ("broken", "held", "free")])
    assert isinstance(caught.value.__cause__, BrokenDocumentError)
    assert caught.value.enqueued.keys() == {1, 2}
    assert caught.value.enqueued[1] == str(held.id)
