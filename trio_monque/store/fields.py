"""The name of the field for each attribute of a job. No other file spells these names, such as "nextRunAt"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from ..jobs.job import Job

FIELD: Final[Mapping[str, str]] = {
    "id": "_id",
    "name": "name",
    "data": "data",
    "status": "status",
    "next_run_at": "nextRunAt",
    "fail_count": "failCount",
    "fail_reason": "failReason",
    "repeat_interval": "repeatInterval",
    "unique_key": "uniqueKey",
    "claimed_by": "claimedBy",
    "locked_at": "lockedAt",
    "last_heartbeat": "lastHeartbeat",
    "heartbeat_interval": "heartbeatInterval",
    "renewed_at": "renewedAt",
    "created_at": "createdAt",
    "updated_at": "updatedAt",
    "attempts": "attempts",
    "claim_token": "claimToken",
    "receipt": "receipt",
    "rescues": "rescues",
    "rev": "rev",
    "cancel_requested_at": "cancelRequestedAt",
    "timezone": "timezone",
    "schedule_version": "scheduleVersion",
    "timeout": "timeout",
    "max_attempts": "maxRetries",
    "max_rescues": "maxRescues",
    "on_exhausted": "onExhausted",
    "result": "result",
    "progress": "progress",
    "saved": "saved",
    "saved_for": "savedFor",
    "occurrence": "occurrence",
    "resumes_at": "resumesAt",
    "started_at": "startedAt",
    "finished_at": "finishedAt",
    "errors": "errors",
    "start_by": "startBy",
    "meta": "meta",
    "follows": "follows",
    "follow_up": "followUp",
    "debounced_since": "debouncedSince",
    "again": "again",
    "again_data": "againData",
    "again_at": "againAt",
    "again_start_by": "againStartBy",
    "again_since": "againSince",
}

HEAVY: Final = ("data", "result", "progress", "saved", "errors", "again_data")
"""Attributes that may be large: one call might not have the time to read a hundred jobs with them."""
BUT_HEAVY: Final = {FIELD[name]: False for name in HEAVY}
"""The projection that leaves these out."""

DEFAULTS: Final[Mapping[str, Any]] = {f.name: f.default for f in fields(Job) if f.default is not MISSING}
