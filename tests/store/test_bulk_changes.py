"""Batches of jobs at the database: what they cost, and what becomes of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from tests.support.bulk_calls import CALLS, put
from tests.support.fail_points import refusing_server
from tests.support.interception import Interceptor, Recorder
from tests.support.malformed import text, with_field
from tests.support.store import PAST, handle, insert
from trio_monque import JobFilter, Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.bulk_changes import cancel_selected
from trio_monque.jobs.conditional_write import Containing, Within
from trio_monque.jobs.job_selector import JobSelector
from trio_monque.store.codec import filter_of
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import bulk_writes, indexes


@pytest.fixture
def store(db: Database) -> JobCollection:
    made = handle(db)
    indexes.ensure(made)
    return made


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def monque(client: MongoClient[Any], db: Database, recorder: Recorder) -> Iterator[Monque]:
    with MongoClient[Any](*(client.address or ()), event_listeners=[recorder]) as watched:
        yield Monque(watched[db.name])


@pytest.mark.full
@pytest.mark.parametrize("action", CALLS)
def test_batch_costs_the_same_commands_however_large_it_is(
    monque: Monque, jobs: Collection, recorder: Recorder, action: str
) -> None:
    status = "failed" if action == "retry" else "pending"
    CALLS[action](monque.sync, name="greet")  # The indexes, and the clock.
    costs = []
    for count in (1, 300):
        for _ in range(count):
            put(jobs, status)
        recorder.commands.clear()
        assert CALLS[action](monque.sync, name="greet", status=status).count == count
        costs.append([name for name, _ in recorder.commands if name != "hello"])
    # The end, the window, the batch, its write.
    assert costs[0] == costs[1] == ["find", "find", "find", "delete" if action == "delete" else "update"]


def test_batches_meet_each_job_once_in_the_order_of_ids_and_stay_within_their_bounds(store: JobCollection) -> None:
    made = sorted((insert(store) for _ in range(10)), key=lambda job: job.id)
    # Ids of other types: "text" sorts before all ids of jobs, and True behind them.
    store.collection.insert_many([{"_id": other, "name": "greet"} for other in ("text", True)])
    until = bulk_writes.last_id(store)
    assert until == made[-1].id
    assert bulk_writes.window_end(store, None, until, 4) == made[3].id
    assert bulk_writes.window_end(store, made[3].id, until, 4) == made[7].id
    assert bulk_writes.window_end(store, made[7].id, until, 4) == until
    seen: list[ObjectId] = []
    after: ObjectId | None = None
    for size in (4, 4, 1):
        chosen = bulk_writes.choose(store, {"name": "greet"}, after, made[8].id, 4)
        assert len(chosen.jobs) == size
        seen += [job.id for job in chosen.jobs]
        after = chosen.last
    assert after is None
    assert seen == [job.id for job in made[:9]]


def test_collection_without_jobs_has_no_end(store: JobCollection) -> None:
    assert bulk_writes.last_id(store) is None


def test_what_may_be_large_is_not_read(store: JobCollection) -> None:
    job = insert(store, data={"large": "x" * 1000})
    (chosen,) = bulk_writes.choose(store, {}, None, job.id, 10).jobs
    assert (chosen.id, chosen.data) == (job.id, None)


def test_first_job_that_is_refused_stops_none_of_its_batch_and_all_are_counted(store: JobCollection) -> None:
    made = [insert(store) for _ in range(5)]
    database = store.collection.database
    refuses = {"$or": [{"status": "pending"}, {"_id": {"$nin": [made[0].id, made[3].id]}}]}
    database.command("collMod", store.collection.name, validator=refuses)
    change = cancel_selected(JobSelector(), tuple(made), PAST + timedelta(hours=1))
    written = bulk_writes.cancel(store, [change], "receipt")
    assert written.count == 3
    assert written.done == {made[1].id, made[2].id, made[4].id}
    assert set(written.refused) == {made[0].id, made[3].id}
    # Sent again, nothing is done twice.
    again = bulk_writes.find_out(store, [change], "receipt")
    assert (again.count, again.done, again.unknown) == (3, written.done, 0)


@pytest.mark.full
def test_cancellation_that_fails_between_its_two_commands_is_found_out() -> None:
    """The first command cancels two jobs and stops at the third, and the second fails: nothing must look undone."""
    interceptor = Interceptor()
    data = {"failCommands": ["update"], "errorCode": 13, "appName": "refused"}
    fail_once = {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data}
    with (
        refusing_server() as server,
        server.client(event_listeners=[interceptor]) as client,
        MongoClient[Any](server.uri) as admin,
    ):
        monque, jobs = Monque(client["shop"]), admin["shop"]["monque_jobs"]
        monque.sync.delete_jobs(everything=True)  # The indexes.
        made = [put(jobs, "pending") for _ in range(3)]
        admin["shop"].command(
            "collMod", jobs.name, validator={"$or": [{"status": "pending"}, {"_id": {"$ne": made[2]}}]}
        )
        interceptor.before(lambda name, _: name == "update", lambda: None, lambda: admin.admin.command(fail_once))
        result = monque.sync.cancel_jobs(status="pending")
        assert interceptor.times == 2
        assert (result.count, result.refused, result.unknown) == (2, 1, 0)
        assert [one["status"] for one in jobs.find(sort=[("_id", 1)])] == ["cancelled", "cancelled", "pending"]


def test_job_that_is_refused_and_then_deleted_is_unknown_and_not_refused_as_well(
    mongod: EmbeddedServer, db: Database
) -> None:
    """Between the second sending and the look: each job is counted once."""
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        store = handle(client[db.name])
        made = [insert(store) for _ in range(2)]
        db.command("collMod", store.collection.name, validator={"status": "pending"})
        interceptor.before(lambda name, _: name == "find", lambda: db["monque_jobs"].delete_one({"_id": made[0].id}))
        changes = [cancel_selected(JobSelector(), (job,), PAST + timedelta(hours=1)) for job in made]
        found = bulk_writes.find_out(store, changes, "receipt")
    assert interceptor.times == 1
    assert (found.count, set(found.refused), found.unknown) == (0, {made[1].id}, 1)


def test_text_is_looked_for_to_the_letter() -> None:
    assert filter_of({"fail_reason": Containing("a.b (c)\n")}) == {"failReason": {"$regex": "a\\.b\\ \\(c\\)\\\n"}}
    assert filter_of({"fail_reason": Containing("a\0", at_the_beginning=True)}) == {"failReason": {"$regex": "^a\\x00"}}
    assert filter_of({"created_at": Within(above=None, below=PAST)}) == {"createdAt": {"$lt": PAST}}
    assert filter_of({"created_at": Within(above=PAST, below=PAST)}) == {"createdAt": {"$gt": PAST, "$lt": PAST}}


def test_moment_between_two_milliseconds_selects_what_was_made_before_it() -> None:
    half, whole = timedelta(microseconds=500), timedelta(milliseconds=1)
    for made in (JobSelector, JobFilter):
        assert made(older_than=PAST + half).conditions() == {"created_at": Within(above=None, below=PAST + whole)}
        assert made(newer_than=PAST + half).conditions() == {"created_at": Within(above=PAST, below=None)}
        assert made(older_than=PAST, newer_than=PAST - half).conditions() == {
            "created_at": Within(above=PAST - whole, below=PAST)
        }
    between = JobFilter(created_from=PAST + half, created_to=PAST + whole + half)
    assert between.conditions() == {"created_at": Within(at_least=PAST + whole, at_most=PAST + whole)}
    # None was made there. The question is not an error.
    at_it = JobFilter(updated_from=PAST + half, updated_to=PAST + half)
    assert replace(at_it).conditions() == {"updated_at": Within(at_least=PAST + whole, at_most=PAST)}


def test_document_that_was_garbled_meanwhile_keeps_no_other_from_being_looked_up(
    store: JobCollection, jobs: Collection
) -> None:
    first, second = insert(store), insert(store)
    jobs.update_one({"_id": first.id}, {"$set": with_field({}, "receipt", text(b"\xff\xfe"))})
    jobs.update_one({"_id": second.id}, {"$set": {"receipt": "r"}})
    change = cancel_selected(JobSelector(), (first, second), PAST)
    assert bulk_writes.signed(store, [change], "r") == {second.id}
