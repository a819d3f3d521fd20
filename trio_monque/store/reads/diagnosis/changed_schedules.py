"""Recurring jobs that may not do what their owners want: cancelled ones, and those that a declaration has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bson import ObjectId
from pymongo import ASCENDING

from ....jobs.job import JobStatus
from ...codec import LENIENT
from ...driver.commands import command
from ...fields import FIELD
from ...job_collection import JobCollection
from ...jobs import indexes
from .caps import briefly
from .jobs import MOST_READ, RECENT

_ID, _NAME, _KEY, _STATUS = (FIELD[name] for name in ("id", "name", "unique_key", "status"))
_AT, _CRON, _ZONE, _DUE = (FIELD[name] for name in ("updated_at", "schedule.cron", "schedule.timezone", "next_run_at"))
_BEFORE, _CHANGED, _BY = (FIELD[f"schedule.{name}"] for name in ("changed_from", "changed_at", "changed_by"))


@dataclass(frozen=True, kw_only=True)
class NotedSchedule:
    """A recurring job to which something has happened: it was cancelled, for example, and not declared again.

    Attributes:
        id, name: Of the job.
        key: Its unique key; None if it has none.
        at: When that was.
    """

    id: ObjectId
    name: str
    key: str | None
    at: datetime


@dataclass(frozen=True, kw_only=True)
class ChangedSchedule(NotedSchedule):
    """A recurring job whose times a declaration has changed in the last day, without a new version.

    Attributes:
        before: The expression and the time zone until then.
        after: Those that it has now.
        by: The instance or process that declared it; None if unknown.
    """

    before: str
    after: str
    by: str | None = None


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """Both, the last one first."""

    cancelled: Sequence[NotedSchedule] = ()
    changed: Sequence[ChangedSchedule] = ()


@command("look at the schedules", writes=False)
def look_at_schedules(jobs: JobCollection, now: datetime, name: str | None = None) -> Schedules:
    """Return such schedules, of one name or of all. Needs `SCHEDULES`.

    With more than MOST_READ schedules it returns none: one that was declared again might not be among those read.
    """
    collection = jobs.collection.with_options(codec_options=LENIENT)
    shown = dict.fromkeys((_NAME, _KEY, _STATUS, _AT, _CRON, _ZONE, _BEFORE, _CHANGED, _BY), True)
    order, hint = {_DUE: ASCENDING, _ID: ASCENDING}, indexes.name_of(indexes.SCHEDULES)
    found = briefly(
        lambda: collection.find({_CRON: {"$exists": True}}, shown, sort=order, limit=MOST_READ + 1, hint=hint)
    )
    if len(found) > MOST_READ:
        return Schedules()
    schedules = [one for one in found if _is_schedule(one) and name in (None, one[_NAME])]
    return Schedules(cancelled=_cancelled(schedules), changed=_changed(schedules, now - RECENT))


def _cancelled(schedules: Sequence[Mapping[str, Any]]) -> Sequence[NotedSchedule]:
    # A schedule that was declared again is a new job with the same key. Only the last of them counts.
    in_order = sorted(schedules, key=lambda one: (_is_live(one), one[_AT]))
    last = {(one[_NAME], one.get(_KEY, one[_ID])): one for one in in_order}
    cancelled = [one for one in last.values() if one[_STATUS] == JobStatus.CANCELLED]
    return [
        NotedSchedule(id=one[_ID], name=one[_NAME], key=one.get(_KEY), at=one[_AT])
        for one in sorted(cancelled, key=lambda one: one[_AT], reverse=True)
    ]


def _changed(schedules: Sequence[Mapping[str, Any]], begin: datetime) -> Sequence[ChangedSchedule]:
    changed = [one for one in schedules if _is_live(one) and _has_changed(one, begin)]
    return [
        ChangedSchedule(
            id=one[_ID],
            name=one[_NAME],
            key=one.get(_KEY),
            at=one[_CHANGED],
            before=one[_BEFORE],
            after=f"{one[_CRON]} ({one.get(_ZONE) or 'UTC'})",
            by=one[_BY] if type(one.get(_BY)) is str else None,
        )
        for one in sorted(changed, key=lambda one: one[_CHANGED], reverse=True)
    ]


def _is_live(document: Mapping[str, Any]) -> bool:
    return document[_STATUS] in (JobStatus.PENDING, JobStatus.PROCESSING)


def _has_changed(document: Mapping[str, Any], begin: datetime) -> bool:
    at = document.get(_CHANGED)
    return type(document.get(_BEFORE)) is str and type(at) is datetime and at >= begin


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
