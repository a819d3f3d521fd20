"""Counts over the collection: each from an index alone, and to a limit."""

from __future__ import annotations

from typing import Any, Final

from pymongo import DESCENDING

from ..jobs.answers import QueueStats
from ..jobs.job import JobStatus
from . import indexes
from .codec import OWN_OPTIONS
from .connection import JobCollection
from .fields import FIELD
from .outcomes import command

MOST_COUNTED: Final = 100_000
"""How far each status is counted: a tenth of a second."""

MOST_AVERAGED: Final = 10_000
"""Of how many completed jobs the average lifetime is, the latest of them."""

_STATUS, _NAME = FIELD["status"], FIELD["name"]
_LIFETIME: Final = "lifetime"


@command("count jobs", writes=False, aggregates=True)
def queue_stats(
    jobs: JobCollection, name: str | None, most_counted: int = MOST_COUNTED, most_averaged: int = MOST_AVERAGED
) -> QueueStats:
    """How many jobs are in which status, of one name or of all; statuses that are none are not counted."""
    counted = [
        {"$unionWith": {"coll": jobs.collection.name, "pipeline": _count(name, status, most_counted)}}
        for status in JobStatus
    ]
    pipeline = [*_lifetime(name, most_averaged), *counted]
    index = indexes.UPDATED if name is None else indexes.CLAIM
    collection = jobs.collection.with_options(codec_options=OWN_OPTIONS)
    rows = indexes.hinted(index, lambda hint: list(collection.aggregate(pipeline, **indexes.hinting(hint))))
    return _told(rows, most_counted)


def _lifetime(name: str | None, most: int) -> list[dict[str, Any]]:
    """In the order of an index: of all names the latest to be completed, of one those that were due last."""
    match: dict[str, Any] = {_STATUS: JobStatus.COMPLETED.value}
    latest = FIELD["updated_at"]
    if name is not None:
        match, latest = {_NAME: name, **match}, FIELD["next_run_at"]
    created, updated = FIELD["created_at"], FIELD["updated_at"]
    is_date = {"$type": "date"}  # Of anything else nothing can be subtracted, and the server would refuse it all.
    return [
        {"$match": match},
        {"$sort": {latest: DESCENDING, "_id": DESCENDING}},
        {"$limit": most},
        {"$match": {created: is_date, updated: is_date}},
        {
            "$group": {
                "_id": _LIFETIME,
                "number": {"$sum": 1},
                "mean": {"$avg": {"$subtract": [f"${updated}", f"${created}"]}},
            }
        },
    ]


def _count(name: str | None, status: JobStatus, most: int) -> list[dict[str, Any]]:
    match = {_STATUS: status.value} if name is None else {_NAME: name, _STATUS: status.value}
    return [{"$match": match}, {"$limit": most + 1}, {"$group": {"_id": status.value, "number": {"$sum": 1}}}]


def _told(rows: list[dict[str, Any]], most_counted: int) -> QueueStats:
    lifetimes = {row["_id"]: row for row in rows}
    lifetime = lifetimes.pop(_LIFETIME, {"number": 0, "mean": None})
    numbers = {status: row["number"] for status, row in lifetimes.items()}
    return QueueStats(
        **{status: min(number, most_counted) for status, number in numbers.items()},
        average_lifetime=None if lifetime["mean"] is None else lifetime["mean"] / 1000,
        averaged=lifetime["number"],
        capped=frozenset(JobStatus(status) for status, number in numbers.items() if number > most_counted),
    )
