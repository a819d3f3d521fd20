"""Pending jobs by name: how many, how many of them are due, and since when the oldest one is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from pymongo import ASCENDING

from ....jobs.job import JobStatus
from ...codec import LENIENT
from ...driver.bounded_counts import Stages, first_of, joined
from ...driver.commands import command, in_chunks
from ...fields import FIELD
from ...job_collection import JobCollection
from ...jobs import indexes
from ..queries import names_at_rest
from .caps import Count, briefly

MOST_NAMES: Final = 200
"""Names that are looked at: those that come first in the alphabet."""

MOST_COUNTED: Final = 100_000
"""Pending jobs of all names that are counted: a tenth of a second."""

_NAMES_AT_ONCE: Final = 50
_FIRST_DATE: Final = datetime.min.replace(tzinfo=UTC)
_LAST_DATE: Final = datetime.max.replace(tzinfo=UTC)
_NAME, _STATUS, _DUE = FIELD["name"], FIELD["status"], FIELD["next_run_at"]


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The pending jobs of one name.

    Attributes:
        name: The name.
        pending: How many there are, the earliest ones first. Without broken documents, as far as they are known.
        due: How many of these are due.
        oldest: When the first one is or was due.
    """

    name: str
    pending: Count
    due: Count
    oldest: datetime


@command("look for the names of pending jobs", writes=False)
def pending_names(jobs: JobCollection) -> Sequence[str]:
    """Return the names that have pending jobs, MOST_NAMES at most. Needs the claim index."""
    return briefly(lambda: names_at_rest(jobs, [JobStatus.PENDING], MOST_NAMES))


@command("count pending jobs by name", writes=False)
def backlogs(
    jobs: JobCollection, names: Sequence[str], now: datetime, not_jobs: Sequence[Any] = ()
) -> Sequence[Backlog]:
    """Return the pending jobs of these names, from the claim index alone, without the documents of these ids."""
    most = MOST_COUNTED // max(len(names), 1)
    collection = jobs.collection.with_options(codec_options=LENIENT)
    found = []
    for chunk in in_chunks(names, _NAMES_AT_ONCE):
        pipeline = joined(collection, (_of_name(name, most, now, not_jobs) for name in chunk))
        counting = partial(collection.aggregate, pipeline, hint=indexes.name_of(indexes.CLAIM))
        found += [_backlog(row, most) for row in briefly(counting)]
    return found


def _of_name(name: str, most: int, now: datetime, not_jobs: Sequence[Any]) -> Stages:
    # The range is one of dates only. A broken document without a date sorts before all jobs, and would pass for the
    # oldest one.
    return [
        *first_of(
            {_NAME: name, _STATUS: JobStatus.PENDING.value, _DUE: {"$gte": _FIRST_DATE}},
            most + 1 + len(not_jobs),
            {_DUE: ASCENDING},
        ),
        *([{"$match": {FIELD["id"]: {"$nin": list(not_jobs)}}}] if not_jobs else []),
        {
            "$group": {
                "_id": {"$literal": name},
                "pending": {"$sum": 1},
                "due": {"$sum": {"$cond": [{"$lte": [f"${_DUE}", now]}, 1, 0]}},
                "oldest": {"$first": f"${_DUE}"},
            }
        },
    ]


def _backlog(row: Mapping[str, Any], most: int) -> Backlog:
    return Backlog(
        name=row["_id"],
        pending=Count.up_to(row["pending"], most),
        due=Count.up_to(row["due"], most),
        oldest=row["oldest"] if type(row["oldest"]) is datetime else _LAST_DATE,
    )
