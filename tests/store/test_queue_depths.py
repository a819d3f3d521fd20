"""What one command counts for monitors: of each name, and whatever other programs have written."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.examined import examined
from tests.support.store import PAST, claim_due, handle, insert, stamp
from trio_monque.jobs import QueueDepth
from trio_monque.jobs.job import JobStatus
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import indexes
from trio_monque.store.reads import queue_depths
from trio_monque.store.reads.queue_depths import DepthCaps

NOW = PAST + timedelta(hours=1)


@pytest.fixture
def store(db: Database) -> JobCollection:
    jobs = handle(db)
    indexes.ensure(jobs)
    return jobs


def document(name: Any, status: str, **fields: Any) -> Mapping[str, Any]:
    return {"name": name, "status": status, "nextRunAt": PAST, "createdAt": PAST, "updatedAt": PAST, **fields}


def test_each_name_has_its_jobs_by_status_and_the_age_of_the_oldest_due_one(
    store: JobCollection, jobs: Collection
) -> None:
    for delay in (30, 10, 7200):
        insert(store, "mail", run_at=PAST + timedelta(seconds=delay))
    insert(store, "later", run_at=NOW + timedelta(seconds=1))
    jobs.insert_many([document("mail", status) for status in ("completed", "completed", "failed", "cancelled")])
    insert(store, "runs")
    claim_due(store, {"runs": 1}, stamp(at=NOW), NOW)
    assert queue_depths.queue_depths(store, NOW) == {
        "mail": QueueDepth(pending=3, due=2, completed=2, failed=1, cancelled=1, oldest_due_age=3590.0),
        "later": QueueDepth(pending=1),
        "runs": QueueDepth(processing=1, longest_run=0.0),
    }
    assert queue_depths.queue_depths(handle(jobs.database), PAST)["mail"].oldest_due_age is None


@pytest.mark.parametrize("has_indexes", [True, False])
def test_empty_collection_has_no_names(db: Database, has_indexes: bool) -> None:
    store = handle(db)
    if has_indexes:
        indexes.ensure(store)
    assert queue_depths.queue_depths(store, NOW) == {}


def test_counts_are_the_same_without_the_indexes(db: Database, jobs: Collection) -> None:
    jobs.insert_many([document(name, status) for name in "ab" for status in JobStatus for _ in range(3)])
    counted = queue_depths.queue_depths(handle(db), NOW)
    indexes.ensure(handle(db))
    assert queue_depths.queue_depths(handle(db), NOW) == counted
    assert (
        counted["a"]
        == counted["b"]
        == QueueDepth(
            pending=3, due=3, processing=3, completed=3, failed=3, cancelled=3, oldest_due_age=3600.0, stuck=3
        )
    )


LEASE = timedelta(seconds=90)


@pytest.mark.parametrize(
    ("claim", "is_stuck"),
    [
        ({"lastHeartbeat": NOW - LEASE, "heartbeatInterval": 30_000}, False),
        ({"lastHeartbeat": NOW - LEASE - timedelta(milliseconds=1), "heartbeatInterval": 30_000}, True),
        ({"lastHeartbeat": NOW - timedelta(seconds=2), "heartbeatInterval": 400}, True),
        ({"lastHeartbeat": NOW - timedelta(seconds=1), "heartbeatInterval": 1}, True),
        ({"lastHeartbeat": NOW - timedelta(hours=1), "heartbeatInterval": 10**12}, True),
        ({"lastHeartbeat": NOW - timedelta(minutes=14)}, False),
        ({"lastHeartbeat": NOW - timedelta(minutes=14), "heartbeatInterval": "often"}, False),
        ({"lastHeartbeat": NOW - timedelta(minutes=16), "heartbeatInterval": None}, True),
        ({"lastHeartbeat": datetime(9999, 1, 1, tzinfo=UTC), "heartbeatInterval": 30_000}, False),
        ({"lastHeartbeat": "yesterday", "heartbeatInterval": 30_000}, True),
        ({}, True),
    ],
    ids=str,
)
def test_job_is_stuck_when_its_lease_is_over_also_with_fields_of_other_types(
    store: JobCollection, jobs: Collection, claim: Mapping[str, Any], is_stuck: bool
) -> None:
    jobs.insert_one(document("mail", "processing", claimedBy="them", **claim))
    assert queue_depths.queue_depths(store, NOW) == {"mail": QueueDepth(processing=1, stuck=is_stuck)}


def test_documents_that_are_no_jobs_are_left_out(store: JobCollection, jobs: Collection) -> None:
    insert(store, "mail", run_at=PAST)
    jobs.insert_many(
        [
            document(7, "pending"),
            document(None, "processing"),
            document("mail", "unheard-of"),
            {**document("mail", "pending"), "nextRunAt": "soon"},
            {"status": "pending"},
        ]
    )
    assert queue_depths.queue_depths(store, NOW) == {"mail": QueueDepth(pending=1, due=1, oldest_due_age=3600.0)}


def test_long_history_costs_as_much_as_a_short_one(db: Database, store: JobCollection, jobs: Collection) -> None:
    jobs.insert_many([document(name, "completed") for name in ("a", "b", "c") for _ in range(300)])
    jobs.insert_many([document("b", "pending") for _ in range(30)])
    found, cost = examined(db, lambda: queue_depths.queue_depths(store, NOW, DepthCaps(10, 10, 10)))
    assert found["b"] == QueueDepth(
        pending=10,
        due=10,
        completed=10,
        oldest_due_age=3600.0,
        capped=frozenset({JobStatus.PENDING, JobStatus.COMPLETED}),
    )
    assert found["a"].capped == {JobStatus.COMPLETED}
    assert cost.documents == 0
    assert cost.keys < 100
    assert not cost.sorted


def test_due_ones_are_counted_up_to_the_cap_of_pending_ones(store: JobCollection) -> None:
    for minutes in range(-5, 3):
        insert(store, "mail", run_at=NOW + timedelta(minutes=minutes))
    assert queue_depths.queue_depths(store, NOW)["mail"].due == 6
    capped = queue_depths.queue_depths(store, NOW, DepthCaps(pending=4))["mail"]
    assert (capped.pending, capped.due, capped.capped) == (4, 4, frozenset({JobStatus.PENDING}))


def test_statuses_without_a_cap_are_not_read(db: Database, store: JobCollection, jobs: Collection) -> None:
    jobs.insert_many([document("a", status) for status in ("completed", "failed", "pending") for _ in range(100)])
    found, cost = examined(db, lambda: queue_depths.queue_depths(store, NOW, DepthCaps(10, 0, 0)))
    assert found["a"] == QueueDepth(pending=10, due=10, oldest_due_age=3600.0, capped=frozenset({JobStatus.PENDING}))
    assert cost.keys < 20
