"""enqueue with on_conflict="replace": what it writes, what it keeps, races and lost answers."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from tests.support.interception import Interceptor, Recorder
from tests.support.jobs_in_memory import flat
from tests.support.lossy_proxy import Loss, LossyProxy, lossy_proxy
from tests.support.store import PAST, claim_due, handle
from trio_monque import Monque, NewJob, RunningJob, Workers
from trio_monque.errors import InvalidOptionError, InvalidPayloadError, MonqueConnectionError
from trio_monque.jobs import Enqueued, transitions
from trio_monque.jobs.job import deaths_of
from trio_monque.jobs.new_job import Draft
from trio_monque.jobs.stored_value_limits import check_payload
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import settling
from trio_monque.store.jobs.indexes import IndexesGoneError
from trio_monque.store.jobs.replacing import Replacement, replace_or_insert
from trio_monque.testing import SchedulerOpener, advance, drain

LATER = datetime(2035, 2, 3, tzinfo=UTC)
REPLACE: dict[str, Any] = {"unique_key": "k", "on_conflict": "replace"}


def replace(monque: Monque, data: Any = None, **options: Any) -> Enqueued[Any]:
    return monque.sync.enqueue_with_outcome("greet", data, **REPLACE, **options)


async def test_pending_job_gets_the_data_and_the_due_date_of_the_last_call(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    first = await monque.enqueue_with_outcome("greet", 1, **REPLACE, max_attempts=3)
    second = await monque.enqueue_with_outcome("greet", {"n": 2}, **REPLACE, run_at=LATER, max_attempts=7)
    assert (first.outcome, second.outcome) == ("created", "replaced")
    assert second.job.id == first.job.id
    assert (second.job.data, second.job.next_run_at, second.job.limits.max_attempts) == ({"n": 2}, LATER, 3)
    assert await monque.get_job(first.job.id) == second.job
    assert second.job.internals.rev > first.job.internals.rev
    assert jobs.count_documents({}) == 1


def test_outcome_of_a_call_that_keeps(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "trio_monque.client")
    monque = Monque(db)
    outcomes = [monque.sync.enqueue_with_outcome("greet", n, unique_key="k").outcome for n in (1, 2)]
    assert outcomes == ["created", "kept"]
    (line,) = [one.getMessage() for one in caplog.records if one.getMessage().startswith("enqueued nothing")]
    assert line.endswith("has the unique key 'k'")
    assert monque.sync.enqueue_with_outcome("greet").outcome == "created"
    assert replace(monque, 3).job.data == 3
    assert monque.sync.enqueue("greet", 4, **REPLACE).data == 4


def test_replaced_job_keeps_its_failures_and_deaths_and_nothing_else_of_the_old_data(
    db: Database, jobs: Collection
) -> None:
    monque = Monque(db)
    job = monque.sync.enqueue("greet", 1, unique_key="k")
    ran = {"failCount": 4, "failReason": "no", "rescues": 2, "resumesAt": job.next_run_at}
    jobs.update_one({}, {"$set": {**ran, "saved": {"at": 9}, "rev": 5}})
    replaced = replace(monque, 2, delay=60).job
    left = (replaced.fail_count, replaced.fail_reason, replaced.rescues, replaced.saved, replaced.internals.rev)
    assert left == (4, "no", 2, None, 6)
    assert replaced.next_run_at != job.next_run_at
    assert deaths_of(replaced) == 2
    assert replaced.created_at == job.created_at


def test_deaths_that_do_not_count_any_more_do_not_count_again_after_a_replacement(
    db: Database, jobs: Collection
) -> None:
    monque = Monque(db)
    job = monque.sync.enqueue("greet", 1, unique_key="k")
    # Node has failed it since its last rescue: the due date is another one.
    jobs.update_one({}, {"$set": {"rescues": 2, "resumesAt": job.next_run_at - timedelta(minutes=1)}})
    assert deaths_of(replace(monque, 2).job) == 0


def test_document_of_a_created_job_has_the_fields_of_any_other(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    monque.sync.enqueue("greet", {"a": 1}, unique_key="plain", timeout=9, meta={"a": "b"})
    monque.sync.enqueue("greet", {"a": 1}, unique_key="k", on_conflict="replace", timeout=9, meta={"a": "b"})
    plain, ours = jobs.find().sort("_id", 1)
    own = ("_id", "uniqueKey", "createdAt", "updatedAt", "nextRunAt")
    assert {**plain, **{name: ours[name] for name in own}} == ours


def test_schedule_and_run_that_is_to_be_cancelled_are_kept(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    replace(monque, 1, run_at=PAST)
    (running,) = claim_due(handle(db), {"greet": 1})
    monque.sync.cancel_job(running.id)
    kept = replace(monque, 2)
    assert (kept.outcome, kept.job.id, kept.job.again) == ("kept", running.id, None)
    schedule = monque.sync.schedule("@daily", "sync", 1, unique_key="k")
    kept = monque.sync.enqueue_with_outcome("sync", 2, **REPLACE)
    assert (kept.outcome, kept.job) == ("kept", schedule)
    assert jobs.count_documents({"name": "sync"}) == 1


def test_large_data_are_replaced_by_others_and_refused_where_both_must_be_stored(
    db: Database, jobs: Collection
) -> None:
    monque, half = Monque(db), 9 * 1024 * 1024
    replace(monque, "a" * half, run_at=PAST)
    assert replace(monque, "b" * half, run_at=PAST).outcome == "replaced"
    assert claim_due(handle(db), {"greet": 1})
    with pytest.raises(InvalidPayloadError, match="do not fit into one document"):
        replace(monque, "c" * half)
    (document,) = jobs.find()
    assert (document["data"], "again" in document) == ("b" * half, False)


def test_ended_job_does_not_hold_the_key(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    first = replace(monque, 1).job
    jobs.update_one({}, {"$set": {"status": "completed"}})
    second = replace(monque, 2)
    assert (second.outcome, second.job.id != first.id) == ("created", True)


@pytest.mark.parametrize("options", [{"on_conflict": "replace"}, {"unique_key": "k", "on_conflict": "swap"}])
async def test_invalid_option_is_refused_before_any_call(db: Database, options: dict[str, Any]) -> None:
    monque = Monque(db)
    with pytest.raises(InvalidOptionError, match="on_conflict"):
        await monque.enqueue("greet", **options)
    with pytest.raises(InvalidOptionError, match="on_conflict"):
        await monque.enqueue_many([NewJob("greet", unique_key="k", on_conflict="replace")])
    with pytest.raises(InvalidOptionError, match="on_conflict"):
        await monque.document("greet", **REPLACE)
    with db.client.start_session() as session, pytest.raises(InvalidOptionError, match="on_conflict"):
        await monque.enqueue("greet", session=session, **REPLACE)
    assert db.list_collection_names() == []


async def test_scheduler_runs_the_replaced_job_once_with_the_last_data_at_the_new_time(
    open_test_scheduler: SchedulerOpener, autojump_clock: object
) -> None:
    workers = Workers()
    ran: list[object] = []

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        ran.append(job.data)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("greet", 1, **REPLACE, delay=60)
        await scheduler.enqueue("greet", 2, **REPLACE, delay=3600)
        await advance(120)
        assert ran == []
        await scheduler.enqueue("greet", 3, **REPLACE)
        await drain(scheduler)
        assert ran == [3]


@pytest.mark.full
def test_racing_calls_leave_one_job_with_the_data_of_one_of_them(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    replace(monque, -1)
    jobs.delete_many({})
    calls, threads = 1000, 8
    barrier = Barrier(threads)

    def call(first: int) -> list[Enqueued[Any]]:
        barrier.wait()
        return [replace(monque, {"n": number, "again": number}) for number in range(first, calls, threads)]

    with ThreadPoolExecutor(threads) as pool:
        enqueued = [one for part in pool.map(call, range(threads)) for one in part]
    assert sorted(one.outcome for one in enqueued) == ["created", *["replaced"] * (calls - 1)]
    (document,) = jobs.find()
    assert document["rev"] == calls - 1
    (last,) = [one.job for one in enqueued if one.job.internals.rev == calls - 1]
    assert document["data"] == last.data
    assert document["data"]["n"] == document["data"]["again"]


@pytest.mark.full
def test_racing_calls_that_keep_leave_the_first_job_as_it_was(db: Database, jobs: Collection) -> None:
    monque, calls, threads = Monque(db), 1000, 8
    monque.sync.enqueue("other")
    barrier = Barrier(threads)

    def call(first: int) -> list[Enqueued[Any]]:
        barrier.wait()
        numbers = range(first, calls, threads)
        return [monque.sync.enqueue_with_outcome("greet", number, unique_key="k") for number in numbers]

    with ThreadPoolExecutor(threads) as pool:
        enqueued = [one for part in pool.map(call, range(threads)) for one in part]
    assert sorted(one.outcome for one in enqueued) == ["created", *["kept"] * (calls - 1)]
    (created,) = [one.job for one in enqueued if one.outcome == "created"]
    assert {one.job.id for one in enqueued} == {created.id}
    assert [document["data"] for document in jobs.find({"name": "greet"})] == [created.data]


# --- Lost answers ---


@pytest.fixture
def proxy(client: MongoClient[Any]) -> Iterator[LossyProxy]:
    address = client.address or pytest.fail("no primary")
    with lossy_proxy(address) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: LossyProxy, db: Database) -> Iterator[Monque]:
    """A client whose answers the proxy loses."""
    with MongoClient[Any](proxy.uri) as client:
        monque = Monque(client[db.name])
        monque.sync.enqueue("first")
        db["monque_jobs"].delete_many({})
        yield monque


@pytest.mark.parametrize("loss", Loss)
def test_lost_insert_is_there_once(far: Monque, proxy: LossyProxy, jobs: Collection, loss: Loss) -> None:
    proxy.lose("findAndModify", loss)
    enqueued = replace(far, 1)
    assert len(proxy.lost) == 1
    assert enqueued.outcome == "created"
    assert [document["_id"] for document in jobs.find()] == [enqueued.job.id]


def test_lost_insert_does_not_undo_what_another_caller_replaced_since(
    far: Monque, proxy: LossyProxy, db: Database, jobs: Collection
) -> None:
    near = Monque(db)
    proxy.lose("findAndModify", after=lambda: replace(near, "theirs"))
    enqueued = replace(far, "ours")
    assert (enqueued.outcome, enqueued.job.data) == ("created", "theirs")
    assert [document["data"] for document in jobs.find()] == ["theirs"]


@pytest.mark.parametrize("status", ["processing", "completed"])
def test_lost_insert_whose_job_runs_or_has_run_is_not_sent_again(
    far: Monque, proxy: LossyProxy, jobs: Collection, status: str
) -> None:
    proxy.lose("findAndModify", after=lambda: jobs.update_one({}, {"$set": {"status": status}}))
    assert replace(far, 1).outcome == "created"
    assert jobs.count_documents({}) == 1


@pytest.mark.parametrize("loss", Loss)
def test_lost_replacement_is_written_again(
    far: Monque, proxy: LossyProxy, db: Database, jobs: Collection, loss: Loss
) -> None:
    first = replace(Monque(db), 1).job
    proxy.lose("findAndModify", loss)
    enqueued = replace(far, 2)
    assert (enqueued.outcome, enqueued.job.id, enqueued.job.data) == ("replaced", first.id, 2)


def test_lost_replacement_whose_job_has_run_makes_another_job(
    far: Monque, proxy: LossyProxy, db: Database, jobs: Collection
) -> None:
    """As it is published: nothing shows that the job that has run had these data."""
    replace(Monque(db), 1)
    proxy.lose("findAndModify", after=lambda: jobs.update_one({}, {"$set": {"status": "completed"}}))
    assert replace(far, 2).outcome == "created"
    assert [document["data"] for document in jobs.find().sort("_id", 1)] == [2, 2]


@pytest.mark.parametrize("loss", Loss)
def test_lost_call_on_a_running_job_is_written_again(
    far: Monque, proxy: LossyProxy, db: Database, jobs: Collection, loss: Loss
) -> None:
    replace(Monque(db), 1, run_at=PAST)
    assert claim_due(handle(db), {"greet": 1})
    proxy.lose("findAndModify", loss)
    enqueued = replace(far, 2)
    assert (enqueued.outcome, flat(enqueued.job).again_data) == ("again", 2)
    assert jobs.count_documents({}) == 1


def test_lost_call_whose_run_has_ended_makes_another_run(
    far: Monque, proxy: LossyProxy, db: Database, jobs: Collection
) -> None:
    """As it is published: nothing shows that the run that follows had these data."""
    replace(Monque(db), 1, run_at=PAST)
    (job,) = claim_due(handle(db), {"greet": 1})

    def end() -> None:
        again = transitions.run_again(job, PAST)
        settling.settle(handle(db), settling.grouped([again], "r"))
        assert claim_due(handle(db), {"greet": 1}, now=datetime.now(UTC))

    proxy.lose("findAndModify", after=end)
    enqueued = replace(far, 2)
    assert (enqueued.outcome, enqueued.job.data, flat(enqueued.job).again_data) == ("again", 2, 2)


def test_two_lost_answers_raise_an_error_with_unknown_outcome(far: Monque, proxy: LossyProxy, db: Database) -> None:
    replace(Monque(db), 1)
    proxy.lose("findAndModify", times=2)
    with pytest.raises(MonqueConnectionError) as caught:
        replace(far, 2)
    assert caught.value.unknown_outcome


# --- The statement, as the store sends it ---


def replacement(jobs: JobCollection, data: Any) -> Replacement:
    new = NewJob(name="greet", data=data, unique_key="k")
    draft = Draft(ObjectId(), new, check_payload(new.data, None, jobs.codec.callers))
    return Replacement(draft.at(PAST), draft.payload)


def test_replacement_without_the_index_of_keys_writes_nothing_and_names_the_cause(db: Database) -> None:
    # It had its indexes, until another program has dropped them.
    store = dataclasses.replace(handle(db), has_indexes=True)
    store.collection.insert_one({"_id": "the collection exists"})
    with pytest.raises(IndexesGoneError, match="has lost its indexes"):
        replace_or_insert(store, replacement(store, 1))
    assert store.collection.count_documents({}) == 1


def test_replacement_that_is_sent_again_after_its_job_has_ended_is_that_job(db: Database) -> None:
    replace(Monque(db), 0)  # Makes the indexes.
    store = handle(db)
    store.collection.delete_many({})
    sent = replacement(store, 1)
    assert replace_or_insert(store, sent).outcome == "created"
    store.collection.update_one({}, {"$set": {"status": "completed"}})
    again = replace_or_insert(store, sent)
    assert (again.outcome, again.job.id, again.job.status) == ("created", sent.job.id, "completed")
    assert store.collection.count_documents({}) == 1


def test_replacement_that_is_sent_again_while_its_job_runs_asks_for_no_other_run(db: Database) -> None:
    replace(Monque(db), 0)  # Makes the indexes.
    store = handle(db)
    store.collection.delete_many({})
    sent = replacement(store, 1)
    assert replace_or_insert(store, sent).outcome == "created"
    (running,) = claim_due(store, {"greet": 1})
    again = replace_or_insert(store, sent)
    assert (again.outcome, again.job.id, again.job.again) == ("created", running.id, None)
    (document,) = store.collection.find()
    assert "again" not in document


def test_pending_job_with_a_left_over_request_to_cancel_is_replaced(db: Database, jobs: Collection) -> None:
    """No program of ours leaves one. A job that is never replaced, although it waits, would keep its key for ever."""
    monque = Monque(db)
    replace(monque, 1)
    jobs.update_one({}, {"$set": {"cancelRequestedAt": PAST}})
    assert replace(monque, 2).outcome == "replaced"
    (document,) = jobs.find()
    assert document["data"] == 2


@pytest.mark.parametrize(
    ("next_holder", "outcome"),
    [
        (None, "created"),
        ({}, "replaced"),
        ({"cancelRequestedAt": PAST}, "replaced"),
        ({"status": "processing", "claimedBy": "a", "lockedAt": PAST}, "again"),
    ],
    ids=["nobody", "a pending job", "a pending job with a left-over request", "a running job"],
)
def test_holder_that_has_changed_when_it_is_read_is_met_in_the_next_round(
    db: Database, jobs: Collection, next_holder: dict[str, Any] | None, outcome: str
) -> None:
    """A schedule keeps its key, and has gone a moment later."""
    monque = Monque(db)
    schedule = monque.sync.schedule("* * * * *", "greet", unique_key="k")
    monque.sync.enqueue_with_outcome("other", None, **REPLACE)  # Makes the index.

    def meanwhile() -> None:
        jobs.delete_one({"_id": schedule.id})
        if next_holder is not None:
            replace(monque, "other")
            jobs.update_one({"name": "greet"}, {"$set": next_holder})

    interceptor = Interceptor()
    interceptor.before(lambda name, _: name == "find", meanwhile)
    host, port = db.client.address or ("", 0)
    with MongoClient[Any](host, port, tz_aware=True, event_listeners=[interceptor]) as client:
        store = handle(client[db.name])
        assert replace_or_insert(store, replacement(store, 1)).outcome == outcome
    assert interceptor.times == 1


def test_text_with_a_dollar_is_not_evaluated_by_the_server(db: Database, jobs: Collection) -> None:
    replace(Monque(db), "$name", meta={"shown": "$name"})
    (document,) = jobs.find()
    assert (document["data"], document["meta"]) == ("$name", {"shown": "$name"})


def test_replacement_of_a_running_job_changes_nothing_that_is_about_the_run(db: Database, jobs: Collection) -> None:
    """Its deaths count for its due date, which stays. Were `resumesAt` another date, they would be forgotten."""
    monque = Monque(db)
    due = replace(monque, 1, run_at=PAST).job.next_run_at
    jobs.update_one({}, {"$set": {"rescues": 1, "resumesAt": due}})
    assert claim_due(handle(db), {"greet": 1})
    (before,) = jobs.find()
    assert replace(monque, 2, run_at=LATER).outcome == "again"
    (after,) = jobs.find()
    assert {field for field in after if after[field] != before.get(field)} == {"again", "againAt", "againData"}
    assert after["resumesAt"] == due


def test_job_that_keeps_its_key_is_read_by_a_majority(db: Database) -> None:
    monque = Monque(db)
    monque.sync.schedule("* * * * *", "greet", unique_key="k")
    replace(monque, 0)  # Makes the index.
    recorder = Recorder()
    host, port = db.client.address or ("", 0)
    with MongoClient[Any](host, port, tz_aware=True, event_listeners=[recorder]) as client:
        store = handle(client[db.name])
        assert replace_or_insert(store, replacement(store, 1)).outcome == "kept"
    (look,) = [command for name, command in recorder.commands if name == "find"]
    assert look["readConcern"]["level"] == "majority"
