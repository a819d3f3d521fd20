"""However many jobs there are, each question of the doctor reads a bounded number of them, along an index."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from tests.support.examined import profiling
from tests.support.many_jobs import insert_all
from tests.support.programs import uri_of_database
from tests.support.store import PAST, handle
from tests.support.thoroughly import FULL
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import indexes
from trio_monque.store.reads.diagnosis import (
    backlog,
    held_jobs,
    jobs,
)

from .doctor_support import Doctor, enter, now

NUMBER = 1_000_000 if FULL else 40_000
"""More than each bound of the doctor, but that of the backlog."""

STATUSES = ("pending", "processing", "failed", "completed")
NAMES = ("mail", "report", "sync")


def documents(number: int) -> Iterator[dict[str, Any]]:
    """A quarter of each status, with what the doctor looks for as far from the heads as possible."""
    begin = now() - timedelta(hours=12)
    for one in range(number):
        moment = begin + timedelta(milliseconds=one * 10)
        status = STATUSES[one % len(STATUSES)]
        document: dict[str, Any] = {
            "_id": ObjectId(),
            "name": NAMES[one // len(STATUSES) % len(NAMES)],
            "data": None,
            "status": status,
            "failCount": 1,
            "nextRunAt": moment,
            "createdAt": moment,
            "updatedAt": moment,
            "uniqueKey": str(one),
        }
        if status == "processing":
            document |= {"claimedBy": f"host-{one % 5}", "lockedAt": moment, "lastHeartbeat": moment}
        yield document


@pytest.mark.full
@pytest.mark.larger_in_full
def test_questions_read_a_bounded_number_of_documents_along_an_index(
    mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    insert_all(db["monque_jobs"], documents(NUMBER))
    # The first by name, and changed before all others: the look at what changed last does not find it.
    hourly = {"_id": ObjectId(), "name": "a", "status": "pending", "repeatInterval": "hourly", "updatedAt": PAST}
    db["monque_jobs"].insert_one({**hourly, "uniqueKey": "a", "failCount": 0, "nextRunAt": now(), "createdAt": PAST})
    indexes.ensure(handle(db, operation_timeout=300.0))
    enter(db, "worker-1", "a", *NAMES)
    doctor = Doctor(uri_of_database(mongod.uri, db.name), capsys)
    with profiling(db, 16 << 20) as reported:
        found = doctor.looks()
    assert set(found.kinds) == {"stuck-node-jobs", "backlog", "bad-schedule", "failed-jobs"}
    failed = [one["fields"] for one in found.findings if one["kind"] == "failed-jobs"]
    assert (sum(one["count"] for one in failed), all(one["is_capped"] for one in failed)) == (jobs.MOST_READ, True)
    questions = list(reported())
    assert len(questions) > 10
    for question in questions:
        assert "COLLSCAN" not in question.get("planSummary", ""), question
        assert question.get("docsExamined", 0) <= jobs.MOST_READ + 1 == held_jobs.MOST_CLAIMS + 1, question
        assert question.get("keysExamined", 0) <= 2 * backlog.MOST_COUNTED, question
        assert question.get("millis", 0) < 1_000, question
        if question["command"].keys() & {"find", "aggregate", "explain"}:
            assert 0 < question["command"]["maxTimeMS"] <= 1_000, question
