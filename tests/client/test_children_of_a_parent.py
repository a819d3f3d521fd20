"""`JobFilter(parent=...)`: the children of a job; live ones along their index, and all by their ids."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any, Final

import pytest
from bson import ObjectId
from pymongo import MongoClient

from tests.support.interception import Recorder
from tests.support.internals import context_of
from tests.support.store import handle, insert
from trio_monque import JobFilter, Monque
from trio_monque.errors import InvalidOptionError
from trio_monque.jobs.job_selector import LIVE
from trio_monque.jobs.nursery_scopes import child_id, ids_of_children
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import indexes

# Of one second, so that the ranges of their children are the same.
SCOPE, OTHER = ObjectId("6a0000000000000000000001"), ObjectId("6a0000000000000000000002")


@pytest.fixture
def parent(db: Database, jobs: Collection) -> ObjectId:
    """A parent with children in every status, beside children of another scope and jobs that are none."""
    found = insert(handle(db)).id
    template: Any = jobs.find_one({"_id": found})
    jobs.update_one({"_id": found}, {"$set": {"ownScope": SCOPE, "status": "processing"}})
    for number, status in enumerate(["pending", "processing", "completed", "failed", "cancelled", "pending"]):
        child = {"parent": found, "block": "0", "childKey": str(number), "name": f"name {number % 2}", "status": status}
        for scope in (SCOPE, OTHER):
            jobs.insert_one({**template, **child, "_id": child_id(scope, "0", str(number)), "scope": scope})
    indexes.ensure(handle(db), also=[indexes.SCOPES])
    return found


def keys(monque: Monque, **options: Any) -> list[str | None]:
    found: list[str | None] = []
    cursor = None
    while True:
        page = monque.sync.get_jobs_with_cursor(cursor=cursor, **options)
        found += [None if job.child is None else job.child.key for job in page.jobs]
        cursor = page.cursor
        if not page.has_next_page:
            return found


SORTS: Final = ["id", "-id", "created_at", "next_run_at", "-updated_at"]


@pytest.mark.parametrize("sort", SORTS)
def test_live_children_are_found_in_every_order_and_page_by_page(db: Database, parent: ObjectId, sort: str) -> None:
    monque = Monque(db)
    assert sorted(map(str, keys(monque, filter=JobFilter(parent=parent, status=LIVE), sort=sort))) == ["0", "1", "5"]
    assert len(keys(monque, filter=JobFilter(parent=str(parent), status=LIVE), sort=sort, limit=1)) == 3
    assert keys(monque, filter=JobFilter(parent=parent, status="processing"), sort=sort) == ["1"]
    assert keys(monque, filter=JobFilter(parent=parent, status="pending", name="name 0"), sort=sort) == ["0"]


@pytest.mark.parametrize("sort", SORTS)
def test_children_that_have_ended_are_found_too(db: Database, parent: ObjectId, sort: str) -> None:
    monque = Monque(db)
    assert sorted(map(str, keys(monque, filter=JobFilter(parent=parent), sort=sort))) == ["0", "1", "2", "3", "4", "5"]
    in_order = keys(monque, filter=JobFilter(parent=parent), sort=sort, limit=1)
    assert sorted(map(str, in_order)) == ["0", "1", "2", "3", "4", "5"]
    last = monque.sync.get_jobs_with_cursor(filter=JobFilter(parent=parent), sort=sort, limit=4, direction="backward")
    assert [job.child and job.child.key for job in last.jobs] == in_order[-4:]
    assert keys(monque, filter=JobFilter(parent=parent, status=["failed"]), sort=sort) == ["3"]
    ended = JobFilter(parent=parent, status=["completed", "failed", "processing"], name="name 1")
    assert sorted(map(str, keys(monque, filter=ended, sort=sort))) == ["1", "3"]


def test_other_jobs_have_no_children(db: Database, jobs: Collection, parent: ObjectId) -> None:
    monque = Monque(db)
    assert keys(monque, filter=JobFilter(parent=ObjectId())) == []
    jobs.update_one({"_id": parent}, {"$unset": {"ownScope": True}})
    assert keys(monque, filter=JobFilter(parent=parent)) == []
    jobs.update_one({"_id": parent}, {"$set": {"lastScope": SCOPE}})
    assert len(keys(monque, filter=JobFilter(parent=parent))) == 6, "its work has ended, or its occurrence"


@pytest.mark.parametrize("sort", SORTS)
def test_first_and_last_id_that_a_child_can_have_are_found(
    db: Database, jobs: Collection, parent: ObjectId, sort: str
) -> None:
    template: Any = jobs.find_one({"childKey": "2", "scope": SCOPE})
    jobs.insert_many([{**template, "_id": one, "childKey": "end"} for one in ids_of_children(SCOPE)])
    found = keys(Monque(db), filter=JobFilter(parent=parent, status="completed"), sort=sort, limit=1)
    assert sorted(map(str, found)) == ["2", "end", "end"]


def test_children_are_read_among_the_jobs_of_the_second_of_their_scope(
    mongod: Any, db: Database, jobs: Collection, parent: ObjectId
) -> None:
    template: Any = jobs.find_one({"_id": parent})
    second = SCOPE.generation_time.replace(tzinfo=UTC)
    for seconds in (-1, 1):
        at = ObjectId.from_datetime(second + timedelta(seconds=seconds))
        jobs.insert_many([{**template, "_id": ObjectId(at.binary[:4] + bytes([one] * 8))} for one in range(50)])
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder], tz_aware=True) as client:
        keys(Monque(client[db.name]), filter=JobFilter(parent=parent, status="failed"), limit=1)
    pages = [command for name, command in recorder.commands if name in ("find", "aggregate")][1:]
    assert {one["hint"] for one in pages} == {"_id_"}
    plan = db.command("explain", {"find": jobs.name, "filter": {"_id": range_of(pages[0])}, "hint": "_id_"})
    assert plan["executionStats"]["totalDocsExamined"] == 12, "those of both scopes"


def range_of(command: dict[str, Any]) -> Any:
    return command["filter"]["_id"] if "filter" in command else command["pipeline"][0]["$match"]["_id"]


def test_server_reads_no_other_jobs(mongod: Any, db: Database, parent: ObjectId) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder], tz_aware=True) as client:
        keys(Monque(client[db.name]), filter=JobFilter(parent=parent, status=LIVE))
    finds = [command for name, command in recorder.commands if name == "find"]
    assert [one["hint"] for one in finds] == [{"_id": 1}, "trio_monque_scopes"]
    plan = db.command("explain", {key: finds[1][key] for key in ("find", "filter", "sort", "hint", "limit")})
    assert plan["executionStats"]["totalDocsExamined"] == 3
    assert context_of(Monque(db)).jobs.collection.name == finds[1]["find"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"parent": "no id"}, "must be the id of a job"),
        ({"parent": "0" * 24, "instance": "one"}, "choose one"),
        ({"parent": "0" * 24, "name": "a", "unique_key": "k"}, "choose one"),
    ],
)
def test_filter_that_no_index_serves_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidOptionError, match=complaint):
        JobFilter(**options)
