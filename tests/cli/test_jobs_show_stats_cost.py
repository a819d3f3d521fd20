"""However many jobs there are, each command that looks reads a bounded number of them, along an index."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pytest
from bson import ObjectId

from tests.support.examined import profiling
from tests.support.many_jobs import insert_all
from tests.support.store import handle
from tests.support.thoroughly import FULL
from trio_monque.client.questions import MOST_AHEAD
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.job import JobStatus
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import indexes
from trio_monque.store.reads.queries import MOST_EXAMINED
from trio_monque.store.reads.queue_depths import DepthCaps

from .command_support import command_of
from .doctor_support import enter, now

NUMBER: Final = 1_000_000 if FULL else 30_000
"""More than a page reads, and than the jobs ahead of one that are counted."""

NAMES: Final = ("mail", "report", "sync")
MOST_KEYS: Final = len(NAMES) * (sum(DepthCaps().of().values()) + 10)
"""A server reads more than a million keys in a second."""

STATUSES: Final = (*[str(one) for one in JobStatus if one is not JobStatus.PROCESSING], "pending")

MARK: Final = ObjectId()

LISTS: Final = [
    ["jobs"],
    ["jobs", "--name", "mail"],
    ["jobs", "--name", "mail", "--status", "pending"],
    ["jobs", "--status", "failed"],
    ["jobs", "--status", "processing"],
    ["jobs", "--status", "pending", "--older-than", "1s"],
    ["jobs", "--status", "failed", "--name", "mail", "--fail-reason", "nowhere"],
    ["jobs", "--fail-reason", "nowhere"],
    ["jobs", "--newer-than", "100d"],
    ["jobs", "--data", "order=17"],
    ["jobs", "--name", "mail", "--status", "failed", "--data", "order=17", "--meta", "tenant=acme"],
    *(["jobs", "--name", "rare", "--sort", sign + order] for order in ("id", "updated_at") for sign in ("", "-")),
    ["instances"],
    ["schedules"],
    ["jobs", "--held-by", "worker-1"],
    ["errors"],
    ["errors", "--name", "mail"],
    ["show", "--raw", str(MARK)],
    ["indexes"],
]


def documents(last: ObjectId) -> Iterator[dict[str, Any]]:
    """Two fifths are pending and due, and the last one of them all has all others before it."""
    begin = now() - timedelta(hours=12)
    for one in range(NUMBER):
        moment = begin + timedelta(milliseconds=one * 10)
        status = STATUSES[one % len(STATUSES)] if one < NUMBER - 1 else "pending"
        yield {
            "_id": ObjectId() if one < NUMBER - 1 else last,
            "name": NAMES[one // len(STATUSES) % len(NAMES)] if one < NUMBER - 1 else "mail",
            "data": None,
            "status": status,
            "failCount": 1,
            "failReason": "OSError: no route",
            "nextRunAt": moment,
            "createdAt": moment,
            "updatedAt": moment,
        }


@pytest.mark.full
@pytest.mark.larger_in_full
@pytest.mark.timeout(300)
def test_each_command_reads_a_bounded_number_of_documents_along_an_index(
    mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    last = MARK
    insert_all(db["monque_jobs"], documents(last))
    indexes.ensure(handle(db, operation_timeout=300.0))
    enter(db, "worker-1", *NAMES)
    command = command_of(mongod, db, capsys)
    for arguments in [*LISTS, ["show", str(last)], ["stats"]]:
        with profiling(db, 16 << 20) as reported:
            ended = command(*arguments)
        assert ended.status == 0, (arguments, ended.err)
        entries = [one for one in reported() if one["op"] != "getmore"]
        assert entries or arguments[0] in ("instances", "indexes"), arguments
        for entry in entries:
            where = (arguments, entry["command"], entry.get("planSummary"), entry.get("docsExamined"))
            assert "COLLSCAN" not in entry.get("planSummary", ""), where
            assert not entry.get("hasSortStage", False) or "processing" in str(entry["command"]), where
            assert entry.get("docsExamined", 0) <= max(MOST_EXAMINED, MOST_AHEAD) + 2, where
            assert entry.get("keysExamined", 0) <= MOST_KEYS, where
        if arguments == ["show", str(last)]:
            assert "more than 1,000 jobs of its name are due before it" in ended.out
        if arguments == ["stats"]:
            # The table, and the look for documents that it leaves out.
            assert [one["command"].get("find") is not None for one in entries] == [False, True]


def test_jobs_of_an_instance_are_found_by_the_index_and_read_without_their_data(
    mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = now() - timedelta(hours=12)
    dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), begin)
    held = {"name": "mail", "data": "x" * 10_000, "status": "processing", **dates}
    number = MOST_AHEAD
    db["monque_jobs"].insert_many(
        {**held, "claimedBy": f"worker-{1 + (one % 100 != 0)}", "lockedAt": begin + timedelta(seconds=one)}
        for one in range(number)
    )
    indexes.ensure(handle(db))
    with profiling(db, 16 << 20) as reported:
        ended = command_of(mongod, db, capsys)("jobs", "--held-by", "worker-1", "--limit", "5", "--json")
    assert [one["locked_at"][14:19] for one in ended.json["jobs"]] == [
        f"{begin + timedelta(seconds=100 * place):%M:%S}" for place in range(5)
    ]
    (entry,) = [one for one in reported() if "claimedBy" in str(one["command"])]
    assert (entry["docsExamined"], entry["keysExamined"], entry.get("hasSortStage", False)) == (6, 6, False)
    assert entry["responseLength"] < 10_000
