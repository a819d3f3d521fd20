"""How many jobs of each name there are, how long the oldest due one waits, and how many are stuck: one command.

Cheap enough to run every few seconds: counts are capped for each name, so that a long history of completed jobs costs
as much as a short one. The server skips through `CLAIM` from name to name, and reads as many keys of each name and
status as it counts. The running jobs are few: `HELD` has them, and the server reads them whole.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import Any, Final

from pymongo import ASCENDING

from ...jobs.job import JobStatus
from ...jobs.views import QueueDepth
from ...options_and_defaults import LEASE_IN_BEATS, LONGEST_BEAT, SHORTEST_BEAT
from ..codec import LENIENT
from ..driver.bounded_counts import first_of, joined, number_by
from ..driver.commands import command
from ..fields import FIELD
from ..job_collection import JobCollection
from ..jobs import indexes
from .queries import stages_of_names

MOST_COUNTED: Final = {
    JobStatus.PENDING: 100_000,
    JobStatus.FAILED: 10_000,
    JobStatus.COMPLETED: 1_000,
    JobStatus.CANCELLED: 1_000,
}
"""The number up to which the jobs of one name in a status are counted. A hundred thousand take about 0.2 s.

Completed jobs are mostly kept for a while, under each name: with a hundred names, a higher number would cost seconds.
"""

_STATUS, _NAME, _DUE = FIELD["status"], FIELD["name"], FIELD["next_run_at"]
_FIRST_DATE: Final = datetime.min.replace(tzinfo=UTC)  # Conditions on dates match dates only: others are not jobs.


@command("count the jobs of each name", writes=False, aggregates=True)
def queue_depths(jobs: JobCollection, now: datetime) -> dict[str, QueueDepth]:
    """Return the depth of every name that has jobs.

    Args:
        now: The server's time: later jobs are not due yet, and older heartbeats are over.
    """
    name = jobs.collection.name
    at_rest = [
        *stages_of_names(indexes.AT_REST),
        *(_lookup(name, status, most) for status, most in MOST_COUNTED.items()),
    ]
    # A name that is not text must not keep the others from being read.
    collection = jobs.collection.with_options(codec_options=LENIENT.with_options(tz_aware=True, tzinfo=UTC))
    pipeline = joined(collection, [at_rest, _running(now)])
    rows = indexes.hinted(indexes.CLAIM, lambda hint: list(collection.aggregate(pipeline, **indexes.hinting(hint))))
    by_name: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in rows:
        if type(row["_id"]) is str:
            by_name[row.pop("_id")].update(row)
    return {name: _depth_of(row, now) for name, row in by_name.items()}


def _lookup(collection: str, status: JobStatus, most: int) -> dict[str, Any]:
    """Return the stage that adds the number of jobs of this status, and the date of the one that is due first."""
    return {
        "$lookup": {
            "from": collection,
            "localField": "_id",
            "foreignField": _NAME,
            "as": status.value,
            "pipeline": [
                *first_of({_STATUS: status.value, _DUE: {"$gte": _FIRST_DATE}}, most + 1, {_DUE: ASCENDING}),
                number_by(None, first={"$first": f"${_DUE}"}),
            ],
        }
    }


def _running(now: datetime) -> list[dict[str, Any]]:
    running = JobStatus.PROCESSING.value
    beat, interval = f"${FIELD['claim.last_heartbeat']}", f"${FIELD['claim.heartbeat_interval']}"
    shortest, longest = (round(seconds * 1000) for seconds in (SHORTEST_BEAT, LONGEST_BEAT))
    # As `jobs.instance.clamped`: another program may have written anything, and the server fails for all jobs if it is
    # to calculate with one that is not a number.
    clamped = {"$cond": [{"$isNumber": interval}, {"$min": [longest, {"$max": [shortest, interval]}]}, longest]}
    oldest_beat = {"$subtract": [now, {"$multiply": [LEASE_IN_BEATS, clamped]}]}
    has_beat = {"$eq": [{"$type": beat}, "date"]}
    is_stuck = {"$or": [{"$not": [has_beat]}, {"$lt": [beat, oldest_beat]}]}
    return [
        {"$match": {_STATUS: running, _NAME: {"$type": "string"}}},
        {"$group": {"_id": f"${_NAME}", running: {"$sum": 1}, "stuck": {"$sum": {"$cond": [is_stuck, 1, 0]}}}},
    ]


def _depth_of(row: dict[str, Any], now: datetime) -> QueueDepth:
    at_rest = {status: row.get(status.value) or [{"number": 0, "first": None}] for status in MOST_COUNTED}
    numbers = {status: counted[0]["number"] for status, counted in at_rest.items()}
    first = at_rest[JobStatus.PENDING][0]["first"]
    return QueueDepth(
        **{status.value: min(number, MOST_COUNTED[status]) for status, number in numbers.items()},
        processing=row.get(JobStatus.PROCESSING.value, 0),
        capped=frozenset(status for status, number in numbers.items() if number > MOST_COUNTED[status]),
        oldest_due_age=(now - first).total_seconds() if first is not None and first <= now else None,
        stuck=row.get("stuck", 0),
    )
