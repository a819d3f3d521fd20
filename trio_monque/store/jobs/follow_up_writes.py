"""Follow-ups: the commands by which they are enqueued exactly once. `jobs/follow_ups.py` has the rules and why.

Any number of instances may do this for the same job, and each may be killed after any command. All reads are of what a
majority holds: a follow-up of an end that is rolled back afterwards would be one too many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from bson import ObjectId
from pymongo import UpdateOne

from ...jobs.follow_ups import OWED, OWING, PARKED_UNTIL, FateOfParked, fate_of_parked, owes
from ...jobs.job import Job, JobStatus
from ..codec import LENIENT, stored_follow_up
from ..decoding import follow_up_of
from ..driver.commands import BY_ID, bulk_write, by_majority, causal_session, command, of_ids
from ..fields import FIELD
from ..job_collection import JobCollection
from . import indexes

MOST_AT_ONCE: Final = 100
"""Jobs whose follow-ups are enqueued together. The results and data of all of them are read at once."""

_MARK, _STATUS, _NAME, _ATTEMPTS = FIELD["follow_up"], FIELD["status"], FIELD["name"], FIELD["attempts"]
_DUE, _FOLLOWS = FIELD["next_run_at"], FIELD["follows"]
_OWED: Final = stored_follow_up(OWED)
_OWING: Final = [status.value for status in OWING]

# A parked follow-up. If an operator reschedules, cancels or retries it, it is an ordinary job, and no longer matches.
_PARKED: Final[Mapping[str, Any]] = {
    _STATUS: JobStatus.PENDING.value,
    _DUE: PARKED_UNTIL,
    _MARK: {"$type": "object"},
}


# --- Jobs that owe a follow-up ---


@command("look for jobs that owe a follow-up", writes=False)
def owing(jobs: JobCollection, names: Set[str], after: ObjectId | None) -> Sequence[Job]:
    """Return jobs of these names that owe a follow-up, in the order of their ids, from behind `after`."""
    query: dict[str, Any] = {_MARK: _OWED, _NAME: {"$in": sorted(names)}, _STATUS: {"$in": _OWING}}
    if after is not None:
        query["_id"] = {"$gt": after}
    return indexes.hinted(
        indexes.FOLLOW_UPS,
        lambda hint: jobs.decoded(
            lambda collection: by_majority(collection).find(query, sort=[("_id", 1)], limit=MOST_AT_ONCE, hint=hint)
        ),
    )


@command("look for jobs that owe a follow-up", writes=False)
def owing_among(jobs: JobCollection, ids: Sequence[ObjectId]) -> Sequence[Job]:
    """Return which of these jobs owe a follow-up."""
    found = jobs.decoded(lambda collection: by_majority(collection).find({**of_ids(ids), _MARK: _OWED}, hint=BY_ID))
    return [job for job in found if owes(job)]


# --- Insert, choose, release, clear; `inserting.insert_all` inserts ---


@command("choose follow-ups")
def choose(jobs: JobCollection, follow_ups: Mapping[ObjectId, Job], parents: Sequence[Job]) -> set[ObjectId]:
    """Replace the mark of each parent by the id of its follow-up; return the parents whose follow-up is the chosen one.

    To be sent once: after a lost answer, another look finds out what became of it.
    """
    # The race: two instances have each inserted a follow-up of the same job. The first write that replaces the mark
    # decides; the other one matches nothing, and its follow-up is deleted.
    each = [UpdateOne(_owing_as_read(one), {"$set": {_MARK: follow_ups[one.id].id}}, hint=BY_ID) for one in parents]
    with causal_session(jobs.collection) as session:
        if bulk_write(jobs.collection, each, "choose follow-ups", session).matched == len(each):
            return {one.id for one in parents}
        # The server reports how many matched, and not which.
        chosen = {**of_ids(one.id for one in parents), _MARK: {"$in": [one.id for one in follow_ups.values()]}}
        reader = by_majority(jobs.collection, LENIENT)
        return {document["_id"] for document in reader.find(chosen, {"_id": True}, hint=BY_ID, session=session)}


def _owing_as_read(parent: Job) -> dict[str, Any]:
    """The job owes a follow-up for the very end that was read: each later end comes after another claim."""
    return {"_id": parent.id, _STATUS: parent.status.value, _ATTEMPTS: parent.attempts, _MARK: _OWED}


@command("remove the marks of jobs without a follow-up")
def forgive(jobs: JobCollection, parents: Sequence[Job]) -> None:
    """Remove the mark of jobs for which `then` wants no follow-up."""
    each = [UpdateOne(_owing_as_read(one), {"$unset": {_MARK: ""}}, hint=BY_ID) for one in parents]
    bulk_write(jobs.collection, each, "remove the marks of jobs without a follow-up")


Chosen = Mapping[ObjectId, tuple[ObjectId, Any]]
"""The id and the due date of each follow-up, by the id of its parent."""


@command("release follow-ups")
def release(jobs: JobCollection, chosen: Chosen) -> Chosen:
    """Release chosen follow-ups; return those for which `clear` comes next. May be sent again."""
    # Still parked: sent again after a lost answer, it matches nothing, and a follow-up that runs already is not put
    # back.
    released = [
        UpdateOne({"_id": one, **_PARKED}, {"$set": {_DUE: due}, "$unset": {_MARK: ""}}, hint=BY_ID)
        for one, due in chosen.values()
    ]
    refused = bulk_write(jobs.collection, released, "release follow-ups").refused
    return {parent: one for place, (parent, one) in enumerate(chosen.items()) if place not in refused}


@command("remove the marks of jobs with a follow-up")
def clear(jobs: JobCollection, released: Chosen) -> None:
    """Remove the marks of jobs whose follow-ups are released: until then, the mark shows which one was chosen."""
    each = [
        # By the id of the follow-up that was released: a later end of the parent may owe another one, whose mark must
        # stay.
        UpdateOne({"_id": parent, _MARK: one}, {"$unset": {_MARK: ""}}, hint=BY_ID)
        for parent, (one, _) in released.items()
    ]
    bulk_write(jobs.collection, each, "remove the marks of jobs with a follow-up")


@command("delete follow-ups that were not chosen")
def delete_parked(jobs: JobCollection, ids: Sequence[ObjectId]) -> None:
    """Delete parked jobs that were not chosen and cannot be any more."""
    if ids:
        # Only as long as it is parked: from the moment of its release it is a job like any other.
        jobs.collection.delete_many({**of_ids(ids), **_PARKED}, hint=BY_ID)
        # An operator has rescheduled or cancelled those that are left: they are ordinary jobs now.
        jobs.collection.update_many({**of_ids(ids), _MARK: {"$type": "object"}}, {"$unset": {_MARK: ""}}, hint=BY_ID)


# --- What a killed process left behind ---


@command("look for chosen follow-ups", writes=False)
def chosen(jobs: JobCollection, after: ObjectId | None) -> Chosen:
    """Return follow-ups that were chosen and perhaps not released, by the ids of their parents from behind `after`."""
    query: dict[str, Any] = {_MARK: {"$type": "objectId"}}
    if after is not None:
        query["_id"] = {"$gt": after}
    with causal_session(jobs.collection) as session:
        reader = by_majority(jobs.collection, LENIENT)
        found = indexes.hinted(
            indexes.FOLLOW_UPS,
            lambda hint: list(
                reader.find(query, [_MARK], sort=[("_id", 1)], limit=MOST_AT_ONCE, hint=hint, session=session)
            ),
        )
        if not found:
            return {}
        # A follow-up that is not parked was released, or changed by an operator: `release` then matches nothing.
        parked = {**of_ids(one[_MARK] for one in found), **_PARKED}
        due = {one["_id"]: one[_MARK].get("due") for one in reader.find(parked, [_MARK], hint=BY_ID, session=session)}
    return {one["_id"]: (one[_MARK], due.get(one[_MARK], PARKED_UNTIL)) for one in found}


@command("look for parked follow-ups", writes=False)
def not_chosen(jobs: JobCollection, after: ObjectId | None) -> tuple[Sequence[ObjectId], ObjectId | None]:
    """Return parked follow-ups that were not chosen and cannot be any more, and behind which id the next look begins.

    None if there are no others.
    """
    query: dict[str, Any] = {_MARK: {"$type": "object"}}
    if after is not None:
        query["_id"] = {"$gt": after}
    wanted = [_MARK, _FOLLOWS]
    with causal_session(jobs.collection) as session:
        reader = by_majority(jobs.collection, LENIENT)
        found = indexes.hinted(
            indexes.FOLLOW_UPS,
            lambda hint: list(
                reader.find(query, wanted, sort=[("_id", 1)], limit=MOST_AT_ONCE, hint=hint, session=session)
            ),
        )
        if not found:
            return [], None
        # After the parked jobs, in the same session: an older copy of the parent might be that of an earlier end.
        ids = of_ids({one.get(_FOLLOWS) for one in found})
        parents = {one["_id"]: one for one in reader.find(ids, [_MARK, _ATTEMPTS], hint=BY_ID, session=session)}
    doomed = []
    for one in found:
        parent = parents.get(one.get(_FOLLOWS))
        seen = None if parent is None else (parent.get(_ATTEMPTS, 0), follow_up_of(parent.get(_MARK)))
        if fate_of_parked(one["_id"], one[_MARK].get("attempt"), seen) is FateOfParked.DELETE:
            doomed.append(one["_id"])
    return doomed, found[-1]["_id"] if len(found) == MOST_AT_ONCE else None
