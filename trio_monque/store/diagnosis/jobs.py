"""Jobs that are in trouble: they kill their processes, fail again and again, or have a schedule that is not one.

No index has these properties. So each question reads a bounded number of jobs along an index, and `MOST_READ` is the
bound: those that changed last, or that have a unique key, as declared schedules do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from pymongo import DESCENDING, IndexModel

from ...errors import InvalidCronError
from ...jobs.cron import ZoneUnknownHereError, check_timezone, lack_of_zone, normalised
from ...jobs.job import JobStatus
from .. import indexes
from ..codec import LENIENT
from ..commands import command
from ..fields import FIELD
from ..job_collection import JobCollection
from ..rescuing import CLAIMED
from .limits import briefly

MOST_READ: Final = 5_000
MOST_FOUND: Final = 200
RECENT: Final = timedelta(days=1)

MANY_FAILURES: Final = 5
"""Failures in a row from which on a job counts as failing again and again."""

_REASON_SHOWN: Final = 200
_GIVEN_UP: Final = r"^died \d+ times? while running"


@dataclass(frozen=True, kw_only=True)
class TroubledJob:
    """A job whose claims died, or whose attempts failed again and again.

    Attributes:
        id, name, status: Of the job.
        deaths: How many claims on it died in a row; for a job that was given up, as its reason has it.
        failures: How many attempts failed in a row.
        reason: Why the last one failed; None if unknown.
    """

    id: Any
    name: str
    status: str
    deaths: int
    failures: int
    reason: str | None


@command("look for jobs that died or failed again and again", writes=False)
def troubled_jobs(jobs: JobCollection, now: datetime) -> Sequence[TroubledJob]:
    """Return such jobs of the last day, MOST_FOUND of each status at most. Needs the indexes `UPDATED` and `HELD`."""
    is_troubled = {
        "$or": [
            {FIELD["rescues"]: {"$gte": 1}},
            {FIELD["fail_count"]: {"$gte": MANY_FAILURES}},
            {FIELD["fail_reason"]: {"$regex": _GIVEN_UP}},
        ]
    }
    recent = {FIELD["updated_at"]: {"$gte": now - RECENT}}
    found = [*_read(jobs, indexes.HELD, CLAIMED, {}, is_troubled)]
    for status in (JobStatus.PENDING, JobStatus.FAILED):
        condition = {FIELD["status"]: status.value, **recent}
        found += _read(jobs, indexes.UPDATED, condition, {FIELD["updated_at"]: DESCENDING}, is_troubled)
    return [_troubled(one) for one in found]


def _troubled(found: Mapping[str, Any]) -> TroubledJob:
    reason = found["reason"]
    given_up = re.search(r"\d+", reason) if reason and re.match(_GIVEN_UP, reason) else None
    return TroubledJob(
        id=found["_id"],
        name=str(found["name"]),
        status=str(found["status"]),
        deaths=int(given_up[0]) if given_up else _count(found["rescues"]),
        failures=_count(found["failures"]),
        reason=reason,
    )


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


# --- Schedules ---


@dataclass(frozen=True, kw_only=True)
class BadSchedule:
    """A recurring job whose next occurrence cannot be computed.

    Attributes:
        id, name, status: Of the job.
        line: Its cron line, as it is stored.
        problem: Why it cannot be understood.
        is_unknown_here: Another machine may understand it: this one does not know its time zone.
    """

    id: Any
    name: str
    status: str
    line: str
    problem: str
    is_unknown_here: bool = False


@command("look for schedules that cannot be understood", writes=False)
def bad_schedules(jobs: JobCollection) -> Sequence[BadSchedule]:
    """Return such schedules, as far as they are found. Needs the indexes `UNIQUE_KEY` and `UPDATED`."""
    recurs = {FIELD["repeat_interval"]: {"$exists": True, "$ne": None}}
    key, status = FIELD["unique_key"], FIELD["status"]
    live = {FIELD["name"]: {"$gte": ""}, key: {"$exists": True}, status: {"$in": ["pending", "processing"]}}
    found = {_key(one): one for one in _read(jobs, indexes.UNIQUE_KEY, live, {}, recurs)}
    for of in (JobStatus.PENDING, JobStatus.FAILED):
        latest = {FIELD["updated_at"]: DESCENDING}
        read = _read(jobs, indexes.UPDATED, {status: of.value}, latest, recurs)
        found |= {_key(one): one for one in read}
    judged = ((one, *_problem_of_line(one["line"], one["timezone"])) for one in found.values())
    return [
        BadSchedule(
            id=one["_id"],
            name=str(one["name"]),
            status=str(one["status"]),
            line=str(one["line"]),
            problem=problem,
            is_unknown_here=is_unknown_here,
        )
        for one, problem, is_unknown_here in judged
        if problem is not None
    ]


def _key(found: Mapping[str, Any]) -> str:
    return repr(found["_id"])  # An id of a document that is not a job may be unhashable.


def _problem_of_line(line: object, timezone: object) -> tuple[str | None, bool]:
    """Return what is wrong with a schedule, and whether another machine may understand it."""
    if not isinstance(line, str):
        return "it is not a text", False
    try:
        normalised(line)
        check_timezone(line, timezone)
    except ZoneUnknownHereError:
        pass
    except InvalidCronError as error:
        return str(error), False
    lack = lack_of_zone(timezone)
    return lack, lack is not None


# --- How they are read ---


def _read(
    jobs: JobCollection,
    index: IndexModel,
    condition: Mapping[str, Any],
    order: Mapping[str, int],
    residual: Mapping[str, Any],
) -> Iterator[Mapping[str, Any]]:
    """Read MOST_READ jobs along the index, and yield those that meet the rest of the condition."""
    reason = f"${FIELD['fail_reason']}"
    is_text = {"$eq": [{"$type": reason}, "string"]}
    steps: list[dict[str, Any]] = [
        {"$match": condition},
        *([{"$sort": order}] if order else []),
        {"$limit": MOST_READ},
        {"$match": residual},
        {"$limit": MOST_FOUND},
        {
            "$project": {
                "name": f"${FIELD['name']}",
                "status": f"${FIELD['status']}",
                "rescues": f"${FIELD['rescues']}",
                "failures": f"${FIELD['fail_count']}",
                "line": f"${FIELD['repeat_interval']}",
                "timezone": f"${FIELD['timezone']}",
                "reason": {"$cond": [is_text, {"$substrCP": [reason, 0, _REASON_SHOWN]}, None]},
            }
        },
    ]
    collection = jobs.collection.with_options(codec_options=LENIENT)
    absent = dict.fromkeys(("name", "status", "rescues", "failures", "line", "timezone", "reason"))
    for found in briefly(partial(collection.aggregate, steps, hint=indexes.name_of(index))):
        yield {**absent, **found}
