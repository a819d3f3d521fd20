"""Jobs and pages with all that this library knows of a job: the view that a query asks for with `view=full`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from ...diagnosis.parents_and_children import blocks_of
from ...jobs.claim_stamps_and_fences import last_sign_of_life
from ...jobs.cursors import anchor_of, encode
from ...jobs.job import Job, JobStatus
from ...jobs.job_parts import NO_CLAIM, ChildOf, NurseryScope, Schedule
from ...jobs.job_query import JobSort
from ...jobs.rescue_policy import lease_of
from ...jobs.views import CursorPage
from ...store.jobs.job_json import iso
from ..hooks import Hooks, ValueOf
from .job_shapes import jobs_as_json, moment_or_null, plain_number


async def full_job_as_json(job: Job, hooks: Hooks, context: Any) -> dict[str, Any]:
    """Return a job with the fields of the contract and ours."""
    (found,) = await full_jobs_as_json([job], hooks, context)
    return found


async def full_jobs_as_json(jobs: Sequence[Job], hooks: Hooks, context: Any) -> list[dict[str, Any]]:
    """Return jobs with the fields of the contract and ours."""
    # A serializer need not know what to do with a value that most jobs do not have.
    values = [
        ValueOf(job, value, name)
        for job in jobs
        for name, value in (
            ("progress", job.progress),
            ("result", job.result),
            ("saved", job.saved),
            ("steps", (job.nursery or _NO_NURSERY).steps),
        )
        if value is not None
    ]
    shown = await hooks.values_of(values, context)
    made = {(one.job.id, one.field_name): value for one, value in zip(values, shown, strict=True)}
    return [
        {
            **of_contract,
            **{name: made.get((job.id, name)) for name in ("progress", "result", "saved", "steps")},
            "errors": [await _error_as_json(job, one, hooks, context) for one in job.errors],
            **_plain_fields(job),
        }
        for job, of_contract in zip(jobs, await jobs_as_json(jobs, hooks, context), strict=True)
    ]


def _plain_fields(job: Job) -> dict[str, Any]:
    """Return what no hook sees. Durations are milliseconds."""
    claim, schedule, limits = job.claim or NO_CLAIM, job.schedule or _NO_SCHEDULE, job.limits
    child = job.child or _NO_CHILD
    return {
        "attempts": job.attempts,
        "maxAttempts": limits.max_attempts,
        "rescues": job.rescues,
        "timezone": schedule.timezone,
        "timeout": None if limits.timeout is None else plain_number(limits.timeout * 1000),
        "startBy": moment_or_null(limits.start_by),
        "meta": dict(job.meta),
        "follows": None if job.follows is None else str(job.follows),
        "parent": None if child.parent is None else str(child.parent),
        "block": child.block,
        "childKey": child.key,
        "cancelledByRun": child.cancelled_by,
        "failedBlocks": {one.key: [str(child_id) for child_id in one.failed_by] for one in blocks_of(job, ())},
        "cancelRequestedAt": moment_or_null(claim.cancel_requested_at),
        "startedAt": moment_or_null(job.started_at),
        "finishedAt": moment_or_null(job.finished_at),
        "leaseUntil": moment_or_null(lease_end_of(job)),
    }


_NO_SCHEDULE = Schedule(cron="")
_NO_NURSERY = NurseryScope()
_NO_CHILD = ChildOf()


def lease_end_of(job: Job) -> datetime | None:
    """Return when other instances may take a running job, if its claim is not renewed by then; None for other jobs."""
    signal = last_sign_of_life(job) if job.status is JobStatus.PROCESSING else None
    if signal is None:
        return None
    lease = timedelta(seconds=lease_of(job))
    return signal + lease if signal <= _LATEST - lease else _LATEST


_LATEST = datetime.max.replace(tzinfo=UTC)
"""Another program may have stored any date."""


async def _error_as_json(job: Job, one: Mapping[str, Any], hooks: Hooks, context: Any) -> dict[str, Any]:
    at, attempt, ran = one.get("at"), one.get("attempt"), one.get("ran")
    return {
        "at": iso(at) if isinstance(at, datetime) else None,
        "attempt": attempt if isinstance(attempt, int) and attempt >= 0 else None,
        "by": _text(one.get("by")),
        "ran": ran if isinstance(ran, int) and ran >= 0 else None,
        "error": await hooks.error_text_of(job, _text(one.get("error")), context),
        "traceback": await hooks.error_text_of(job, _text(one.get("traceback")), context),
    }


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


async def full_page_as_json(
    page: CursorPage, sort: JobSort, direction: Literal["forward", "backward"], hooks: Hooks, context: Any
) -> dict[str, Any]:
    """Return a page with cursors to both sides."""
    before, behind = cursors_around(page, sort, direction)
    return {
        "jobs": await full_jobs_as_json(page.jobs, hooks, context),
        "cursor": behind,
        "hasNextPage": page.has_next_page,
        "hasPreviousPage": page.has_previous_page,
        "previousCursor": before if page.has_previous_page else None,
        "isCapped": page.is_capped,
        "examined": page.examined,
    }


def cursors_around(
    page: CursorPage, sort: JobSort, direction: Literal["forward", "backward"]
) -> tuple[str | None, str | None]:
    """Return where a page before this one begins, to be read backward, and where one behind it begins.

    The library gives only the cursor in the direction of reading: the other one is the place of the job at the other
    end. A page without jobs that was capped is between the same place and itself.
    """
    is_backward = direction == "backward"
    if not page.jobs:
        return page.cursor, page.cursor
    end = page.jobs[-1] if is_backward else page.jobs[0]
    other = encode(anchor_of(end, sort.by), sort.by, sort.direction, backward=not is_backward)
    return (page.cursor, other) if is_backward else (other, page.cursor)
