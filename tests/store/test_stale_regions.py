"""Which regions a write makes stale, by the change stream that viewers share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from bson import ObjectId

from tests.support.store import PAST, handle, insert
from trio_monque import Monque
from trio_monque.jobs.minutes import ROW, Part
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import minutes_written
from trio_monque.store.jobs.instances import name_of_collection
from trio_monque.store.jobs.stale_regions import (
    ERRORS,
    INSTANCES,
    MINUTES,
    NAMES,
    SCHEDULES,
    jobs_of,
    open_regions,
    region_of,
)


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


def stale_by(store: JobCollection, write: Callable[[], object], only: frozenset[ObjectId] | None = None) -> set[str]:
    """The regions that the write makes stale, between two marks: a narrow stream begins some seconds in the past."""
    first, last = ObjectId(), ObjectId()
    watch = open_regions(store, None if only is None else only | {first, last})

    def until(mark: ObjectId) -> set[str]:
        """What comes up to it, or in one answer with it."""
        store.collection.insert_one({"_id": mark})
        found: set[str] = set()
        while region_of(mark) not in found:
            found |= watch.read()
        return found - {region_of(mark)}

    try:
        until(first)
        write()
        return until(last)
    finally:
        watch.close()
        store.collection.delete_many({"_id": {"$in": [first, last]}})


def test_renewal_of_a_claim_concerns_the_page_of_its_job_alone(store: JobCollection, jobs: Collection) -> None:
    job = insert(store)
    changed = {"lastHeartbeat": PAST, "updatedAt": PAST}
    # The mark is an insert, which concerns the names.
    found = stale_by(store, lambda: jobs.update_one({"_id": job.id}, {"$set": changed}))
    assert found == {region_of(job.id), NAMES}


def test_enqueued_job_concerns_the_names_and_a_recurring_one_the_schedules(store: JobCollection, db: Database) -> None:
    monque = Monque(db)
    assert not stale_by(store, lambda: monque.sync.enqueue("mail")) & {ERRORS, SCHEDULES, INSTANCES, MINUTES}
    schedule = stale_by(store, lambda: monque.sync.schedule("0 0 1 1 *", "yearly", unique_key="yearly"))
    assert schedule >= {NAMES, SCHEDULES}
    assert ERRORS not in schedule


@pytest.mark.parametrize("status", ["pending", "processing", "completed", "failed", "cancelled"])
def test_change_of_a_status_concerns_all_that_show_jobs(store: JobCollection, jobs: Collection, status: str) -> None:
    job = insert(store)
    later = {"status": status, "nextRunAt": PAST + timedelta(hours=1)}
    found = stale_by(store, lambda: jobs.update_one({"_id": job.id}, {"$set": later}))
    assert found == {region_of(job.id), NAMES, ERRORS, SCHEDULES}


def test_deleted_job_concerns_all_that_show_jobs(store: JobCollection, jobs: Collection) -> None:
    job = insert(store)
    found = stale_by(store, lambda: jobs.delete_one({"_id": job.id}))
    assert found == {region_of(job.id), NAMES, ERRORS, SCHEDULES}


def test_pause_and_minutes_have_regions_of_their_own(store: JobCollection, db: Database) -> None:
    assert stale_by(store, lambda: Monque(db).sync.pause("mail")) == {INSTANCES, NAMES}
    part = Part(PAST, 1, {"mail": [0] * ROW})
    assert stale_by(store, lambda: minutes_written.write(store, "w1", "r", [part])) == {MINUTES, NAMES}


def test_other_collections_and_ids_that_no_job_has_concern_nothing_more(store: JobCollection, db: Database) -> None:
    def write() -> None:
        db["things"].insert_one({"status": "failed"})
        store.collection.insert_one({"_id": "text", "status": "failed"})
        store.collection.update_one({"_id": "text"}, {"$set": {"status": ["failed"]}})

    assert stale_by(store, write) == {NAMES, ERRORS, SCHEDULES}


def test_narrow_stream_has_what_is_rare_and_the_jobs_that_are_looked_at(store: JobCollection, db: Database) -> None:
    jobs, monque = store.collection, Monque(db)
    job, another = insert(store), insert(store)
    only = jobs_of({region_of(job.id), NAMES})
    failed = {"$set": {"status": "failed"}}

    def write_much() -> None:
        insert(store)
        jobs.update_one({"_id": another.id}, failed)
        minutes_written.write(store, "w1", "r", [Part(PAST, 1, {"mail": [0] * ROW})])
        beside = db[name_of_collection(jobs.name)]
        beside.update_one({"_id": "w1"}, {"$set": {"held": 3}})

    db[name_of_collection(jobs.name)].insert_one({"_id": "w1", "held": 2})
    assert stale_by(store, write_much, only) == {NAMES}  # Of the mark.
    assert region_of(job.id) in stale_by(store, lambda: jobs.update_one({"_id": job.id}, failed), only)
    assert INSTANCES in stale_by(store, lambda: monque.sync.pause("mail"), only)
    assert INSTANCES in stale_by(store, lambda: monque.sync.resume("mail"), only)
    assert INSTANCES in stale_by(store, lambda: db[name_of_collection(jobs.name)].delete_one({"_id": "w1"}), only)
