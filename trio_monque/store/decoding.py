"""Reads a document as a job: fast if it is as this library writes it, otherwise by the rules for any writer."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from bson import Int64, ObjectId, tz_util

from ..error_types import BrokenDocumentError
from ..jobs.follow_ups import OWED
from ..jobs.job import REQUIRED, Job, JobStatus, made_of
from ..jobs.job_parts import IN_PARTS, PARTS, FollowUp, FollowUpChosen, FollowUpParked
from ..jobs.meta import is_meta, meta_of
from ..jobs.new_job import ON_EXHAUSTED
from ..safe_text import shown
from .fields import DEFAULTS, FIELD, TYPES

_ATTRIBUTE: Final = {field: attribute for attribute, field in FIELD.items()}
_DATES: Final = tuple(name for name, kind in TYPES.items() if "datetime" in kind)

# The attribute and the type of each field, as this library writes them. If a document has another field of a job, or
# another type, `job_of_unusual` reads it.
_ANY: Final = object
_USUAL: Final = cast(
    "Mapping[str, tuple[str, Any]]",
    {
        FIELD[attribute]: (attribute, kind)
        for kind, attributes in (
            (ObjectId, ("id", "follows", "again.call")),
            (ObjectId, ("nursery.id", "child.scope", "child.parent", "internals.last_scope")),
            (str, ("name", "status", "fail_reason", "unique_key", "schedule.cron", "schedule.timezone")),
            (str, ("claim.by", "claim.token", "internals.receipt")),
            (str, ("schedule.changed_from", "schedule.changed_by")),
            (datetime, _DATES),
            (int, ("fail_count", "attempts", "rescues", "internals.rev", "limits.max_attempts", "schedule.version")),
            (int, ("claim.heartbeat_interval",)),
            (int, ("nursery.since_attempt", "child.run", "child.cancelled_by")),
            (str, ("child.block", "child.key")),
            (dict, ("meta",)),
            (_ANY, ("data", "result", "progress", "saved", "follow_up", "again.data")),
        )
        for attribute in attributes
    },
)
_UNUSUAL: Final = frozenset(FIELD.values()) - _USUAL.keys()
_REQUIRED_ATTRIBUTES: Final = frozenset(REQUIRED)
_STATUS: Final = {status.value: status for status in JobStatus}


def job_of(document: Mapping[str, Any]) -> Job:
    """Return the same job as `job_of_unusual`, several times as fast for a document that this library has written."""
    values: dict[str, Any] = {}
    for field, value in document.items():
        usual = _USUAL.get(field)
        if usual is None:
            if field in _UNUSUAL:
                return job_of_unusual(document)
            continue
        attribute, kind = usual
        if kind is not _ANY:
            if type(value) is not kind:
                return job_of_unusual(document)
            if kind is datetime:
                value = _in_utc(value)
            elif (kind is int and not 0 <= value <= LARGEST_COUNTER) or (kind is dict and not is_meta(value)):
                return job_of_unusual(document)
        values[attribute] = value
    status = _STATUS.get(values.get("status", ""))
    if status is None or not values.keys() >= _REQUIRED_ATTRIBUTES:
        return job_of_unusual(document)
    values["status"] = status
    _share(values)
    if not _SELDOM.isdisjoint(values):
        _put_together(values)
    return made_of(values)


def _share(values: dict[str, Any]) -> None:
    """Share equal values between jobs: thousands of jobs have a few names, and most are due when they are enqueued."""
    values["name"] = sys.intern(values["name"])
    if values["created_at"] == values["next_run_at"]:
        values["created_at"] = values["next_run_at"]


# What most jobs do not have.
_SELDOM: Final = frozenset({*IN_PARTS, "follow_up"})

# Without these, the other fields of the part mean nothing: another program has removed them.
_ESSENTIAL: Final = {"schedule": "cron", "again": "call", "nursery": "id", "child": "scope"}


def _put_together(values: dict[str, Any]) -> None:
    """Make the parts that the job has, and its follow-up."""
    parts: dict[str, dict[str, Any]] = {}
    for path in IN_PARTS.keys() & values.keys():
        part, own = IN_PARTS[path]
        if (value := values.pop(path)) is not DEFAULTS[path]:
            parts.setdefault(part, {})[own] = value
    for part, had in parts.items():
        if "heartbeat_interval" in had:
            had["heartbeat_interval"] /= 1000
        if part not in _ESSENTIAL or _ESSENTIAL[part] in had:
            values[part] = PARTS[part](**had)
    if "follow_up" in values:
        values["follow_up"] = follow_up_of(values["follow_up"])


def follow_up_of(stored: Any) -> FollowUp | None:
    """Return what the field `followUp` means; None for a value that this library does not write."""
    if stored is True:
        return OWED
    if isinstance(stored, ObjectId):
        return FollowUpChosen(stored)
    if isinstance(stored, Mapping):
        attempt, due = stored.get("attempt"), stored.get("due")
        if isinstance(attempt, int) and isinstance(due, datetime):
            return FollowUpParked(int(attempt), _in_utc(due))
    return None


def job_of_unusual(document: Mapping[str, Any]) -> Job:
    """Return the job in a document of any writer. Raises BrokenDocumentError if it is not a job."""
    values: dict[str, Any] = dict(DEFAULTS)
    for field, value in document.items():
        attribute = _ATTRIBUTE.get(field)
        if attribute is None:
            continue
        if value is not None:
            values[attribute] = value
        elif attribute in _ADDED_TO:
            raise BrokenDocumentError(document.get("_id"), f"its {field} is null, to which nothing can be added")
    _make_plain(values)
    _check(values)
    for attribute in _DATES:
        moment = values.get(attribute)
        if moment is not None:
            values[attribute] = _in_utc(moment)
    values["status"] = JobStatus(values["status"])
    _put_together(values)
    return made_of(values)


# The attributes that transitions add to (`$inc`). An absent field counts as 0. For a null, the server refuses the whole
# write.
_ADDED_TO: Final = frozenset({"fail_count", "attempts", "internals.rev", "rescues"})
_COUNTERS: Final = (*_ADDED_TO, "limits.max_attempts", "limits.max_rescues", "schedule.version")
_NUMBERS: Final = (*_COUNTERS, "claim.heartbeat_interval", "limits.timeout")
_FRACTIONS: Final = frozenset({"claim.heartbeat_interval", "limits.timeout"})
LARGEST_COUNTER: Final = 2**53
"""The largest value of a counter. Near the largest integer, the server would refuse to add, and the whole write."""


def _make_plain(values: dict[str, Any]) -> None:
    """Convert values that mean the same in another type. Drop values of a wrong type that only people read."""
    for attribute in (*_NUMBERS, "nursery.since_attempt", "child.run", "child.cancelled_by"):
        value = values[attribute]
        # A shell or a graphical tool may store every number as a double.
        is_whole_double = type(value) is float and attribute not in _FRACTIONS and value.is_integer()
        if type(value) is Int64 or is_whole_double:
            values[attribute] = int(value)
    for attribute in _SHOWN:
        if type(values[attribute]) is not str:
            values[attribute] = None
    if type(values["schedule.changed_at"]) is not datetime:
        values["schedule.changed_at"] = None
    if values["errors"] is not DEFAULTS["errors"]:  # Also for 0 and {}, which are not lists.
        values["errors"] = _history(values["errors"])
    values["meta"] = meta_of(values["meta"])
    if type(values["follows"]) is not ObjectId:
        values["follows"] = None
    # Another program may have fields of these names: then the job has no nursery, and is not a child.
    for attribute, kinds in _OF_NURSERIES.items():
        value = values[attribute]
        if type(value) not in kinds or (type(value) is int and not 0 <= value <= LARGEST_COUNTER):
            values[attribute] = None


def _history(stored: Any) -> list[Mapping[str, Any]]:
    """Return the errors as this library writes them; what another program put there is left out."""
    return [entry for entry in stored if isinstance(entry, Mapping)] if type(stored) is list else []


# Only people read these, and nothing depends on them: a job runs whatever they hold.
_SHOWN: Final = ("fail_reason", "internals.receipt", "schedule.changed_from", "schedule.changed_by")

_OF_NURSERIES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("nursery.id", "child.scope", "child.parent", "internals.last_scope"), (ObjectId,)),
    **dict.fromkeys(("nursery.since_attempt", "child.run", "child.cancelled_by"), (int,)),
    "nursery.failed": (dict,),
    "nursery.steps": (dict,),
    **dict.fromkeys(("child.block", "child.key"), (str,)),
}

# By exact type: a subclass may mean something else. `Code` is a `str` that has no hash, and `bool` is an `int` that
# equals no number in MongoDB.
_NO_TYPE: Final = type(None)
_EXPECTED: Final[Mapping[str, tuple[type, ...]]] = {
    "id": (ObjectId,),
    "again.call": (ObjectId, _NO_TYPE),
    "name": (str,),
    "status": (str,),
    **dict.fromkeys(_ADDED_TO, (int,)),
    **dict.fromkeys(("limits.max_attempts", "limits.max_rescues", "schedule.version"), (int, _NO_TYPE)),
    **dict.fromkeys(("claim.heartbeat_interval", "limits.timeout"), (int, float, _NO_TYPE)),
    **dict.fromkeys(("schedule.cron", "schedule.timezone", "unique_key", "claim.by", "claim.token"), (str, _NO_TYPE)),
    "schedule.on_exhausted": (str, _NO_TYPE),
    **dict.fromkeys(_DATES, (datetime, _NO_TYPE)),
}
_STATUSES: Final = frozenset(JobStatus)
_ON_EXHAUSTED: Final = frozenset({None, *ON_EXHAUSTED})


def _check(values: Mapping[str, Any]) -> None:
    for attribute in REQUIRED:
        if attribute not in values:
            raise BrokenDocumentError(values.get("id"), f"it has no {FIELD[attribute]}")
    for attribute, expected in _EXPECTED.items():
        if type(values[attribute]) not in expected:
            raise _broken(values, attribute)
    for attribute in _COUNTERS:
        if values[attribute] is not None and not 0 <= values[attribute] <= LARGEST_COUNTER:
            raise _broken(values, attribute)
    if values["limits.timeout"] is not None and not 0 < values["limits.timeout"] < math.inf:
        raise _broken(values, "limits.timeout")
    if values["schedule.on_exhausted"] not in _ON_EXHAUSTED:
        raise _broken(values, "schedule.on_exhausted")
    if values["status"] not in _STATUSES:
        raise _broken(values, "status")


def _broken(values: Mapping[str, Any], attribute: str) -> BrokenDocumentError:
    return BrokenDocumentError(values.get("id"), f"its {FIELD[attribute]} is {shown(values[attribute])}")


def _in_utc(moment: datetime) -> datetime:
    zone = moment.tzinfo
    if zone is UTC:
        return moment
    if zone is None or zone is tz_util.utc:  # The driver's own, which is asked in Python what its offset is.
        return moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC)
