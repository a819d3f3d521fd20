"""Deletes ended jobs (retention): one round trip for each function.

One query chooses a batch of jobs, from the index alone. Then one write deletes them by their ids and the whole
condition again: a job that was retried in between is pending, or has ended again since, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING

from ...jobs.follow_ups import OWING
from ...jobs.job import JobStatus
from ..codec import LENIENT
from ..driver.commands import BY_ID, command, of_ids
from ..driver.types import Collection
from ..fields import FIELD
from ..job_collection import JobCollection

MOST_IN_A_BATCH: Final = 1000

_STATUS, _NAME, _ENDED_AT = FIELD["status"], FIELD["name"], FIELD["updated_at"]

# The fields of every job. A document of another program in the collection may have a status and a date, too.
_IS_JOB: Final = [
    {"_id": {"$type": "objectId"}},
    {_NAME: {"$type": "string"}},
    *({FIELD[name]: {"$type": "date"}} for name in ("next_run_at", "created_at")),
]

# A bound that is a date leaves out other types: such documents do not show when a job ended.
_EVER: Final = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Expired:
    """A condition for jobs to delete.

    Attributes:
        status: The status of the jobs.
        ended: The condition on the moment at which they ended, as a MongoDB filter.
        name: The name of the jobs; None for all names.
        up_to: The last id to delete, if others that ended at the same moment stay.
    """

    status: JobStatus
    ended: Mapping[str, datetime]
    name: str | None = None
    up_to: ObjectId | None = None

    @property
    def condition(self) -> dict[str, Any]:
        """The condition as a MongoDB filter, without the ids."""
        named = {} if self.name is None else {_NAME: self.name}
        return {_STATUS: self.status.value, **named, _ENDED_AT: dict(self.ended)}


@dataclass(frozen=True, slots=True)
class EndedBatch:
    """The jobs that one query chose, oldest first, and when the last of them ended."""

    ids: Sequence[Any]
    last_ended_at: Any

    @property
    def is_last(self) -> bool:
        """Whether there were no others."""
        return len(self.ids) < MOST_IN_A_BATCH


def ended_before(status: JobStatus, cutoff: datetime) -> Expired:
    """Return the condition for all jobs of a status that ended before the cutoff."""
    return Expired(status, {"$lt": cutoff})


@command("find the names that have ended jobs", writes=False)
def names(jobs: JobCollection, status: JobStatus) -> Sequence[str]:
    """Return the names that have jobs of that status. The server skips through the index: one key for each name."""
    steps: list[dict[str, Any]] = [
        {"$match": {_STATUS: status.value, _NAME: {"$gte": ""}}},  # A name is text.
        {"$sort": {_STATUS: ASCENDING, _NAME: ASCENDING}},
        {"$group": {"_id": "$" + _NAME}},
    ]
    return [found["_id"] for found in _own(jobs).aggregate(steps)]


@command("find ended jobs beyond keep_last", writes=False)
def beyond_the_last(
    jobs: JobCollection, status: JobStatus, name: str, keep: int, cutoff: datetime
) -> Sequence[Expired]:
    """Return conditions for the jobs of a name and status that ended before the cutoff, except the newest `keep` jobs.

    Two conditions, if other jobs may have ended in the same millisecond as the newest job to delete.
    """
    found = _own(jobs).find_one(
        {_STATUS: status.value, _NAME: name, _ENDED_AT: {"$lte": _EVER}},
        {_ENDED_AT: True},
        sort=[(_ENDED_AT, DESCENDING), ("_id", DESCENDING)],
        skip=keep,
    )
    if found is None:
        return ()
    newest = found[_ENDED_AT]
    if not isinstance(newest, datetime):
        return ()  # A date before the year 1, which is not a datetime.
    if newest >= cutoff:
        return (Expired(status, {"$lt": cutoff}, name),)
    return (
        Expired(status, {"$lt": newest}, name),
        Expired(status, {"$eq": newest}, name, up_to=found["_id"]),
    )


@command("find ended jobs to delete", writes=False)
def choose(jobs: JobCollection, expired: Expired, since: Any, after: Any = None) -> EndedBatch:
    """Choose the next batch, oldest first, of jobs that ended at `since` or later; None for the first batch.

    With `after`, an id: only of jobs that ended exactly at `since`, and whose ids are larger.
    """
    query = expired.condition
    if after is not None:
        query[_ENDED_AT] = since
        query["_id"] = {"$gt": after}
    elif since is not None:
        # Deleted jobs stay in the index for a while: without this bound, each batch would read past them again.
        query[_ENDED_AT]["$gte"] = since
    if expired.up_to is not None:
        query["_id"] = {**query.get("_id", {}), "$lte": expired.up_to}
    order = [(_ENDED_AT, ASCENDING), ("_id", ASCENDING)]
    found = list(
        _own(jobs).find(query, {_ENDED_AT: True}, sort=order, limit=MOST_IN_A_BATCH, batch_size=MOST_IN_A_BATCH)
    )
    return EndedBatch([one["_id"] for one in found], found[-1][_ENDED_AT] if found else since)


@command("delete ended jobs", in_parts=True)
def delete_if_expired(jobs: JobCollection, expired: Expired, ids: Sequence[Any], *, children: bool = False) -> int:
    """Delete the jobs that still meet the condition; return how many.

    Args:
        children: Whether to delete children of job nurseries, too. The caller has checked that no parent needs them.
    """
    condition = {**of_ids(ids), **expired.condition, "$and": _IS_JOB}
    if not children:
        condition[FIELD["child.scope"]] = None
    if expired.status in OWING:
        # Only the job itself shows that it owes a follow-up, or which one was chosen and is not released.
        condition[FIELD["follow_up"]] = None
        # And only the job has the data of a call that replaced it while Monque for Node ran it (`starting_again.py`).
        # Without this, retention and that look would race at the start of a fleet that was down for longer.
        condition[FIELD["again.call"]] = None
    return int(_own(jobs).delete_many(condition, hint=BY_ID).deleted_count)


def _own(jobs: JobCollection) -> Collection:
    """Return the handle with our codec options: the caller's may read dates differently, or fail on text."""
    own: Collection = jobs.collection.with_options(codec_options=LENIENT)
    return own
