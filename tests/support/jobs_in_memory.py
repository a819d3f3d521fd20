"""Jobs that no database stores: pending and claimed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bson import ObjectId

from trio_monque.jobs import transitions
from trio_monque.jobs.conditional_write import applied
from trio_monque.jobs.fences import ClaimStamp
from trio_monque.jobs.job import Job

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

LATER = NOW + timedelta(hours=1)

STAMP = ClaimStamp.new("host-1-abc", NOW, 30.0, "f00d")


def pending(**fields: object) -> Job:
    return Job(id=ObjectId(), name="greet", next_run_at=NOW, created_at=NOW, updated_at=NOW, **fields)  # type: ignore[arg-type]


def claimed(**fields: object) -> Job:
    return applied(pending(**fields), transitions.claim(["greet"], NOW, STAMP))
