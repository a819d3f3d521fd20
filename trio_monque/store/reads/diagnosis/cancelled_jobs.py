"""Jobs that were cancelled and may be missed: schedules, which do not recur any more, and jobs that began too late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bson import ObjectId
from pymongo import ASCENDING

from ....jobs.claimable import NOT_STARTED
from ....jobs.job import JobStatus
from ...codec import LENIENT
from ...driver.commands import command
from ...fields import FIELD
from ...job_collection import JobCollection
from ...jobs import indexes
from .caps import Count, briefly
from .jobs import MOST_READ, RECENT, latest

_ID, _NAME, _KEY, _STATUS = (FIELD[name] for name in ("id", "name", "unique_key", "status"))
_AT, _CRON, _DUE = (FIELD[name] for name in ("updated_at", "schedule.cron", "next_run_at"))


@dataclass(frozen=True, kw_only=True)
class CancelledSchedule:
    """A recurring job that was cancelled, and not declared again.

    Attributes:
        id, name: Of the job.
        key: Its unique key; None if it has none.
        at: When it was cancelled.
    """

    id: ObjectId
    name: str
    key: str | None
    at: datetime


@command("look for cancelled schedules", writes=False)
def cancelled_schedules(jobs: JobCollection, name: str | None = None) -> Sequence[CancelledSchedule]:
    """Return such schedules, the last one first. Needs `SCHEDULES`.

    With more than MOST_READ schedules it returns none: one that was declared again might not be among those read.
    """
    collection = jobs.collection.with_options(codec_options=LENIENT)
    shown = dict.fromkeys((_NAME, _KEY, _STATUS, _AT, _CRON), True)
    order, hint = {_DUE: ASCENDING, _ID: ASCENDING}, indexes.name_of(indexes.SCHEDULES)
    found = briefly(
        lambda: collection.find({_CRON: {"$exists": True}}, shown, sort=order, limit=MOST_READ + 1, hint=hint)
    )
    if len(found) > MOST_READ:
        return []
    schedules = [one for one in found if _is_schedule(one) and name in (None, one[_NAME])]
    # A schedule that was declared again is a new job with the same key. Only the last of them counts.
    is_live = {status.value: status in (JobStatus.PENDING, JobStatus.PROCESSING) for status in JobStatus}
    schedules.sort(key=lambda one: (is_live[one[_STATUS]], one[_AT]))
    last = {(one[_NAME], one.get(_KEY, one[_ID])): one for one in schedules}
    cancelled = [one for one in last.values() if one[_STATUS] == JobStatus.CANCELLED]
    return [
        CancelledSchedule(id=one[_ID], name=one[_NAME], key=one.get(_KEY), at=one[_AT])
        for one in sorted(cancelled, key=lambda one: one[_AT], reverse=True)
    ]


def _is_schedule(document: Mapping[str, Any]) -> bool:
    # Other programs may have written anything. By exact type: `Code` is a `str` that has no hash.
    return (
        type(document[_ID]) is ObjectId
        and type(document.get(_NAME)) is str
        and type(document.get(_KEY, "")) is str
        and document.get(_STATUS) in list(JobStatus)
        and type(document.get(_AT)) is datetime
        and type(document[_CRON]) is str
    )


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
