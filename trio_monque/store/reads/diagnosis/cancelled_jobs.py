"""Jobs that were cancelled because no run of them began in time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ....jobs.claimable import NOT_STARTED
from ....jobs.job import JobStatus
from ...driver.commands import command
from ...job_collection import JobCollection
from .caps import Count
from .jobs import MOST_READ, RECENT, latest


@dataclass(frozen=True, kw_only=True)
class Unstarted:
    """Jobs of one name that were cancelled because no run of them began in time.

    Attributes:
        name: The name.
        count: How many.
        example: The last one.
    """

    name: str
    count: Count
    example: Any


@command("look for jobs that were cancelled unstarted", writes=False)
def unstarted_jobs(jobs: JobCollection, now: datetime, name: str | None = None) -> Sequence[Unstarted]:
    """Return such jobs of the last day, by name. Needs `UPDATED`, or `CLAIM` for one name."""
    begin = now - RECENT
    found = latest(jobs, JobStatus.CANCELLED, name, begin)
    by_name: dict[str, list[Any]] = defaultdict(list)
    for one in found[:MOST_READ]:
        if one["at"] is not None and one["at"] >= begin and (one["reason"] or "").startswith(NOT_STARTED):
            by_name[str(one["name"])].append(one["_id"])
    is_capped = len(found) > MOST_READ
    return [
        Unstarted(name=name, count=Count(len(ids), is_capped), example=ids[0]) for name, ids in sorted(by_name.items())
    ]
