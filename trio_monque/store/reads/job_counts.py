"""Counts over the collection: each reads an index alone, up to a limit."""

from __future__ import annotations

from typing import Any, Final

from pymongo import DESCENDING

from ...jobs.job import JobStatus
from ...jobs.views import QueueStats
from ..codec import OWN_OPTIONS
from ..driver.bounded_counts import Stages, first_of, joined, number_by
from ..driver.commands import command
from ..fields import FIELD
from ..job_collection import JobCollection
from ..jobs import indexes

MOST_COUNTED: Final = 100_000
"""The number up to which the jobs of a status are counted: a tenth of a second."""

MOST_AVERAGED: Final = 1_000
"""The number of completed jobs, the latest ones, whose lifetimes are averaged."""

_STATUS, _NAME = FIELD["status"], FIELD["name"]
_LIFETIME: Final = "lifetime"


@command("count jobs", writes=False, aggregates=True)
def queue_stats(
    jobs: JobCollection, name: str | None, most_counted: int = MOST_COUNTED, most_averaged: int = MOST_AVERAGED
) -> QueueStats:
    """Return the number of jobs in each status, of one name or of all. Unknown statuses are not counted."""
    counted = [_count(name, status, most_counted) for status in JobStatus]
    index = indexes.UPDATED if name is None else indexes.CLAIM
    collection = jobs.collection.with_options(codec_options=OWN_OPTIONS)
    pipeline = joined(collection, [_lifetime(name, most_averaged), *counted])
    rows = indexes.hinted(index, lambda hint: list(collection.aggregate(pipeline, **indexes.hinting(hint))))
    return _stats_of(rows, most_counted)


def _lifetime(name: str | None, most: int) -> Stages:
    """Return the stages that average lifetimes.

    They read in the order of an index: the jobs of all names that completed last, or the jobs of one name that were due
    last.
    """
    match: dict[str, Any] = {_STATUS: JobStatus.COMPLETED.value}
    latest = FIELD["updated_at"]
    if name is not None:
        match, latest = {_NAME: name, **match}, FIELD["next_run_at"]
    created, updated = FIELD["created_at"], FIELD["updated_at"]
    is_date = {"$type": "date"}  # The server can subtract dates only, and would fail for all jobs.
    return [
        *first_of(match, most, {latest: DESCENDING, "_id": DESCENDING}),
        {"$match": {created: is_date, updated: is_date}},
        number_by(_LIFETIME, mean={"$avg": {"$subtract": [f"${updated}", f"${created}"]}}),
    ]


def _count(name: str | None, status: JobStatus, most: int) -> Stages:
    match = {_STATUS: status.value} if name is None else {_NAME: name, _STATUS: status.value}
    return [*first_of(match, most + 1), number_by(status.value)]


def _stats_of(rows: list[dict[str, Any]], most_counted: int) -> QueueStats:
    by_status = {row["_id"]: row for row in rows}
    lifetime = by_status.pop(_LIFETIME, {"number": 0, "mean": None})
    numbers = {status: row["number"] for status, row in by_status.items()}
    return QueueStats(
        **{status: min(number, most_counted) for status, number in numbers.items()},
        average_lifetime=None if lifetime["mean"] is None else lifetime["mean"] / 1000,
        averaged=lifetime["number"],
        capped=frozenset(JobStatus(status) for status, number in numbers.items() if number > most_counted),
    )
