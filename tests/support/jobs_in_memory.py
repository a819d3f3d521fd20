"""Jobs that no database stores: pending and claimed. And jobs by the flat names that they have in JSON."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from bson import ObjectId

from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import ClaimStamp
from trio_monque.jobs.conditional_write import applied
from trio_monque.jobs.job import Job, value_at
from trio_monque.jobs.job_parts import IN_PARTS, PARTS
from trio_monque.store.jobs.job_json import NAMES

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

LATER = NOW + timedelta(hours=1)

STAMP = ClaimStamp.new("host-1-abc", NOW, 30.0, "f00d")


def flat(job: Job | None) -> Any:
    """The attributes of a job by their flat names: `flat(job).claimed_by` is `job.claim.by`, and None without one."""
    assert job is not None
    return SimpleNamespace(**{name: value_at(job, path) for name, path in NAMES.items()})


def with_flat(job: Job, **values: Any) -> Job:
    """The job with these values, by their flat names."""
    changes: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if NAMES[name] in IN_PARTS:
            part, own = IN_PARTS[NAMES[name]]
            inside.setdefault(part, {})[own] = value
        else:
            changes[name] = value
    for part, own_values in inside.items():
        before = getattr(job, part)
        changes[part] = PARTS[part](**own_values) if before is None else replace(before, **own_values)
    return replace(job, **changes)


def pending(**fields: object) -> Job:
    return with_flat(Job(id=ObjectId(), name="greet", next_run_at=NOW, created_at=NOW, updated_at=NOW), **fields)


def claimed(**fields: object) -> Job:
    return applied(pending(**fields), transitions.claim(["greet"], NOW, STAMP))
