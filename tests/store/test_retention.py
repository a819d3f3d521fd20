"""What is to go is chosen from the index alone, and deleted only if it is so still."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import BSON, Timestamp, encode
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from tests.support import node_peer
from tests.support.internals import context_of
from tests.support.store import PAST, handle
from trio_monque import Monque, Retention, open_scheduler
from trio_monque.jobs.job import JobStatus
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import indexes, instances, retention
from trio_monque.store.jobs.retention import Expired

COMPLETED = JobStatus.COMPLETED
BY_AGE, BY_COUNT = Retention(completed=3600.0), Retention(keep_last=10)


def at(seconds: float) -> datetime:
    return PAST + timedelta(seconds=seconds)


def document(seconds: float, name: str = "greet", status: str = "completed", **fields: Any) -> dict[str, Any]:
    moment = at(seconds)
    return {"name": name, "status": status, "nextRunAt": PAST, "createdAt": PAST, "updatedAt": moment, **fields}


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


def prune(store: JobCollection, ranges: Sequence[Expired]) -> int:
    """All batches of them, as the pruner does it."""
    count = 0
    for one in ranges:
        since = None
        while (batch := retention.choose(store, one, since)).ids:
            count += retention.delete_if_expired(store, one, batch.ids)
            since = batch.last_ended_at
    return count


def test_index_of_retention_is_there_only_where_it_is_wanted_and_holds_ended_jobs_only(
    store: JobCollection, jobs: Collection
) -> None:
    indexes.ensure(store)
    before = set(jobs.index_information())
    assert not any("ended" in name for name in before)
    indexes.ensure(store, BY_AGE)
    assert set(jobs.index_information()) - before == {"trio_monque_ended"}
    indexes.ensure(store, BY_COUNT)
    assert set(jobs.index_information()) - before == {"trio_monque_ended", "trio_monque_ended_by_name"}
    jobs.insert_many([document(0, status=status.value) for status in JobStatus])
    (stats,) = jobs.aggregate([{"$collStats": {"storageStats": {}}}])
    assert stats["storageStats"]["count"] == 5
    for name in ("trio_monque_ended", "trio_monque_ended_by_name"):
        walked = jobs.find({"status": {"$in": ["completed", "failed", "cancelled"]}}, hint=name).explain()
        assert walked["executionStats"]["totalKeysExamined"] <= 3 + 2  # It seeks once for each status.
        assert walked["executionStats"]["nReturned"] == 3


async def test_scheduler_makes_the_index_of_its_retention_and_makes_it_again(db: Database, jobs: Collection) -> None:
    async with open_scheduler(db):
        await Monque(db).enqueue("greet")
        assert "trio_monque_ended" not in jobs.index_information()
    async with open_scheduler(db, retention=BY_AGE) as scheduler:
        assert "trio_monque_ended" in jobs.index_information()
        assert "trio_monque_ended_by_name" not in jobs.index_information()
        jobs.drop_indexes()
        context_of(scheduler).forget_indexes()
        await scheduler.enqueue("greet")
        assert "trio_monque_ended" in jobs.index_information()


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize("wanted", [BY_AGE, BY_COUNT])
def test_both_libraries_can_make_their_indexes_with_retention_on(
    store: JobCollection, jobs: Collection, wanted: Retention, ours_first: bool
) -> None:
    if ours_first:
        indexes.ensure(store, wanted)
    jobs.create_indexes(list(node_peer.INDEXES))
    if not ours_first:
        indexes.ensure(store, wanted)
    jobs.create_indexes(list(node_peer.INDEXES))
    indexes.ensure(store, wanted)


def profiled(db: Database) -> list[tuple[str, int, int]]:
    """Of what was sent to the jobs since `profile` was said: plan, index entries and documents examined."""
    db.command("profile", 0)
    found = db["system.profile"].find({"ns": f"{db.name}.monque_jobs"}, sort=[("$natural", 1)])
    return [(one["planSummary"], one["keysExamined"], one["docsExamined"]) for one in found]


def test_choice_reads_the_index_only_and_no_more_of_it_than_it_answers(
    store: JobCollection, jobs: Collection, db: Database
) -> None:
    indexes.ensure(store, BY_AGE)
    jobs.insert_many([document(number) for number in range(3000)] + [document(9, status="failed") for _ in range(99)])
    db.command("profile", 2)
    old = retention.ended_before(COMPLETED, at(1500))
    first = retention.choose(store, old, None)
    retention.delete_if_expired(store, old, first.ids)
    second = retention.choose(store, old, first.last_ended_at)
    by_id, covered = "IXSCAN { _id: 1 }", "IXSCAN { status: 1, updatedAt: 1, _id: 1 }"
    assert (len(first.ids), first.is_last, len(second.ids), second.is_last) == (1000, False, 500, True)
    found = profiled(db)
    assert [(plan, read) for plan, _, read in found] == [(covered, 0), (by_id, 1000), (covered, 0)]
    assert (found[0][1], found[2][1]) == (1000, 500)


def test_choice_by_count_takes_a_step_for_each_name_and_one_for_each_job_that_is_kept(
    store: JobCollection, jobs: Collection, db: Database
) -> None:
    indexes.ensure(store, BY_COUNT)
    jobs.insert_many([document(number, name=f"name-{number % 5}") for number in range(2000)])
    db.command("profile", 2)
    names = retention.names(store, COMPLETED)
    ranges = retention.beyond_the_last(store, COMPLETED, names[2], 10, at(10_000))
    assert [len(retention.choose(store, one, None).ids) for one in ranges] == [389, 1]
    assert names == [f"name-{number}" for number in range(5)]
    by_name = "{ status: 1, name: 1, updatedAt: 1, _id: 1 }"
    (names_plan, *steps), *rest = profiled(db)
    assert names_plan.startswith("DISTINCT_SCAN "), "by whichever index begins with the name or the status"
    assert steps == [5, 0]
    assert rest == [
        (f"IXSCAN {by_name}", 11, 0),
        (f"IXSCAN {by_name}", 389, 0),
        (f"IXSCAN {by_name}", 1, 0),
    ]


@pytest.mark.parametrize("keep", [1, 3, 7, 20])
@pytest.mark.parametrize("cutoff", [0.0, 2.0, 2.5, 100.0])
def test_the_newest_of_a_name_and_status_are_kept_also_where_many_ended_in_one_millisecond(
    store: JobCollection, jobs: Collection, keep: int, cutoff: float
) -> None:
    ends = [0, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4]
    jobs.insert_many([document(end) for end in ends])
    others = [document(0, name="other"), document(0, status="failed"), document(0, name="Greet")]
    jobs.insert_many(others)
    newest_first = list(jobs.find({"name": "greet", "status": "completed"}, sort=[("updatedAt", -1), ("_id", -1)]))
    kept = [one["_id"] for place, one in enumerate(newest_first) if place < keep or one["updatedAt"] >= at(cutoff)]
    ranges = retention.beyond_the_last(store, COMPLETED, "greet", keep, at(cutoff))
    assert prune(store, ranges) == len(ends) - len(kept)
    left = [one["_id"] for one in jobs.find({"name": "greet", "status": "completed"})]
    assert sorted(left) == sorted(kept)
    assert jobs.count_documents({}) == len(kept) + len(others)


def test_what_has_changed_since_it_was_chosen_stays(store: JobCollection, jobs: Collection) -> None:
    ids = jobs.insert_many([document(0) for _ in range(5)]).inserted_ids
    old = retention.ended_before(COMPLETED, at(10))
    batch = retention.choose(store, old, None)
    assert list(batch.ids) == ids
    jobs.update_one({"_id": ids[0]}, {"$set": {"status": "pending"}})
    jobs.update_one({"_id": ids[1]}, {"$set": {"status": "failed"}})
    jobs.update_one({"_id": ids[2]}, {"$set": {"updatedAt": at(10)}})
    assert retention.delete_if_expired(store, old, batch.ids) == 2
    assert {one["_id"] for one in jobs.find()} == set(ids[:3])


def test_retention_neither_counts_nor_deletes_malformed_jobs(store: JobCollection, jobs: Collection) -> None:
    indexes.ensure(store, BY_COUNT)
    broken = [
        document(0, updatedAt="yesterday"),
        document(0, updatedAt=None),
        document(0, status="done"),
        {**document(0), "name": 7},
    ]
    jobs.insert_many([*broken, *(document(number) for number in range(3))])
    # Bytes that are no text, in the name: the driver cannot even decode it.
    whole = encode(document(0, name="no-text", _id=1))
    jobs.insert_one(RawBSONDocument(BSON(whole.replace(b"no-text", b"no-te\xff\xfe"))))
    assert prune(store, retention.beyond_the_last(store, COMPLETED, "greet", 1, at(100))) == 2
    names = retention.names(store, COMPLETED)
    assert sorted(names) == ["greet", "no-te\ufffd\ufffd"]
    for name in names:
        assert prune(store, retention.beyond_the_last(store, COMPLETED, name, 1, at(100))) == 0
    assert jobs.count_documents({}) == len(broken) + 1 + 1


@pytest.mark.parametrize("strange", [Timestamp(1, 1), DatetimeMS(-(10**14))], ids=["no date", "before the year 1"])
def test_document_whose_end_has_no_place_among_dates_takes_no_place_of_a_job_that_is_kept(
    store: JobCollection, jobs: Collection, strange: Any
) -> None:
    """In the index, a timestamp is newer than every date; a moment that Python has no date for is the oldest."""
    indexes.ensure(store, BY_COUNT)
    jobs.insert_many([document(0), document(1), document(0, updatedAt=strange)])
    assert retention.beyond_the_last(store, COMPLETED, "greet", 2, at(100)) == ()


def test_retention_does_not_delete_foreign_documents(store: JobCollection, jobs: Collection) -> None:
    theirs = [
        {"status": "completed", "updatedAt": PAST},
        {**document(0), "_id": "an order"},
        {**document(0), "name": None},
        document(0, nextRunAt="never"),
        document(0, createdAt=None),
    ]
    jobs.insert_many([*theirs, document(0)])
    old = retention.ended_before(COMPLETED, at(10))
    assert retention.delete_if_expired(store, old, retention.choose(store, old, None).ids) == 1
    assert jobs.count_documents({}) == len(theirs)


def test_lock_is_one_holders_until_it_is_given_back_or_has_run_out(
    store: JobCollection, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    lease = instances.LOCK_LEASE
    assert instances.locked_until(store, "l") is None
    assert instances.take_lock(store, "l", "a", "one", PAST)
    assert not instances.take_lock(store, "l", "b", "two", PAST)
    assert instances.locked_until(store, "l") == PAST + lease
    assert instances.renew_lock(store, "l", "a", at(30))
    assert not instances.renew_lock(store, "l", "b", at(30))
    instances.release_lock(store, "l", "b")
    late = at(30) + lease
    assert not instances.take_lock(store, "l", "b", "two", late - timedelta(milliseconds=1))
    assert instances.take_lock(store, "l", "b", "two", late)
    assert not instances.renew_lock(store, "l", "a", late)
    instances.release_lock(store, "l", "b")
    assert instances.take_lock(store, "l", "c", "three", PAST)
    # It is not an entry of an instance, and the log does not advise to delete it.
    assert instances.read_all(store) == []
    assert instances.read(store, "lock:l") is None
    assert caplog.records == []
    assert db["monque_jobs.instances"].count_documents({}) == 1


@pytest.mark.parametrize("until", [at(86400), "soon", None, 7])
def test_lock_with_an_impossible_date_is_taken(store: JobCollection, db: Database, until: object) -> None:
    """A server's clock that stepped back by a day, or a hand that slipped."""
    db["monque_jobs.instances"].insert_one({"_id": "lock:l", "until": until})
    assert instances.locked_until(store, "l") == (until if isinstance(until, datetime) else None)
    assert instances.take_lock(store, "l", "a", "one", PAST)
    assert instances.locked_until(store, "l") == PAST + instances.LOCK_LEASE
