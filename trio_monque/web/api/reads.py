"""The routes that change nothing."""

from __future__ import annotations

from typing import Any

from ...error_types import MonqueError
from ...jobs.views import QueueStats
from ...scheduler import Scheduler
from ..answers import NOT_FOUND, RefusedRequestError
from ..hooks import READ
from .job_shapes import EMPTY_PAGE, job_as_json, page_as_json, stats_as_json, views_as_json
from .query import Listing, is_possible_name, limit_in
from .route import Call

CHANGES = ("cancel", "cancelBulk", "retry", "retryBulk", "reschedule", "delete", "deleteBulk")


async def health(call: Call) -> dict[str, Any]:
    """Return whether the scheduler works; for a client that runs nothing, whether the database answers."""
    monque = call.surface.monque
    if isinstance(monque, Scheduler):
        healthy = monque.is_healthy()
    else:
        try:
            await monque.paused()
            healthy = True
        except MonqueError:
            healthy = False
    return {"status": "ok" if healthy else "unavailable", "scheduler": {"healthy": healthy}}


async def capabilities(call: Call) -> dict[str, Any]:
    """Return what the caller may do."""
    read_only = call.surface.is_read_only
    actions = {READ: await call.may(READ)}
    for action in CHANGES:
        actions[action] = not read_only and await call.may(action)
    return {"readOnly": read_only, "actions": actions}


async def queue_views(call: Call) -> dict[str, Any]:
    """Return a view of each name."""
    return views_as_json(await call.surface.monque.get_queue_view_summaries())


async def list_jobs(call: Call) -> dict[str, Any]:
    """Return a page of jobs."""
    asked: Listing = call.query
    limit = limit_in(asked.limit)
    page = EMPTY_PAGE
    if asked.filter is not None:
        page = await call.surface.monque.get_jobs_with_cursor(
            cursor=asked.cursor, limit=limit, filter=asked.filter, sort=asked.sort
        )
    return await page_as_json(page, call.surface.hooks, call.context)


async def job_stats(call: Call) -> dict[str, Any]:
    """Return the numbers of jobs in each status."""
    name = call.query.get("name")
    is_impossible = name is not None and not is_possible_name(name)
    return stats_as_json(QueueStats() if is_impossible else await call.surface.monque.get_queue_stats(name=name))


async def get_job(call: Call) -> dict[str, Any]:
    """Return one job."""
    job = await call.surface.monque.get_job(call.job_id)
    if job is None:
        raise RefusedRequestError(404, NOT_FOUND)
    return await job_as_json(job, call.surface.hooks, call.context)
