"""`JobFilter(parent=...)`: the live children of a job, along their index."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from tests.support.interception import Recorder
from tests.support.internals import context_of
from tests.support.store import handle, insert
from trio_monque import JobFilter, Monque
from trio_monque.errors import InvalidOptionError
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import indexes

SCOPE, OTHER = ObjectId(), ObjectId()


@pytest.fixture
def parent(db: Database, jobs: Collection) -> ObjectId:
    """A parent with children in every status, beside children of another scope and jobs that are none."""
    found = insert(handle(db)).id
    template: Any = jobs.find_one({"_id": found})
    jobs.update_one({"_id": found}, {"$set": {"ownScope": SCOPE, "status": "processing"}})
    for number, status in enumerate(["pending", "processing", "completed", "failed", "cancelled", "pending"]):
        child = {"scope": SCOPE, "parent": found, "block": "0", "childKey": str(number), "name": f"name {number % 2}"}
        jobs.insert_one({**template, **child, "_id": ObjectId(), "status": status})
        jobs.insert_one({**template, **child, "_id": ObjectId(), "status": status, "scope": OTHER})
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


@pytest.mark.parametrize("sort", ["id", "-id", "created_at", "next_run_at", "-updated_at"])
def test_live_children_are_found_in_every_order_and_page_by_page(db: Database, parent: ObjectId, sort: str) -> None:
    monque = Monque(db)
    assert sorted(map(str, keys(monque, filter=JobFilter(parent=parent), sort=sort))) == ["0", "1", "5"]
    assert len(keys(monque, filter=JobFilter(parent=str(parent)), sort=sort, limit=1)) == 3
    assert keys(monque, filter=JobFilter(parent=parent, status="processing"), sort=sort) == ["1"]
    assert keys(monque, filter=JobFilter(parent=parent, name="name 0"), sort=sort) == ["0"]


def test_other_jobs_have_no_children(db: Database, jobs: Collection, parent: ObjectId) -> None:
    monque = Monque(db)
    assert keys(monque, filter=JobFilter(parent=ObjectId())) == []
    jobs.update_one({"_id": parent}, {"$unset": {"ownScope": True}})
    assert keys(monque, filter=JobFilter(parent=parent)) == [], "it is over, and its children are being cancelled"


def test_server_reads_no_other_jobs(mongod: Any, db: Database, parent: ObjectId) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder], tz_aware=True) as client:
        keys(Monque(client[db.name]), filter=JobFilter(parent=parent))
    finds = [command for name, command in recorder.commands if name == "find"]
    assert [one["hint"] for one in finds] == [{"_id": 1}, "trio_monque_scopes"]
    plan = db.command("explain", {key: finds[1][key] for key in ("find", "filter", "sort", "hint", "limit")})
    assert plan["executionStats"]["totalDocsExamined"] == 3
    assert context_of(Monque(db)).jobs.collection.name == finds[1]["find"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"parent": "no id"}, "must be the id of a job"),
        ({"parent": "0" * 24, "status": "failed"}, "only pending and running children"),
        ({"parent": "0" * 24, "instance": "one"}, "choose one"),
        ({"parent": "0" * 24, "name": "a", "unique_key": "k"}, "choose one"),
    ],
)
def test_filter_that_no_index_serves_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidOptionError, match=complaint):
        JobFilter(**options)
