"""The parts of a page are read as they were at one moment, or so that what moves between them is seen all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations_with_replacement
from typing import Any

import pytest
from pymongo import MongoClient, monitoring
from pymongo.errors import OperationFailure

from tests.support.internals import make_indexes
from tests.support.standalone import standalone_server
from tests.support.thoroughly import one_in
from trio_monque import JobFilter, JobStatus, Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LIVE_OR_DONE = JobFilter(status=["pending", "processing", "completed"])
SNAPSHOT_TOO_OLD = 239
RUNS = {"status": "processing", "claimedBy": "x", "lockedAt": BEGIN}
ENDS = {
    "$set": {"status": "completed", "updatedAt": BEGIN + timedelta(milliseconds=5)},
    "$unset": {"claimedBy": "", "lockedAt": ""},
}
MEANWHILE: dict[str, Sequence[tuple[dict[str, Any], dict[str, Any]]]] = {
    "claimed": [({"status": "pending"}, {"$set": RUNS})],
    "claimed, and ended": [({"status": "pending"}, {"$set": RUNS}), ({"status": "processing"}, ENDS)],
}
WRITTEN_WITH = {
    "in one snapshot": "majority",
    "where a snapshot would hide what was just written": 1,
}


class BetweenReads(monitoring.CommandListener):
    """Does something before the second read of the jobs is sent, something else before the third, and so on."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = dict(enumerate(steps, 2))
        self.reads: list[Any] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command_name in ("find", "aggregate"):
            self.reads.append(event.command)
            self._steps.pop(len(self.reads), lambda: None)()

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...

    @property
    def in_snapshot(self) -> list[bool]:
        return [read.get("readConcern", {}).get("level") == "snapshot" for read in self.reads]


@contextmanager
def listened(mongod: EmbeddedServer, db: Database, listener: Any) -> Iterator[Database]:
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[listener]) as client:
        yield client[db.name]


def put_five(jobs: Collection) -> None:
    at = {"nextRunAt": BEGIN, "createdAt": BEGIN, "updatedAt": BEGIN}
    jobs.insert_many({"name": "n", "data": number, "status": "pending", "failCount": 0, **at} for number in range(5))


def asked_for(monque: Monque, asked: str) -> list[Any]:
    """The data of all jobs: by get_jobs, or by a page in that order."""
    if asked == "get_jobs":
        return sorted(job.data for job in monque.sync.get_jobs(name="n"))
    return sorted(job.data for job in monque.sync.get_jobs_with_cursor(filter=LIVE_OR_DONE, sort=asked).jobs)


ASKED = ("get_jobs", "next_run_at", "-next_run_at", "updated_at", "-updated_at")


@pytest.mark.parametrize(("asked", "changes", "how"), one_in(2, ASKED, list(MEANWHILE), list(WRITTEN_WITH)))
def test_job_that_is_claimed_while_a_page_is_read_is_on_it(
    mongod: EmbeddedServer, db: Database, jobs: Collection, asked: str, changes: str, how: str
) -> None:
    """It changes from one index to the other, and back, between the reads of one page."""
    concern: Any = WRITTEN_WITH[how]
    make_indexes(Monque(db))
    put_five(jobs)
    changed = []

    def change(before: dict[str, Any], update: dict[str, Any]) -> None:
        changed.append(jobs.update_one({"data": 2, **before}, update).modified_count)

    reads = BetweenReads(*(partial(change, *step) for step in MEANWHILE[changes]))
    with listened(mongod, db, reads) as through:
        assert asked_for(Monque(through, write_concern=concern), asked) == [0, 1, 2, 3, 4]
    # In a snapshot each part is read once: what runs, what rests, and by next_run_at the names in between.
    parts = 3 if "next_run_at" in asked else 2
    assert reads.in_snapshot == ([True] * parts if concern == "majority" else [False] * 2 * parts)
    assert changed == [1] * min(len(MEANWHILE[changes]), len(reads.reads) - 1)


RESTS_AGAIN = {"$set": {"status": "pending", "updatedAt": BEGIN}, "$unset": {"claimedBy": "", "lockedAt": ""}}
LIVES: dict[str, tuple[str, Sequence[dict[str, Any]], JobFilter]] = {
    "claimed": ("pending", [{"$set": RUNS}], LIVE_OR_DONE),
    "claimed and ended": ("pending", [{"$set": RUNS}, ENDS], LIVE_OR_DONE),
    "ended": ("processing", [ENDS], LIVE_OR_DONE),
    "ended and claimed": ("processing", [ENDS, {"$set": RUNS}], LIVE_OR_DONE),
    "claimed and released, of live ones": (
        "pending",
        [{"$set": RUNS}, RESTS_AGAIN],
        JobFilter(status=["pending", "processing"]),
    ),
    "released, of live ones": ("processing", [RESTS_AGAIN], JobFilter(status=["pending", "processing"])),
    "retried": ("failed", [RESTS_AGAIN], JobFilter(status=["pending", "failed"])),
}


@pytest.mark.full
@pytest.mark.parametrize(("life", "how"), one_in(2, list(LIVES), list(WRITTEN_WITH)))
def test_only_job_of_its_name_is_on_a_page_whenever_it_changes(
    mongod: EmbeddedServer, db: Database, jobs: Collection, life: str, how: str
) -> None:
    """Its name has jobs at rest, or has none, as often as it changes; and the names are read apart from the jobs."""
    concern: Any = WRITTEN_WITH[how]
    begins, changes, which = LIVES[life]
    make_indexes(Monque(db))
    put_five(jobs)
    at = {"nextRunAt": BEGIN, "createdAt": BEGIN, "updatedAt": BEGIN}
    alone = {"name": "alone", "data": 9, "status": begins, "failCount": 0, **at}
    # The names, what rests, and what runs where that is asked for; twice where jobs may move between these.
    asks_what_runs = JobStatus.PROCESSING in (which.statuses or ())
    reads_of_a_page = 2 if not asks_what_runs else 3 if concern == "majority" else 6
    places = range(1, reads_of_a_page)
    for when in combinations_with_replacement(places, len(changes)):
        jobs.replace_one({"name": "alone"}, alone, upsert=True)
        steps: list[list[dict[str, Any]]] = [[] for _ in places]
        for place, change in zip(when, changes, strict=True):
            steps[place - 1].append(change)

        def make(these: Sequence[dict[str, Any]]) -> None:
            for one in these:
                assert jobs.update_one({"name": "alone"}, one).modified_count == 1

        reads = BetweenReads(*(partial(make, these) for these in steps))
        with listened(mongod, db, reads) as through:
            page = Monque(through, write_concern=concern).sync.get_jobs_with_cursor(filter=which, sort="next_run_at")
        seen = [job.data for job in page.jobs]
        assert seen.count(9) == 1, (when, seen)
        assert len(reads.reads) == reads_of_a_page


def test_job_of_a_name_that_appears_while_a_page_is_read_is_on_the_next(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    make_indexes(Monque(db))
    put_five(jobs)
    later = BEGIN + timedelta(seconds=1)

    def appear() -> None:
        at = {"nextRunAt": later, "createdAt": BEGIN, "updatedAt": BEGIN}
        jobs.insert_one({"name": "new", "data": 9, "status": "pending", "failCount": 0, **at})

    for concern in ("majority", 1):
        jobs.delete_many({"name": "new"})
        pending = JobFilter(status="pending")
        reads = BetweenReads(appear)
        with listened(mongod, db, reads) as through:
            monque = Monque(through, write_concern=concern).sync
            first = monque.get_jobs_with_cursor(filter=pending, sort="next_run_at", limit=3)
            second = monque.get_jobs_with_cursor(filter=pending, sort="next_run_at", limit=3, cursor=first.cursor)
        assert [job.data for job in (*first.jobs, *second.jobs)] == [0, 1, 2, 3, 4, 9]
        assert not second.has_next_page


def test_page_never_has_the_later_of_two_jobs_without_the_earlier_one(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    """Also where the earlier has a name that there was none of when the names were read."""
    make_indexes(Monque(db))
    put_five(jobs)
    at = {"nextRunAt": BEGIN, "createdAt": BEGIN, "updatedAt": BEGIN}

    def appear() -> None:
        for name, number in (("new", 8), ("n", 9)):
            jobs.insert_one({"name": name, "data": number, "status": "pending", "failCount": 0, **at})

    reads = BetweenReads(appear)
    with listened(mongod, db, reads) as through:
        page = Monque(through).sync.get_jobs_with_cursor(filter=JobFilter(status="pending"), sort="next_run_at")
    assert sorted(job.data for job in page.jobs) == [0, 1, 2, 3, 4]
    assert reads.in_snapshot == [True] * 2


@pytest.mark.parametrize("asked", ["get_jobs", "updated_at"])
def test_page_whose_snapshot_the_server_cannot_keep_is_read_without_one(
    mongod: EmbeddedServer, db: Database, jobs: Collection, asked: str
) -> None:
    """SnapshotUnavailable: the collection was made anew between the reads."""
    make_indexes(Monque(db))
    put_five(jobs)

    def make_anew() -> None:
        jobs.drop()
        put_five(jobs)
        make_indexes(Monque(db))

    reads = BetweenReads(make_anew)
    with listened(mongod, db, reads) as through:
        assert asked_for(Monque(through), asked) == [0, 1, 2, 3, 4]
    assert reads.in_snapshot == [True] * 2 + [False] * 4


@pytest.mark.parametrize("asked", ["get_jobs", "updated_at"])
def test_page_whose_snapshot_grew_too_old_is_read_without_one(
    mongod: EmbeddedServer, client: MongoClient[Any], db: Database, jobs: Collection, asked: str
) -> None:
    """SnapshotTooOld: the server keeps as much history as its setting allows."""
    make_indexes(Monque(db))
    put_five(jobs)

    def is_gone(moment: Any) -> bool:
        try:
            db.command("find", jobs.name, readConcern={"level": "snapshot", "atClusterTime": moment})
        except OperationFailure as error:
            if error.code != SNAPSHOT_TOO_OLD:
                raise
            return True
        return False

    def forget() -> None:
        read_at = db.command("ping")["operationTime"]
        while not is_gone(read_at):
            db["others"].insert_one({})

    parameter = "minSnapshotHistoryWindowInSeconds"
    before = client.admin.command({"getParameter": 1, parameter: 1})[parameter]
    client.admin.command({"setParameter": 1, parameter: 0})
    try:
        reads = BetweenReads(forget)
        with listened(mongod, db, reads) as through:
            assert asked_for(Monque(through), asked) == [0, 1, 2, 3, 4]
    finally:
        client.admin.command({"setParameter": 1, parameter: before})
    assert reads.in_snapshot == [True] * 2 + [False] * 4


@pytest.mark.full
@pytest.mark.parametrize("write_concern", ["majority", 1])
def test_what_was_just_written_is_on_the_next_page(db: Database, write_concern: Any) -> None:
    monque = Monque(db, write_concern=write_concern).sync
    for number in range(1, 31):
        written = monque.enqueue("n", number)
        page = monque.get_jobs_with_cursor(sort="-updated_at")
        assert (len(page.jobs), page.jobs[0].id) == (number, written.id)


@pytest.mark.full
def test_pages_of_a_standalone_server_are_read_without_a_snapshot() -> None:
    known, unknown = BetweenReads(), BetweenReads()
    with standalone_server() as uri:
        with MongoClient[Any](uri, tz_aware=True, retryWrites=False, event_listeners=[known]) as client:
            written = Monque(client["pages"]).sync.enqueue("n", 7)
            known.reads.clear()
            assert [job.id for job in Monque(client["pages"]).sync.get_jobs(name="n")] == [written.id]
        assert known.in_snapshot == [False] * 4
        # A client that has asked nothing yet does not know what it talks to.
        with MongoClient[Any](uri, tz_aware=True, connect=False, event_listeners=[unknown]) as client:
            assert asked_for(Monque(client["pages"]), "updated_at") == [7]
        assert unknown.in_snapshot == [True] + [False] * 4
