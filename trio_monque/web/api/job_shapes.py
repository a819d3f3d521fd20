"""Jobs, pages and statistics as the contract has them. Pure, but for what hooks may make: payloads and error texts."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ...jobs.bulk_changes import BulkResult
from ...jobs.job import Job
from ...jobs.job_parts import NO_CLAIM
from ...jobs.views import CursorPage, QueueStats, QueueView
from ...store.jobs.job_json import iso
from ..hooks import Hooks, ValueOf


async def job_as_json(job: Job, hooks: Hooks, context: Any) -> dict[str, Any]:
    """Return a job without any field that Monque's clients do not know."""
    (found,) = await jobs_as_json([job], hooks, context)
    return found


async def jobs_as_json(jobs: Sequence[Job], hooks: Hooks, context: Any) -> list[dict[str, Any]]:
    """Return jobs without any field that Monque's clients do not know."""
    payloads = await hooks.values_of([ValueOf(job, job.data, "payload") for job in jobs], context)
    reasons = [await hooks.error_text_of(job, job.fail_reason, context) for job in jobs]
    return [_made_of(job, payload, reason) for job, payload, reason in zip(jobs, payloads, reasons, strict=True)]


def _made_of(job: Job, payload: Any, reason: str | None) -> dict[str, Any]:
    claim = job.claim or NO_CLAIM
    found: dict[str, Any] = {
        "id": str(job.id),
        "name": job.name,
        "status": job.status.value,
        "payload": payload,
        "nextRunAt": iso(job.next_run_at),
        "lockedAt": moment_or_null(claim.since),
        "claimedBy": claim.by,
        "lastHeartbeat": moment_or_null(claim.last_heartbeat),
        "failCount": job.fail_count,
        "failureReason": reason,
        "createdAt": iso(job.created_at),
        "updatedAt": iso(job.updated_at),
    }
    if claim.heartbeat_interval is not None:
        found["heartbeatInterval"] = plain_number(claim.heartbeat_interval * 1000)
    if job.schedule is not None:
        found["repeatInterval"] = job.schedule.cron
    if job.unique_key is not None:
        found["uniqueKey"] = job.unique_key
    return found


def moment_or_null(moment: datetime | None) -> str | None:
    """Return a moment as ISO 8601, or None."""
    return None if moment is None else iso(moment)


def plain_number(number: float) -> float:
    """Return a whole number as one, as JavaScript writes it.

    JSON has no infinity, which another program may have stored: it is the largest number.
    """
    if math.isnan(number):
        return 0
    if math.isinf(number):
        return math.copysign(sys.float_info.max, number)
    return int(number) if number == int(number) else number


async def page_as_json(page: CursorPage, hooks: Hooks, context: Any) -> dict[str, Any]:
    """Return a page. One that was capped has fewer jobs than were asked for, and a cursor to go on."""
    return {
        "jobs": await jobs_as_json(page.jobs, hooks, context),
        "cursor": page.cursor,
        "hasNextPage": page.has_next_page,
        "hasPreviousPage": page.has_previous_page,
    }


EMPTY_PAGE = CursorPage(jobs=(), cursor=None, has_next_page=False, has_previous_page=False)


def stats_as_json(stats: QueueStats) -> dict[str, Any]:
    """Return the numbers of jobs, and the mean milliseconds from enqueuing to completion if they are known."""
    found: dict[str, Any] = {
        "pending": stats.pending,
        "processing": stats.processing,
        "completed": stats.completed,
        "failed": stats.failed,
        "cancelled": stats.cancelled,
        "total": stats.total,
    }
    if stats.average_lifetime is not None:
        found["avgProcessingDurationMs"] = round(stats.average_lifetime * 1000, 3)
    return found


def views_as_json(views: Sequence[QueueView]) -> dict[str, Any]:
    """Return a view of each name."""
    return {
        "queueViews": [
            {
                "name": view.name,
                "hasPersistedJobs": view.has_jobs,
                "hasRegisteredWorker": view.worker is not None,
                "stats": stats_as_json(view.stats),
                "worker": view.worker and {"concurrency": view.worker.concurrency, "activeCount": view.worker.active},
            }
            for view in views
        ]
    }


def bulk_as_json(result: BulkResult) -> dict[str, Any]:
    """Return what a bulk action did."""
    return {
        "count": result.count,
        "errors": [{"jobId": str(one.job_id), "error": one.reason} for one in result.errors],
    }
