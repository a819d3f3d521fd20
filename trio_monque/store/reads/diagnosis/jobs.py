"""Jobs that are in trouble: they kill their processes, fail again and again, or have a schedule that is not one.

No index has these properties. So each question reads a bounded number of jobs along an index, and `MOST_READ` is the
bound: those that changed last, or that have a unique key, as declared schedules do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from bson import ObjectId
from pymongo import DESCENDING, IndexModel

from ....error_types import InvalidCronError, UnknownTimeZoneError
from ....jobs.cron import check_timezone, lack_of_zone, normalised
from ....jobs.failure_groups import FailedJob
from ....jobs.job import JobStatus
from ...codec import LENIENT
from ...driver.bounded_counts import Stages, first_of
from ...driver.commands import BY_ID, command, in_chunks, of_ids
from ...driver.types import Collection
from ...fields import FIELD
from ...job_collection import JobCollection
from ...jobs import indexes
from ...jobs.rescuing import CLAIMED
from .caps import briefly

MOST_READ: Final = 5_000
RECENT: Final = timedelta(days=1)

MOST_PARENTS: Final = 1_000
"""Parents of failed children that one query names."""

MANY_FAILURES: Final = 5
"""Failures in a row from which on a job counts as failing again and again."""

_REASON_SHOWN: Final = 200
_REASON_READ: Final = 1_000  # With long ids in it, its first line is shorter when they are left out.
_GIVEN_UP: Final = r"^died \d+ times? while running"


@dataclass(frozen=True, kw_only=True)
class TroubledJob:
    """A job whose claims died, or whose attempts failed again and again.

    Attributes:
        id, name, status: Of the job.
        deaths: How many claims on it died in a row; for a job that was given up, as its reason has it.
        failures: How many attempts failed in a row.
        reason: Why the last one failed; None if unknown.
        is_dealt_with: A child that has failed, and whose parent has ended since: it dealt with the failure, or failed
            itself and is in trouble instead.
    """

    id: Any
    name: str
    status: str
    deaths: int
    failures: int
    reason: str | None
    is_dealt_with: bool = False


@dataclass(frozen=True, kw_only=True)
class Troubled:
    """The jobs in trouble that a bounded look found.

    Attributes:
        jobs: The jobs, those that changed last first.
        is_capped: There were more jobs than the look reads, so there may be more in trouble.
    """

    jobs: Sequence[TroubledJob] = ()
    is_capped: bool = False


@command("look for jobs that died or failed again and again", writes=False)
def troubled_jobs(jobs: JobCollection, now: datetime, name: str | None = None) -> Troubled:
    """Return the jobs of the last day that failed for good, fail again and again, or died.

    Of one name it needs the indexes `CLAIM` and `HELD`; of all names, `UPDATED` and `HELD`.
    """
    begin = now - RECENT
    held = CLAIMED if name is None else {**CLAIMED, FIELD["name"]: name}
    looks = [_read(jobs, indexes.HELD, held, {})]
    looks += [latest(jobs, status, name, begin) for status in (JobStatus.PENDING, JobStatus.FAILED)]
    running, *at_rest = (look[:MOST_READ] for look in looks)
    recent = [one for look in at_rest for one in look if one["at"] is not None and one["at"] >= begin]
    is_capped = any(len(look) > MOST_READ for look in looks)
    # Beyond the jobs that were read there may be others, and a finding about the children is what shows that.
    # Of one name, a parent that has failed is not read: its children are what shows the failure.
    enough = (JobStatus.COMPLETED,) if name is not None else (JobStatus.COMPLETED, JobStatus.FAILED)
    dealt_with = set() if is_capped else _dealt_with(jobs, recent, enough)
    found = [
        _troubled(one, is_dealt_with=_is_id(one["_id"]) and one["_id"] in dealt_with) for one in [*running, *recent]
    ]
    return Troubled(
        jobs=[one for one in found if one.deaths or one.failures >= MANY_FAILURES or one.status == JobStatus.FAILED],
        is_capped=is_capped,
    )


def _is_id(value: object) -> bool:
    """Whether it is the id of a job. Another program may store any other value as an id, also one without a hash."""
    return isinstance(value, ObjectId)


def _dealt_with(jobs: JobCollection, found: Sequence[Mapping[str, Any]], ends: Sequence[JobStatus]) -> Set[ObjectId]:
    """Return the ids of the failed children whose parents have ended like this since.

    Not those of a recurring parent, which is pending again: its failure of that occurrence may be nowhere else.
    """
    failed = [one for one in found if one["status"] == JobStatus.FAILED]
    children = [one for one in failed if _is_id(one["_id"]) and _is_id(one["parent"])]
    ended: dict[Any, Any] = {}
    status, at = FIELD["status"], FIELD["finished_at"]
    collection = jobs.collection.with_options(codec_options=LENIENT)
    for chunk in in_chunks(dict.fromkeys(one["parent"] for one in children), MOST_PARENTS):
        wanted = {**of_ids(chunk), status: {"$in": list(ends)}}
        parents = briefly(partial(collection.find, wanted, [at], hint=BY_ID))
        ended |= {one["_id"]: one.get(at) for one in parents}
    # Not a child that was tried again after its parent had ended, and failed again.
    return {
        one["_id"] for one in children if isinstance(end := ended.get(one["parent"]), datetime) and end >= one["at"]
    }


def latest(
    jobs: JobCollection,
    status: JobStatus,
    name: str | None,
    begin: datetime | None = None,
    residual: Mapping[str, Any] | None = None,
) -> Sequence[Mapping[str, Any]]:
    """Read the jobs of a status that changed last, since `begin`; of one name, those that were due last."""
    condition: dict[str, Any] = {FIELD["status"]: status.value}
    if name is None:
        condition |= {} if begin is None else {FIELD["updated_at"]: {"$gte": begin}}
        return _read(jobs, indexes.UPDATED, condition, {FIELD["updated_at"]: DESCENDING}, residual)
    condition[FIELD["name"]] = name
    return _read(jobs, indexes.CLAIM, condition, {FIELD["next_run_at"]: DESCENDING}, residual)


def _troubled(found: Mapping[str, Any], *, is_dealt_with: bool) -> TroubledJob:
    reason = found["reason"]
    given_up = re.search(r"\d+", reason) if reason and re.match(_GIVEN_UP, reason) else None
    return TroubledJob(
        id=found["_id"],
        name=str(found["name"]),
        status=str(found["status"]),
        deaths=int(given_up[0]) if given_up else _count(found["rescues"]),
        failures=_count(found["failures"]),
        reason=None if reason is None else reason[:_REASON_SHOWN],
        is_dealt_with=is_dealt_with,
    )


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


@command("read the failed jobs", writes=False)
def failed_jobs(
    jobs: JobCollection, name: str | None = None, since: datetime | None = None
) -> tuple[Sequence[FailedJob], bool]:
    """Return the last MOST_READ jobs that failed for good, of one name or of all, and whether there may be more.

    Args:
        jobs: The jobs collection.
        name: Of one name, those that were due last are read.
        since: Only those that failed since then.
    """
    found = latest(jobs, JobStatus.FAILED, name, since)
    failures = [
        FailedJob(id=one["_id"], name=str(one["name"]), reason=one["reason"], at=one["at"])
        for one in found[:MOST_READ]
        if one["at"] is not None and (since is None or one["at"] >= since)
    ]
    return failures, len(found) > MOST_READ


@command("look for a job of the name", writes=False)
def has_jobs(jobs: JobCollection, name: str) -> bool:
    """Return whether any job has this name. Two keys of indexes."""
    at_rest = {FIELD["name"]: name, FIELD["status"]: {"$in": [status.value for status in indexes.AT_REST]}}
    looks = ((indexes.CLAIM, at_rest), (indexes.HELD, {**CLAIMED, FIELD["name"]: name}))
    collection = jobs.collection.with_options(codec_options=LENIENT)
    return any(indexes.hinted(index, partial(_first, collection, condition)) is not None for index, condition in looks)


def _first(collection: Collection, condition: Mapping[str, Any], hint: str | None) -> Any:
    return collection.find_one(condition, {FIELD["id"]: True}, **indexes.hinting(hint))


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
def bad_schedules(jobs: JobCollection, name: str | None = None) -> Sequence[BadSchedule]:
    """Return such schedules, as far as they are found. Needs `UNIQUE_KEY`, and `UPDATED` or for one name `CLAIM`."""
    recurs = {FIELD["schedule.cron"]: {"$exists": True, "$ne": None}}
    key, status = FIELD["unique_key"], FIELD["status"]
    of_name = {"$gte": ""} if name is None else name
    live = {FIELD["name"]: of_name, key: {"$exists": True}, status: {"$in": ["pending", "processing"]}}
    found = {_key(one): one for one in _read(jobs, indexes.UNIQUE_KEY, live, {}, recurs)}
    for of in (JobStatus.PENDING, JobStatus.FAILED):
        found |= {_key(one): one for one in latest(jobs, of, name, residual=recurs)}
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
    except UnknownTimeZoneError:
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
    residual: Mapping[str, Any] | None = None,
) -> Sequence[Mapping[str, Any]]:
    """Read MOST_READ jobs and one more along the index, and return those that meet the rest of the condition."""
    reason, at = f"${FIELD['fail_reason']}", f"${FIELD['updated_at']}"
    is_text = {"$eq": [{"$type": reason}, "string"]}
    steps: Stages = [
        *first_of(condition, MOST_READ + 1, order),
        *([{"$match": residual}] if residual else []),
        {
            "$project": {
                "name": f"${FIELD['name']}",
                "status": f"${FIELD['status']}",
                "at": {"$cond": [{"$eq": [{"$type": at}, "date"]}, at, None]},
                "rescues": f"${FIELD['rescues']}",
                "failures": f"${FIELD['fail_count']}",
                "line": f"${FIELD['schedule.cron']}",
                "timezone": f"${FIELD['schedule.timezone']}",
                "parent": f"${FIELD['child.parent']}",
                "reason": {"$cond": [is_text, {"$substrCP": [reason, 0, _REASON_READ]}, None]},
            }
        },
    ]
    collection = jobs.collection.with_options(codec_options=LENIENT)
    absent = dict.fromkeys(("name", "status", "at", "rescues", "failures", "line", "timezone", "parent", "reason"))
    # The doctor asks only if the index is there; `trio-monque errors` asks without it, too, for a second at most.
    found = indexes.hinted(index, lambda hint: briefly(partial(collection.aggregate, steps, **indexes.hinting(hint))))
    return [{**absent, **one, "at": one["at"] if type(one["at"]) is datetime else None} for one in found]
