"""The name of the field for each attribute of a job, and for those of its parts by their paths, such as "claim.token".

No other file spells the names of fields, such as "nextRunAt".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from ..jobs.job import REQUIRED, Job
from ..jobs.job_parts import PARTS

FIELD: Final[Mapping[str, str]] = {
    "id": "_id",
    "name": "name",
    "data": "data",
    "status": "status",
    "next_run_at": "nextRunAt",
    "fail_count": "failCount",
    "fail_reason": "failReason",
    "schedule.cron": "repeatInterval",
    "unique_key": "uniqueKey",
    "claim.by": "claimedBy",
    "claim.since": "lockedAt",
    "claim.last_heartbeat": "lastHeartbeat",
    "claim.heartbeat_interval": "heartbeatInterval",
    "claim.renewed_at": "renewedAt",
    "created_at": "createdAt",
    "updated_at": "updatedAt",
    "attempts": "attempts",
    "claim.token": "claimToken",
    "internals.receipt": "receipt",
    "rescues": "rescues",
    "internals.rev": "rev",
    "claim.cancel_requested_at": "cancelRequestedAt",
    "schedule.timezone": "timezone",
    "schedule.version": "scheduleVersion",
    "schedule.changed_from": "scheduleChangedFrom",
    "schedule.changed_at": "scheduleChangedAt",
    "schedule.changed_by": "scheduleChangedBy",
    "limits.timeout": "timeout",
    "limits.max_attempts": "maxRetries",
    "limits.max_rescues": "maxRescues",
    "schedule.on_exhausted": "onExhausted",
    "result": "result",
    "progress": "progress",
    "saved": "saved",
    "internals.saved_for": "savedFor",
    "internals.last_scope": "lastScope",
    "internals.occurrence": "occurrence",
    "internals.resumes_at": "resumesAt",
    "started_at": "startedAt",
    "finished_at": "finishedAt",
    "errors": "errors",
    "limits.start_by": "startBy",
    "meta": "meta",
    "follows": "follows",
    "follow_up": "followUp",
    "debounced_since": "debouncedSince",
    "again.call": "again",
    "again.data": "againData",
    "again.next_run_at": "againAt",
    "again.start_by": "againStartBy",
    "again.debounced_since": "againSince",
    "nursery.id": "ownScope",
    "nursery.occurrence": "ownScopeFor",
    "nursery.since_attempt": "scopeTry",
    "nursery.failed": "scopeFailed",
    "nursery.steps": "steps",
    "child.scope": "scope",
    "child.parent": "parent",
    "child.block": "block",
    "child.key": "childKey",
    "child.run": "scopeRun",
    "child.cancelled_by": "scopeCancel",
}


def field_of(path: str) -> str:
    """Return the field of what is inside of the value of an attribute: "meta.tenant", "data.order.id"."""
    attribute, _, inside = path.partition(".")
    return f"{FIELD[attribute]}.{inside}"


CLAIM: Final = (
    "claim.by",
    "claim.since",
    "claim.last_heartbeat",
    "claim.heartbeat_interval",
    "claim.token",
    "claim.renewed_at",
)
"""What a claim writes of itself."""

HEAVY: Final = ("data", "result", "progress", "saved", "errors", "again.data", "nursery.steps")
"""Attributes that may be large: one call might not have the time to read a hundred jobs with them."""
BUT_HEAVY: Final = {FIELD[name]: False for name in HEAVY}
"""The projection that leaves these out."""

_ATTRIBUTES: Final = {
    **{one.name: one for one in fields(Job) if one.name not in PARTS},
    **{f"{part}.{one.name}": one for part, kind in PARTS.items() for one in fields(kind)},
}

DEFAULTS: Final[Mapping[str, Any]] = {
    name: None if one.default is MISSING else one.default for name, one in _ATTRIBUTES.items() if name not in REQUIRED
}

TYPES: Final[Mapping[str, str]] = {name: str(one.type) for name, one in _ATTRIBUTES.items()}
"""The type of each attribute, as text: annotations are not evaluated."""
