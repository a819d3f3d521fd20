"""The commands of follow-ups: each changes only what it was decided for, and reads only what it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId

from tests.support.store import handle
from trio_monque import Job
from trio_monque.jobs.follow_ups import HELD_UNTIL
from trio_monque.store import follow_ups, indexes
from trio_monque.store.decoding import job_of
from trio_monque.store.due import next_due
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.types import Database

LOOKS: Mapping[str, Callable[[JobCollection], Any]] = {
    "owing": lambda jobs: len(follow_ups.owing(jobs, {"pack", "wrap"}, None)),
    "chosen": lambda jobs: len(follow_ups.chosen(jobs, None)),
    "not chosen": lambda jobs: len(follow_ups.not_chosen(jobs, None)[0]),
}


@pytest.mark.parametrize("look", LOOKS)
def test_look_reads_no_job_that_runs_or_waits_or_has_no_mark(db: Database, look: str) -> None:
    jobs = handle(db)
    indexes.ensure(jobs, also=[indexes.FOLLOW_UPS])
    dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), HELD_UNTIL)
    for status in ("pending", "processing", "completed", "failed", "cancelled"):
        common = {"name": "pack", "status": status, "failCount": 0, **dates}
        unmarked = [{**common, "_id": ObjectId()} for _ in range(50)]
        marked = [{**common, "_id": ObjectId(), "followUp": True} for _ in range(50)]
        is_owing = status in ("completed", "failed")
        jobs.collection.insert_many(unmarked + marked[: 1 if is_owing else 50])
    jobs.collection.insert_one({"name": "pack", "status": "completed", "followUp": ObjectId(), **dates})
    held = {"attempt": 1, "due": HELD_UNTIL}
    jobs.collection.insert_one({"name": "ship", "status": "pending", "followUp": held, **dates})
    db.command("profile", 2)
    found = LOOKS[look](jobs)
    db.command("profile", 0)
    first = db["system.profile"].find_one({"command.find": jobs.collection.name}, sort=[("ts", 1)])
    assert first is not None
    assert found == (2 if look == "owing" else 1)
    assert first["docsExamined"] <= found
    assert first["keysExamined"] <= 8


def test_index_is_there_only_where_it_is_wanted(db: Database) -> None:
    jobs = handle(db)
    indexes.ensure(jobs)
    assert "trio_monque_follow_ups" not in jobs.collection.index_information()
    indexes.ensure(jobs, also=[indexes.FOLLOW_UPS])
    assert "trio_monque_follow_ups" in jobs.collection.index_information()


def stored(jobs: JobCollection, **fields: Any) -> Job:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), moment)
    job = {"_id": ObjectId(), "name": "pack", "status": "completed", "failCount": 0, "attempts": 1, **dates, **fields}
    jobs.collection.insert_one(job)
    return job_of(job)


@pytest.mark.parametrize(
    "meanwhile", [{"followUp": ObjectId()}, {"followUp": None}, {"attempts": 2}, {"status": "pending"}]
)
def test_choice_is_for_the_end_that_was_read(db: Database, meanwhile: dict[str, Any]) -> None:
    jobs = handle(db)
    parents = [stored(jobs, followUp=True) for _ in range(2)]
    follow_up = {one.id: stored(jobs, name="ship") for one in parents}
    jobs.collection.update_one({"_id": parents[0].id}, {"$set": meanwhile})
    before = jobs.collection.find_one({"_id": parents[0].id})
    assert follow_ups.choose(jobs, follow_up, parents) == {parents[1].id}
    assert jobs.collection.find_one({"_id": parents[0].id}) == before
    assert follow_ups.chosen(jobs, None).keys() == {parents[1].id} | (
        {parents[0].id} if isinstance(meanwhile.get("followUp"), ObjectId) else set()
    )


def test_release_takes_nothing_but_a_held_job(db: Database) -> None:
    jobs = handle(db)
    due = datetime(2031, 1, 1, tzinfo=UTC)
    mark = {"attempt": 1, "due": due}
    held = stored(jobs, name="ship", status="pending", nextRunAt=HELD_UNTIL, followUp=mark)
    others = [
        stored(jobs, name="ship", status="completed"),
        stored(jobs, name="ship", status="pending"),
        stored(jobs, name="ship", status="cancelled", nextRunAt=HELD_UNTIL, followUp=mark),
        stored(jobs, name="ship", status="pending", followUp=mark),
    ]
    before = list(jobs.collection.find({"_id": {"$ne": held.id}}))
    follow_ups.release(jobs, {ObjectId(): (one.id, due) for one in (held, *others)})
    assert list(jobs.collection.find({"_id": {"$ne": held.id}})) == before
    released = jobs.collection.find_one({"_id": held.id}) or {}
    assert (released["nextRunAt"], "followUp" in released) == (due, False)


def test_held_job_is_not_what_is_due_next(db: Database) -> None:
    jobs = handle(db)
    stored(jobs, name="ship", status="pending", nextRunAt=HELD_UNTIL, followUp={"attempt": 1, "due": HELD_UNTIL})
    assert next_due(jobs, ["ship"], datetime(2030, 1, 1, tzinfo=UTC)) is None
