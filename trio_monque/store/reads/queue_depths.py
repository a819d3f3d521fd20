"""How many jobs of each name there are, how long the oldest due one waits, and how many are stuck: one command.

Cheap enough to run every few seconds: counts are capped for each name, so that a long history of completed jobs costs
as much as a short one. The server skips through `CLAIM` from name to name, and reads as many keys of each name and
status as it counts. The running jobs are few: `HELD` has them, and the server reads them whole.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
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
from .queries import names_at_rest, stages_of_names

LEAST_SHARE: Final = 50
"""Jobs that are counted of one name, however many names there are."""


@dataclass(frozen=True, slots=True)
class DepthCaps:
    """The numbers up to which the jobs of one name in a status are counted; 0 to leave them out. And of how many names.

    A hundred thousand take about 0.2 s. Completed jobs are mostly kept for a while, under each name: with a hundred
    names, a higher number would cost seconds.

    Attributes:
        pending, failed, ended: Of one name.
        names: The names that are counted; None for all.
        in_all: The pending and failed jobs that are counted of all names together, which share it equally; None for
            as many as there are.
    """

    pending: int = 100_000
    failed: int = 10_000
    ended: int = 1_000
    names: int | None = None
    in_all: int | None = None

    def shared_by(self, names: int) -> DepthCaps:
        """Return the caps of each name, if there is this number of names."""
        if self.in_all is None:
            return self
        # Each name gets something: otherwise one could not see whether it has any jobs.
        share = max(LEAST_SHARE, self.in_all // max(1, names))
        return replace(self, pending=min(self.pending, share * 4 // 5), failed=min(self.failed, share // 5))

    def of(self) -> dict[JobStatus, int]:
        """Return the cap of each status that is counted."""
        caps = {
            JobStatus.PENDING: self.pending,
            JobStatus.FAILED: self.failed,
            JobStatus.COMPLETED: self.ended,
            JobStatus.CANCELLED: self.ended,
        }
        return {status: most for status, most in caps.items() if most}


_STATUS, _NAME, _DUE = FIELD["status"], FIELD["name"], FIELD["next_run_at"]
_FIRST_DATE: Final = datetime.min.replace(tzinfo=UTC)  # Conditions on dates match dates only: others are not jobs.


@command("count the jobs of each name", writes=False, aggregates=True)
def queue_depths(jobs: JobCollection, now: datetime, caps: DepthCaps | None = None) -> dict[str, QueueDepth]:
    """Return the depth of every name that has jobs.

    Args:
        now: The server's time: later jobs are not due yet, and older heartbeats are over.
        caps: How far each status is counted.
    """
    name, caps = jobs.collection.name, caps or DepthCaps()
    most_names = caps.names
    if caps.in_all is not None:
        caps = caps.shared_by(len(names_at_rest(jobs, indexes.AT_REST, most_names)))
    most_counted = caps.of()
    at_rest = [
        *stages_of_names(indexes.AT_REST),
        *([] if most_names is None else [{"$limit": most_names}]),
        *(_lookup(name, status, most, now) for status, most in most_counted.items()),
    ]
    # A name that is not text must not keep the others from being read.
    collection = jobs.collection.with_options(codec_options=LENIENT.with_options(tz_aware=True, tzinfo=UTC))
    pipeline = joined(collection, [at_rest, _running(now)])
    rows = indexes.hinted(indexes.CLAIM, lambda hint: list(collection.aggregate(pipeline, **indexes.hinting(hint))))
    by_name: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in rows:
        if type(row["_id"]) is str:
            by_name[row.pop("_id")].update(row)
    return {name: _depth_of(row, now, most_counted) for name, row in by_name.items()}


def _lookup(collection: str, status: JobStatus, most: int, now: datetime) -> dict[str, Any]:
    """Return the stage that adds the number of jobs of this status, how many are due, and when the first one was."""
    is_due = {"$cond": [{"$lte": [f"${_DUE}", now]}, 1, 0]}
    return {
        "$lookup": {
            "from": collection,
            "localField": "_id",
            "foreignField": _NAME,
            "as": status.value,
            "pipeline": [
                *first_of({_STATUS: status.value, _DUE: {"$gte": _FIRST_DATE}}, most + 1, {_DUE: ASCENDING}),
                number_by(None, first={"$first": f"${_DUE}"}, due={"$sum": is_due}),
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
    since = f"${FIELD['claim.since']}"
    claimed = {"$cond": [{"$eq": [{"$type": since}, "date"]}, since, None]}  # The least of all leaves out null.
    return [
        {"$match": {_STATUS: running, _NAME: {"$type": "string"}}},
        {
            "$group": {
                "_id": f"${_NAME}",
                running: {"$sum": 1},
                "stuck": {"$sum": {"$cond": [is_stuck, 1, 0]}},
                "claimed": {"$min": claimed},
            }
        },
    ]


def _depth_of(row: dict[str, Any], now: datetime, most: dict[JobStatus, int]) -> QueueDepth:
    nothing = {"number": 0, "first": None, "due": 0}
    counted = {status: (row.get(status.value) or [nothing])[0] for status in most}
    pending = counted.get(JobStatus.PENDING, nothing)
    first, claimed = pending["first"], row.get("claimed")
    return QueueDepth(
        **{status.value: min(found["number"], most[status]) for status, found in counted.items()},
        processing=row.get(JobStatus.PROCESSING.value, 0),
        due=min(pending["due"], pending["number"], most.get(JobStatus.PENDING, 0)),
        capped=frozenset(status for status, found in counted.items() if found["number"] > most[status]),
        oldest_due_age=(now - first).total_seconds() if first is not None and first <= now else None,
        longest_run=None if claimed is None else max(0.0, (now - claimed).total_seconds()),
        stuck=row.get("stuck", 0),
    )
