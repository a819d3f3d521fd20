"""Counts over the collection: each reads an index alone, up to a limit."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from pymongo import DESCENDING

from ...jobs.job import JobStatus
from ...jobs.views import QueueStats
from ..codec import LENIENT, OWN_OPTIONS
from ..driver.bounded_counts import Stages, first_of, joined, number_by
from ..driver.commands import command
from ..fields import FIELD
from ..job_collection import JobCollection
from ..jobs import indexes

MOST_COUNTED: Final = 100_000
"""The number up to which the jobs of a status are counted: a tenth of a second."""

MOST_GROUPED: Final = 300_000
"""Documents up to which one query reads all of them for the statistics of all names: half a second."""

ROWS_AT_ONCE: Final = 100_000
"""Rows in one batch of the answer: six for each name, of a hundred bytes each."""

MOST_AVERAGED: Final = 10_000
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


@command("count all jobs", writes=False)
def are_few(jobs: JobCollection) -> bool:
    """Return whether one query may read the jobs of all names, by the server's estimate of their number."""
    return jobs.collection.estimated_document_count() <= MOST_GROUPED


@command("count jobs by name", writes=False, aggregates=True)
def queue_stats_by_name(
    jobs: JobCollection, most_counted: int = MOST_COUNTED, most_averaged: int = MOST_AVERAGED
) -> dict[str, QueueStats]:
    """Return the same statistics as `queue_stats` for every name, in one command.

    Names with more completed jobs than are averaged are left out: only a query for one name finds the latest of them.
    """
    # A name that is not text must not keep the others from being read.
    collection = jobs.collection.with_options(codec_options=LENIENT)
    pipeline = joined(collection, [_AT_REST_BY_NAME, _RUNNING, _LIFETIMES])
    rows = indexes.hinted(
        indexes.CLAIM,
        lambda hint: list(collection.aggregate(pipeline, batchSize=ROWS_AT_ONCE, **indexes.hinting(hint))),
    )
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_name[row["_id"]["name"]].append({**row, "_id": row["_id"]["of"]})
    return {
        name: _stats_of(of_name, most_counted)
        for name, of_name in by_name.items()
        if all(row["number"] <= most_averaged for row in of_name if row["_id"] == JobStatus.COMPLETED.value)
    }


def _by_name(match: dict[str, Any], of: Any, **computed: Any) -> Stages:
    """Return the stages that count for each name and each value of `of`."""
    counted = number_by({"name": f"${_NAME}", "of": of}, **computed)
    return [{"$match": {_NAME: {"$type": "string"}, **match}}, counted]


_AT_REST_BY_NAME: Final = [
    # With this bound on the name, the server reads the index in its order, and no document.
    {"$match": {_NAME: {"$gte": ""}, _STATUS: {"$in": [status.value for status in indexes.AT_REST]}}},
    number_by({"name": f"${_NAME}", "of": f"${_STATUS}"}),
]
_RUNNING: Final = _by_name({_STATUS: JobStatus.PROCESSING.value}, f"${_STATUS}")
_IS_DATE: Final = {"$type": "date"}
_LIFETIMES: Final = _by_name(
    {_STATUS: JobStatus.COMPLETED.value, FIELD["created_at"]: _IS_DATE, FIELD["updated_at"]: _IS_DATE},
    _LIFETIME,
    mean={"$avg": {"$subtract": [f"${FIELD['updated_at']}", f"${FIELD['created_at']}"]}},
)
