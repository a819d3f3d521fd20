"""Counts over the collection."""

from __future__ import annotations

from ..jobs.job import JobStatus
from ..jobs.selection import QueueStats
from .codec import FIELD
from .connection import JobCollection
from .outcomes import command


@command("count jobs", writes=False)
def queue_stats(jobs: JobCollection, name: str | None) -> QueueStats:
    """How many jobs are in which status, of one name or of all; statuses that are none are not counted."""
    match: dict[str, object] = {FIELD["status"]: {"$in": [status.value for status in JobStatus]}}
    if name is not None:
        match[FIELD["name"]] = name
    counted = jobs.collection.aggregate(
        [{"$match": match}, {"$group": {"_id": f"${FIELD['status']}", "count": {"$sum": 1}}}]
    )
    return QueueStats(**{row["_id"]: row["count"] for row in counted})
