"""Jobs that must start by a moment: either a claim or their end wins, and other jobs pay nothing for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.store import PAST, claim_due, handle, insert, stamp
from trio_monque import Monque, NewJob
from trio_monque.jobs import transitions
from trio_monque.jobs.error_history import Failure
from trio_monque.jobs.job import JobStatus
from trio_monque.store.codec import update_of
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import claiming, due, unstarted_writes
from trio_monque.store.reads import queries

SOON = PAST + timedelta(milliseconds=1)


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


def test_claim_takes_a_job_before_its_moment_and_not_from_then_on(store: JobCollection) -> None:
    limited, free = insert(store, start_by=SOON), insert(store)
    seen = due.look(store, {"greet": 5}, SOON).jobs
    taken = claiming.take(store, seen, SOON, stamp(at=SOON))
    assert [job.id for job in taken.jobs] == [free.id]
    assert [job.id for job in claim_due(store, {"greet": 5}, now=PAST)] == [limited.id]


def test_job_that_is_claimed_is_not_ended_and_one_that_is_ended_is_not_claimed(store: JobCollection) -> None:
    first, second = insert(store, start_by=SOON), insert(store, start_by=SOON)
    seen = due.look(store, {"greet": 5}, PAST).jobs
    claimed = claiming.take(store, [job for job in seen if job.id == first.id], PAST, stamp())
    assert len(claimed.jobs) == 1
    (ended,) = unstarted_writes.end(store, seen, SOON, "receipt")
    assert (ended.id, ended.status) == (second.id, JobStatus.CANCELLED)
    assert ended.fail_reason == "start_by: not started by 2026-01-01T00:00:00.001+00:00"
    assert unstarted_writes.end(store, seen, SOON, "another") == []
    assert claiming.take(store, [job for job in seen if job.id == second.id], PAST, stamp()).jobs == []


def test_job_that_was_cancelled_or_changed_since_it_was_read_is_left_as_it_is(
    store: JobCollection, jobs: Collection
) -> None:
    seen = [insert(store, start_by=SOON) for _ in range(3)]
    jobs.update_one({"_id": seen[0].id}, {"$set": {"status": "cancelled"}})
    jobs.update_one({"_id": seen[1].id}, {"$inc": {"rev": 1}})
    jobs.update_one({"_id": seen[2].id}, {"$unset": {"startBy": ""}})
    before = list(jobs.find())
    assert unstarted_writes.end(store, seen, SOON, "receipt") == []
    assert list(jobs.find()) == before


def test_end_that_is_sent_again_returns_the_same_jobs(store: JobCollection) -> None:
    seen = [insert(store, start_by=SOON) for _ in range(2)]
    first = unstarted_writes.end(store, seen, SOON, "receipt")
    assert unstarted_writes.end(store, seen, SOON, "receipt") == first
    assert len(first) == 2


def test_ended_job_frees_its_unique_key(store: JobCollection) -> None:
    job = insert(store, unique_key="k", start_by=SOON)
    assert len(unstarted_writes.end(store, [job], SOON, "receipt")) == 1
    again = insert(store, unique_key="k")
    assert again.id != job.id


def test_broken_moment_harms_no_other_job(store: JobCollection, jobs: Collection) -> None:
    neighbour = insert(store, start_by=SOON)
    broken = insert(store)
    jobs.update_one({"_id": broken.id}, {"$set": {"startBy": "soon"}})
    seen = due.look(store, {"greet": 5}, SOON).jobs
    assert [job.id for job in seen] == [neighbour.id]
    assert [job.id for job in unstarted_writes.end(store, seen, SOON, "receipt")] == [neighbour.id]


@pytest.mark.parametrize("end", ["retry", "snooze", "rescue", "release"])
def test_only_a_job_that_has_not_run_keeps_its_limit(store: JobCollection, end: str) -> None:
    insert(store, start_by=SOON)
    (job,) = claim_due(store, {"greet": 1})
    ended: dict[str, Any] = {
        "retry": lambda: transitions.retry(job, PAST, Failure("why"), PAST),
        "snooze": lambda: transitions.snooze(job, PAST, PAST),
        "rescue": lambda: transitions.rescue(job, PAST, PAST),
        "release": lambda: transitions.release(job, PAST, has_begun=True),
    }
    assert "startBy" in update_of(ended[end]())["$unset"]
    assert "startBy" not in update_of(transitions.release(job, PAST))["$unset"]


def test_jobs_without_a_moment_are_claimed_and_stored_as_ever(store: JobCollection, jobs: Collection) -> None:
    job = insert(store)
    document = jobs.find_one({"_id": job.id})
    assert document is not None
    assert "startBy" not in document
    (claimed,) = claim_due(store, {"greet": 1})
    assert "startBy" not in str(update_of(transitions.release(claimed, PAST)))
    assert queries.get_job(store, job.id) is not None


def test_index_is_made_by_the_first_job_with_a_moment_and_not_inside_a_transaction(
    db: Database, jobs: Collection
) -> None:
    monque = Monque(db)

    def has_index() -> bool:
        return "trio_monque_start_by" in jobs.index_information()

    monque.sync.enqueue("greet")
    with db.client.start_session() as session, session.start_transaction():
        monque.sync.enqueue("greet", session=session, start_by=SOON)
    assert not has_index()
    assert unstarted_writes.look(handle(db)) == []
    monque.sync.enqueue_many([NewJob("greet", start_by=SOON)])
    assert has_index()
    assert len(unstarted_writes.look(handle(db))) == 2
