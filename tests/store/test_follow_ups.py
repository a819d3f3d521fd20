"""The commands of follow-ups: each changes only what it was decided for, and reads only what it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId

from tests.support.store import handle
from trio_monque import Job
from trio_monque.jobs.follow_ups import PARKED_UNTIL
from trio_monque.store.decoding import job_of
from trio_monque.store.driver.types import Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import follow_up_writes, indexes
from trio_monque.store.jobs.next_due import next_due

LOOKS: Mapping[str, Callable[[JobCollection], Any]] = {
    "owing": lambda jobs: len(follow_up_writes.owing(jobs, {"pack", "wrap"}, None)),
    "chosen": lambda jobs: len(follow_up_writes.chosen(jobs, None)),
    "not chosen": lambda jobs: len(follow_up_writes.not_chosen(jobs, None)[0]),
}


@pytest.mark.parametrize("look", LOOKS)
def test_look_reads_no_job_that_runs_or_waits_or_has_no_mark(db: Database, look: str) -> None:
    jobs = handle(db)
    indexes.ensure(jobs, also=[indexes.FOLLOW_UPS])
    dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), PARKED_UNTIL)
    for status in ("pending", "processing", "completed", "failed", "cancelled"):
        common = {"name": "pack", "status": status, "failCount": 0, **dates}
        unmarked = [{**common, "_id": ObjectId()} for _ in range(50)]
        marked = [{**common, "_id": ObjectId(), "followUp": True} for _ in range(50)]
        is_owing = status in ("completed", "failed")
        jobs.collection.insert_many(unmarked + marked[: 1 if is_owing else 50])
    jobs.collection.insert_one({"name": "pack", "status": "completed", "followUp": ObjectId(), **dates})
    parked = {"attempt": 1, "due": PARKED_UNTIL}
    jobs.collection.insert_one({"name": "ship", "status": "pending", "followUp": parked, **dates})
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
    assert follow_up_writes.choose(jobs, follow_up, parents) == {parents[1].id}
    assert jobs.collection.find_one({"_id": parents[0].id}) == before
    assert follow_up_writes.chosen(jobs, None).keys() == {parents[1].id} | (
        {parents[0].id} if isinstance(meanwhile.get("followUp"), ObjectId) else set()
    )


def test_release_takes_nothing_but_a_held_job(db: Database) -> None:
    jobs = handle(db)
    due = datetime(2031, 1, 1, tzinfo=UTC)
    mark = {"attempt": 1, "due": due}
    parked = stored(jobs, name="ship", status="pending", nextRunAt=PARKED_UNTIL, followUp=mark)
    others = [
        stored(jobs, name="ship", status="completed"),
        stored(jobs, name="ship", status="pending"),
        stored(jobs, name="ship", status="cancelled", nextRunAt=PARKED_UNTIL, followUp=mark),
        stored(jobs, name="ship", status="pending", followUp=mark),
    ]
    before = list(jobs.collection.find({"_id": {"$ne": parked.id}}))
    follow_up_writes.release(jobs, {ObjectId(): (one.id, due) for one in (parked, *others)})
    assert list(jobs.collection.find({"_id": {"$ne": parked.id}})) == before
    released = jobs.collection.find_one({"_id": parked.id}) or {}
    assert (released["nextRunAt"], "followUp" in released) == (due, False)


def test_held_job_is_not_what_is_due_next(db: Database) -> None:
    jobs = handle(db)
    stored(jobs, name="ship", status="pending", nextRunAt=PARKED_UNTIL, followUp={"attempt": 1, "due": PARKED_UNTIL})
    assert next_due(jobs, ["ship"], datetime(2030, 1, 1, tzinfo=UTC)) is None


def parked(jobs: JobCollection, parent: ObjectId, **fields: Any) -> Job:
    mark = {"attempt": 1, "due": DUE}
    return stored(
        jobs,
        **{
            "name": "ship",
            "status": "pending",
            "nextRunAt": PARKED_UNTIL,
            "follows": parent,
            "followUp": mark,
            **fields,
        },
    )


DUE = datetime(2031, 1, 1, tzinfo=UTC)


def as_stored(jobs: JobCollection, job: Job) -> dict[str, Any]:
    document: dict[str, Any] | None = jobs.collection.find_one({"_id": job.id})
    assert document is not None
    return document


def test_job_that_has_not_ended_owes_nothing(db: Database) -> None:
    """A retry by hand leaves the mark. Its next end may be another one."""
    jobs = handle(db)
    marked = [
        stored(jobs, status=status, followUp=True)
        for status in ("pending", "processing", "completed", "failed", "cancelled")
    ]
    paid = stored(jobs, followUp=ObjectId())
    found = follow_up_writes.owing_among(jobs, [one.id for one in (*marked, paid)])
    assert [one.status for one in found] == ["completed", "failed"]
    assert [one.id for one in follow_up_writes.owing(jobs, {"pack"}, None)] == [marked[2].id, marked[3].id]


def test_each_look_goes_on_behind_what_the_one_before_has_found(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing of it could be done. Otherwise a look would never end."""
    monkeypatch.setattr(follow_up_writes, "MOST_AT_ONCE", 2)
    jobs = handle(db)
    owing = [stored(jobs, followUp=True).id for _ in range(5)]
    assert read_in_turn(lambda after: [one.id for one in follow_up_writes.owing(jobs, {"pack"}, after)]) == owing
    chosen = [stored(jobs, followUp=ObjectId()).id for _ in range(5)]
    assert read_in_turn(lambda after: list(follow_up_writes.chosen(jobs, after))) == chosen
    doomed = [parked(jobs, ObjectId()).id for _ in range(5)]
    found: list[ObjectId] = []
    looks, after = 0, None
    while looks == 0 or after is not None:
        some, after = follow_up_writes.not_chosen(jobs, after)
        found += some
        looks += 1
        assert looks < 9
    assert found == doomed


def read_in_turn(look: Callable[[ObjectId | None], list[ObjectId]]) -> list[ObjectId]:
    found: list[ObjectId] = []
    while some := look(found[-1] if found else None):
        found += some
        assert len(found) < 9, "it begins anew"
    return found


def test_follow_up_whose_release_the_server_refuses_stays_owed(db: Database) -> None:
    jobs = handle(db)
    parents = [stored(jobs, followUp=ObjectId()) for _ in range(2)]
    refused, free = parked(jobs, parents[0].id, data="guarded"), parked(jobs, parents[1].id)
    db.command(
        "collMod", jobs.collection.name, validator={"$nor": [{"data": "guarded", "nextRunAt": {"$lt": PARKED_UNTIL}}]}
    )
    chosen = {parents[0].id: (refused.id, DUE), parents[1].id: (free.id, DUE)}
    assert follow_up_writes.release(jobs, chosen) == {parents[1].id: (free.id, DUE)}
    assert as_stored(jobs, refused)["nextRunAt"] == PARKED_UNTIL


def test_mark_of_a_later_end_is_not_removed(db: Database) -> None:
    """Between the release and this, a caller has retried the job, and it has ended again."""
    jobs = handle(db)
    follow_up = ObjectId()
    paid, owing_again, other = (stored(jobs, followUp=mark) for mark in (follow_up, True, ObjectId()))
    before = as_stored(jobs, owing_again), as_stored(jobs, other)
    follow_up_writes.clear(jobs, {one.id: (follow_up, DUE) for one in (paid, owing_again, other)})
    assert "followUp" not in as_stored(jobs, paid)
    assert (as_stored(jobs, owing_again), as_stored(jobs, other)) == before


def test_held_job_that_an_operator_has_changed_is_not_deleted_and_no_longer_held(db: Database) -> None:
    jobs = handle(db)
    parent = ObjectId()
    changed = [
        parked(jobs, parent, nextRunAt=DUE),
        parked(jobs, parent, status="cancelled"),
        parked(jobs, parent, status="processing", nextRunAt=DUE),
    ]
    doomed = parked(jobs, parent)
    before = [as_stored(jobs, one) for one in changed]
    follow_up_writes.delete_parked(jobs, [one.id for one in (*changed, doomed)])
    assert [{**as_stored(jobs, one), "followUp": {"attempt": 1, "due": DUE}} for one in changed] == before
    assert all("followUp" not in as_stored(jobs, one) for one in changed)
    assert jobs.collection.find_one({"_id": doomed.id}) is None
    assert follow_up_writes.not_chosen(jobs, None) == ([], None)
