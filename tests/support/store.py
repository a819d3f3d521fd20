"""The store's handle on a test's collection, and claims made by hand."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId

from trio_monque.clock import to_milliseconds
from trio_monque.jobs.claim_stamps_and_fences import ClaimStamp
from trio_monque.jobs.job import Job
from trio_monque.jobs.new_job import Draft, NewJob, check_new
from trio_monque.jobs.stored_value_limits import check_payload
from trio_monque.store.driver.types import Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import claiming, due, inserting

PAST = datetime(2026, 1, 1, tzinfo=UTC)


def handle(db: Database, **options: Any) -> JobCollection:
    return JobCollection.of(db, "monque_jobs", **{"write_concern": "majority", "operation_timeout": 30.0, **options})


def insert(jobs: JobCollection, name: str = "greet", **fields: Any) -> Job:
    new = NewJob(name=name, **fields)
    check_new(new)
    draft = Draft(ObjectId(), new, check_payload(new.data, None, jobs.codec.callers))
    parcel = inserting.parcel(draft.at(PAST), draft.payload)
    assert not inserting.insert_all(jobs, [parcel])
    return parcel.job


def stamp(instance: str = "us", at: datetime = PAST, every: float = 30.0) -> ClaimStamp:
    return ClaimStamp.new(instance, at, every, secrets.token_hex(6))


def claim(jobs: JobCollection, count: int, mark: ClaimStamp | None = None, name: str = "greet") -> Sequence[Job]:
    """Inserts and claims that many."""
    for _ in range(count):
        insert(jobs, name)
    taken = claim_due(jobs, {name: count}, mark)
    assert len(taken) == count
    return taken


def claimed_by_a_dead_one(jobs: JobCollection, count: int, name: str, every: float) -> None:
    """Claims `count` jobs for an instance that never existed, a moment ago: no time passes until it is dead."""
    now = to_milliseconds(datetime.now(UTC))
    for _ in range(count):
        insert(jobs, name)
    assert len(claim_due(jobs, {name: count}, stamp("dead", now, every), now)) == count


def claim_due(
    jobs: JobCollection, wanted: Mapping[str, int], mark: ClaimStamp | None = None, now: datetime = PAST
) -> Sequence[Job]:
    """Claims what is due, as one claim of a scheduler does."""
    found = due.survey(jobs, wanted, now).jobs
    return claiming.take(jobs, found, now, mark or stamp()).jobs if found else []
