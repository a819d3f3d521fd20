"""Counts over the collection: each from an index alone, and to a limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING

from ..jobs.answers import QueueStats
from ..jobs.job import JobStatus
from . import indexes
from .codec import FIELD, OWN_OPTIONS
from .connection import JobCollection
from .outcomes import command
from .queries import hinted, hinting

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
    index = indexes.name_of(indexes.UPDATED if name is None else indexes.CLAIM)
    collection = jobs.collection.with_options(codec_options=OWN_OPTIONS)
    rows = hinted(index, lambda hint: list(collection.aggregate(pipeline, **hinting(hint))))
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


@command("look for the names of jobs", writes=False, aggregates=True)
def names(jobs: JobCollection) -> set[str]:
    """The names that there are jobs of: one key of an index for each, and all claims."""
    collection = jobs.collection.with_options(codec_options=OWN_OPTIONS)
    running = {_STATUS: JobStatus.PROCESSING.value}
    only_name = {"_id": False, _NAME: True}
    held = hinted(indexes.name_of(indexes.HELD), lambda hint: list(collection.find(running, only_name, hint=hint)))
    found = {document[_NAME] for document in held if isinstance(document.get(_NAME), str)}
    return found | set(_names_at_rest(jobs))


def _names_at_rest(jobs: JobCollection) -> Iterator[str]:
    """From one name to the next: `distinct` would read all jobs, as MongoDB skips nothing in a partial index."""
    collection = jobs.collection.with_options(codec_options=OWN_OPTIONS)
    at_rest = {_STATUS: {"$in": [status.value for status in indexes.AT_REST]}}
    index = indexes.name_of(indexes.CLAIM)
    last = ""
    while True:
        behind = {_NAME: {"$gt": last}, **at_rest}

        def read(hint: str | None, behind: dict[str, Any] = behind) -> Any:
            return collection.find_one(behind, {"_id": False, _NAME: True}, sort=[(_NAME, ASCENDING)], hint=hint)

        found = hinted(index, read)
        if found is None:
            return
        last = found[_NAME]
        yield last
