"""A job as JSON, and values as extended JSON, in which a date is {"$date": "2026-01-01T00:00:00Z"}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson import json_util

from ...error_types import InvalidOptionError
from ...jobs.job import Job, value_at
from ..codec import stored_follow_up
from ..driver.extended_json import OPTIONS, UNREADABLE

NAMES: Final[Mapping[str, str]] = {
    "id": "id",
    "name": "name",
    "data": "data",
    "status": "status",
    "next_run_at": "next_run_at",
    "fail_count": "fail_count",
    "created_at": "created_at",
    "updated_at": "updated_at",
    "fail_reason": "fail_reason",
    "repeat_interval": "schedule.cron",
    "unique_key": "unique_key",
    "claimed_by": "claim.by",
    "locked_at": "claim.since",
    "claim_token": "claim.token",
    "last_heartbeat": "claim.last_heartbeat",
    "heartbeat_interval": "claim.heartbeat_interval",
    "renewed_at": "claim.renewed_at",
    "attempts": "attempts",
    "receipt": "internals.receipt",
    "rescues": "rescues",
    "rev": "internals.rev",
    "cancel_requested_at": "claim.cancel_requested_at",
    "timezone": "schedule.timezone",
    "schedule_version": "schedule.version",
    "schedule_changed_from": "schedule.changed_from",
    "schedule_changed_at": "schedule.changed_at",
    "schedule_changed_by": "schedule.changed_by",
    "timeout": "limits.timeout",
    "max_attempts": "limits.max_attempts",
    "max_rescues": "limits.max_rescues",
    "on_exhausted": "schedule.on_exhausted",
    "result": "result",
    "progress": "progress",
    "saved": "saved",
    "saved_for": "internals.saved_for",
    "last_scope": "internals.last_scope",
    "occurrence": "internals.occurrence",
    "resumes_at": "internals.resumes_at",
    "started_at": "started_at",
    "finished_at": "finished_at",
    "errors": "errors",
    "start_by": "limits.start_by",
    "meta": "meta",
    "follows": "follows",
    "follow_up": "follow_up",
    "debounced_since": "debounced_since",
    "again": "again.call",
    "again_data": "again.data",
    "again_at": "again.next_run_at",
    "again_start_by": "again.start_by",
    "again_since": "again.debounced_since",
    "own_scope": "nursery.id",
    "own_scope_for": "nursery.occurrence",
    "scope_try": "nursery.since_attempt",
    "failed_blocks": "nursery.failed",
    "steps": "nursery.steps",
    "scope": "child.scope",
    "parent": "child.parent",
    "block": "child.block",
    "child_key": "child.key",
    "scope_run": "child.run",
    "scope_cancel": "child.cancelled_by",
}
"""The attributes of a job by their names in JSON and on the command line: flat, as in the document. They stay."""

_INTERNAL: Final = frozenset(
    {"claim_token", "receipt", "rev", "own_scope_for", "scope_try", "scope_run", "scope_cancel", "own_scope", "scope"}
)
"""What serves the library itself, and may change with each version."""

_LARGE: Final = frozenset({"data", "result", "progress", "saved", "errors", "steps"})

_OF_ANY_TYPE: Final = frozenset({"data", "result", "progress", "saved"})


def job_as_json(job: Job, *, is_light: bool = False) -> dict[str, Any]:
    """Return the attributes of a job by their names, as values of JSON.

    Moments are ISO 8601 in UTC, the id is its 24 digits, and values of the program are extended JSON.

    Args:
        job: The job.
        is_light: Leave out the values that may be large.
    """
    left_out = _INTERNAL | _LARGE if is_light else _INTERNAL
    return {name: _attribute(name, value_at(job, path)) for name, path in NAMES.items() if name not in left_out}


def iso(moment: datetime) -> str:
    """Return a moment as ISO 8601 in UTC, with milliseconds, as MongoDB stores it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def value_as_json(value: object) -> Any:
    """Return a value of BSON as the value of JSON that stands for it."""
    try:
        return json.loads(json_util.dumps(value, json_options=OPTIONS))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(value)  # Of a codec of the user's own.


def value_from_json(text: str) -> Any:
    """Return the value of BSON that extended JSON stands for.

    Raises:
        InvalidOptionError: It is not JSON; the message says where it is wrong.
    """
    try:
        found = json_util.loads(text, json_options=OPTIONS)
        bson.encode({"": found}, codec_options=_CODEC)
    except json.JSONDecodeError as error:
        hint = "" if text[:1] in '[{"' else ", and a text needs its quotation marks: '\"text\"'"
        raise InvalidOptionError("data", text, f"is not JSON ({error}){hint}") from None
    except UNREADABLE as error:
        raise InvalidOptionError("data", text, f"is not extended JSON ({error})") from None
    return found


_CODEC: Final = bson.CodecOptions[dict[str, Any]](tz_aware=True)


def _attribute(name: str, value: object) -> Any:
    if isinstance(value, datetime) and name not in _OF_ANY_TYPE:
        return iso(value)
    if name == "id":
        return str(value)
    if name == "follow_up":
        return value_as_json(stored_follow_up(value))  # type: ignore[arg-type]
    if name == "errors":
        return [_error(one) for one in value]  # type: ignore[attr-defined]
    if name == "meta":
        return dict(value)  # type: ignore[call-overload]
    return value_as_json(value)


def _error(one: Mapping[str, Any]) -> dict[str, Any]:
    return {key: iso(value) if isinstance(value, datetime) else value_as_json(value) for key, value in one.items()}
