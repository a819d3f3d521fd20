"""Jobs that were cancelled because no run of them began in time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
        at: When that was cancelled.
    """

    name: str
    count: Count
    example: Any
    at: datetime


@command("look for jobs that were cancelled unstarted", writes=False)
def unstarted_jobs(jobs: JobCollection, now: datetime, name: str | None = None) -> Sequence[Unstarted]:
    """Return such jobs of the last day, by name. Needs `UPDATED`, or `CLAIM` for one name."""
    begin = now - RECENT
    found = latest(jobs, JobStatus.CANCELLED, name, begin)
    by_name: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in found[:MOST_READ]:
        if one["at"] is not None and one["at"] >= begin and (one["reason"] or "").startswith(NOT_STARTED):
            by_name[str(one["name"])].append(one)
    is_capped = len(found) > MOST_READ
    last = {name: max(some, key=lambda one: one["at"]) for name, some in by_name.items()}
    return [
        Unstarted(name=name, count=Count(len(some), is_capped), example=last[name]["_id"], at=last[name]["at"])
        for name, some in sorted(by_name.items())
    ]
