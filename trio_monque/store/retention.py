"""Deletes ended jobs: one function a round trip.

What is to go is chosen first, from the index alone, and then deleted by its ids and the whole condition again. A job
that was retried in between is pending, or has ended anew, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING

from ..jobs.job import JobStatus
from .codec import LENIENT
from .commands import BY_ID, command, of_ids
from .fields import FIELD
from .job_collection import JobCollection
from .types import Collection

MOST_IN_A_BATCH: Final = 1000

_STATUS, _NAME, _ENDED_AT = FIELD["status"], FIELD["name"], FIELD["updated_at"]

# What every job has. A document of another program in the collection may have a status and a date as well.
_IS_JOB: Final = [
    {"_id": {"$type": "objectId"}},
    {_NAME: {"$type": "string"}},
    *({FIELD[name]: {"$type": "date"}} for name in ("next_run_at", "created_at")),
]

# A bound of that type leaves out other types: it is not known when such a job ended.
_EVER: Final = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Expired:
    """Which jobs are to go: of a status, and of one name where there is one.

    Attributes:
        ended: What holds of the moment at which they ended, as MongoDB has it.
        up_to: The last of their ids, where not all that ended so are to go.
    """

    status: JobStatus
    ended: Mapping[str, datetime]
    name: str | None = None
    up_to: ObjectId | None = None

    @property
    def condition(self) -> dict[str, Any]:
        """All of it but the ids."""
        named = {} if self.name is None else {_NAME: self.name}
        return {_STATUS: self.status.value, **named, _ENDED_AT: dict(self.ended)}


@dataclass(frozen=True, slots=True)
class Batch:
    """Those that were chosen, oldest first, and when the last of them ended."""

    ids: Sequence[Any]
    last_ended_at: Any

    @property
    def is_last(self) -> bool:
        """There were no more."""
        return len(self.ids) < MOST_IN_A_BATCH


def ended_before(status: JobStatus, cutoff: datetime) -> Expired:
    """All of that status that ended before that moment."""
    return Expired(status, {"$lt": cutoff})


@command("look which names have ended jobs", writes=False)
def names(jobs: JobCollection, status: JobStatus) -> Sequence[str]:
    """The names that have jobs of that status. The index is skipped through: one step a name, not one a job."""
    steps: list[dict[str, Any]] = [
        {"$match": {_STATUS: status.value, _NAME: {"$gte": ""}}},  # A name is text.
        {"$sort": {_STATUS: ASCENDING, _NAME: ASCENDING}},
        {"$group": {"_id": "$" + _NAME}},
    ]
    return [found["_id"] for found in _own(jobs).aggregate(steps)]


@command("look which ended jobs are too many", writes=False)
def beyond_the_last(
    jobs: JobCollection, status: JobStatus, name: str, keep: int, cutoff: datetime
) -> Sequence[Expired]:
    """Return the jobs of that name and status that ended before that moment, without the newest `keep` of them.

    Two where there are any, as others may have ended in the same millisecond as the newest that is to go.
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
        return ()  # Before the year 1, says the document.
    if newest >= cutoff:
        return (Expired(status, {"$lt": cutoff}, name),)
    return (
        Expired(status, {"$lt": newest}, name),
        Expired(status, {"$eq": newest}, name, up_to=found["_id"]),
    )


@command("look which ended jobs are to be deleted", writes=False)
def choose(jobs: JobCollection, expired: Expired, since: Any) -> Batch:
    """The next of them, oldest first, from that end on; None for the first."""
    query = expired.condition
    if since is not None:
        # What was deleted stays in the index for a while: it is not walked through again for each batch.
        query[_ENDED_AT]["$gte"] = since
    if expired.up_to is not None:
        query["_id"] = {"$lte": expired.up_to}
    order = [(_ENDED_AT, ASCENDING), ("_id", ASCENDING)]
    found = list(
        _own(jobs).find(query, {_ENDED_AT: True}, sort=order, limit=MOST_IN_A_BATCH, batch_size=MOST_IN_A_BATCH)
    )
    return Batch([one["_id"] for one in found], found[-1][_ENDED_AT] if found else since)


@command("delete ended jobs", in_parts=True)
def delete_if_expired(jobs: JobCollection, expired: Expired, ids: Sequence[Any]) -> int:
    """How many of them were such jobs still, and are gone."""
    condition = {**of_ids(ids), **expired.condition, "$and": _IS_JOB}
    return int(_own(jobs).delete_many(condition, hint=BY_ID).deleted_count)


def _own(jobs: JobCollection) -> Collection:
    """Read as our own fields are, whatever the caller's options make of dates, or a document has in place of text."""
    own: Collection = jobs.collection.with_options(codec_options=LENIENT)
    return own
