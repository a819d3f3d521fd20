"""Documents of jobs in any state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any


def job_document(name: str, *, status: str = "pending", claimed_by: str = "worker-1", **fields: Any) -> dict[str, Any]:
    """A job as this library stores it; one that is processing has a holder that is alive."""
    now = datetime.now(UTC).replace(microsecond=0)
    made: dict[str, Any] = {
        "name": name,
        "data": {},
        "status": status,
        "nextRunAt": now - timedelta(minutes=1),
        "failCount": 1 if status == "failed" else 0,
        "createdAt": now - timedelta(minutes=2),
        "updatedAt": now,
    }
    if status == "processing":
        made |= {"claimedBy": claimed_by, "lockedAt": now, "lastHeartbeat": now, "heartbeatInterval": 30_000}
        made |= {"attempts": 1, "claimToken": f"{claimed_by}:{round(now.timestamp() * 1000)}:1"}
    spelled = {
        "fail_reason": "failReason", "unique_key": "uniqueKey", "next_run_at": "nextRunAt", "updated_at": "updatedAt",
    }  # fmt: skip
    return {**made, **{spelled.get(key, key): value for key, value in fields.items()}}
