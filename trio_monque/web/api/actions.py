"""The routes that change jobs: one, or all that a selector selects."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ...client.monque import Monque
from ...error_types import BrokenDocumentError, JobStateError
from ...jobs.bulk_changes import BulkResult
from ...jobs.job import Job, JobStatus
from ...jobs.job_selector import Selection
from ...store.driver.types import ObjectId
from ..answers import DENIED, INVALID_INPUT, NOT_FOUND, RefusedRequestError
from .job_shapes import bulk_as_json, job_as_json
from .moments import moment_in
from .query import is_possible_name
from .route import Call

# --- One job ---


async def cancel_job(call: Call) -> dict[str, Any]:
    """Cancel a pending job. One that runs is asked to end only if the body demands it: Monque refuses that."""
    may_run = isinstance(call.body, dict) and call.body.get("running") is True

    async def cancel(monque: Monque, job: Job) -> Job | None:
        if job.status is JobStatus.PROCESSING and not may_run:
            raise JobStateError(job.id, job.status, "cancel")
        return await monque.cancel_job(job.id)

    return await _changed(call, "cancelRunning" if may_run else "cancel", cancel)


async def retry_job(call: Call) -> dict[str, Any]:
    """Make a failed or cancelled job pending again."""
    return await _changed(call, "retry", lambda monque, job: monque.retry_job(job.id))


async def reschedule_job(call: Call) -> dict[str, Any]:
    """Move a pending job."""
    moment = moment_in(call.body["nextRunAt"])
    assert moment is not None, "its shape was checked"
    return await _changed(call, "reschedule", lambda monque, job: monque.reschedule_job(job.id, moment))


async def delete_job(call: Call) -> dict[str, Any]:
    """Delete a job."""
    job_id = await _permitted(call, "delete")
    if not await call.surface.monque.delete_job(job_id):
        raise RefusedRequestError(404, NOT_FOUND)
    call.audit.count = 1
    return {"deleted": True}


async def _changed(call: Call, action: str, change: Callable[[Monque, Job], Awaitable[Job | None]]) -> dict[str, Any]:
    job_id = await _permitted(call, action)
    monque = call.surface.monque
    job = await monque.get_job(job_id)
    changed = None if job is None else await change(monque, job)
    if changed is None:  # It has vanished meanwhile.
        raise RefusedRequestError(404, NOT_FOUND)
    call.audit.count = 1
    return await job_as_json(changed, call.surface.hooks, call.context)


async def _permitted(call: Call, action: str) -> ObjectId:
    """Return the id of the job, which exists.

    The answer to a caller that may not do this does not depend on whether there is such a job.
    """
    job_id = call.job_id
    call.audit.target = str(job_id)
    try:
        job = await call.surface.monque.get_job(job_id)
    except BrokenDocumentError:
        if not await call.may(action):
            raise RefusedRequestError(403, DENIED) from None
        raise
    if job is not None and await call.may(action, job):
        return job_id
    if not await call.may(action):
        raise RefusedRequestError(403, DENIED)
    raise RefusedRequestError(404, NOT_FOUND)


# --- Many jobs ---


async def cancel_jobs(call: Call) -> dict[str, Any]:
    """Cancel the selected jobs that are pending."""
    return await _in_bulk(call, "cancelBulk", lambda monque, selection: monque.cancel_jobs(**selection))


async def retry_jobs(call: Call) -> dict[str, Any]:
    """Make the selected jobs that are failed or cancelled pending again."""
    return await _in_bulk(call, "retryBulk", lambda monque, selection: monque.retry_jobs(**selection))


async def delete_jobs(call: Call) -> dict[str, Any]:
    """Delete the selected jobs."""

    def delete(monque: Monque, selection: Selection) -> Awaitable[BulkResult]:
        return monque.delete_jobs(everything=not selection, **selection)

    return await _in_bulk(call, "deleteBulk", delete)


def check_selector(body: Any) -> None:
    """Refuse a selector that selects everything without saying so: it may be a mistake of the caller."""
    if ("everything" in body) == bool(body.keys() - {"everything"}):
        raise RefusedRequestError(400, INVALID_INPUT)


async def _in_bulk(
    call: Call, action: str, act: Callable[[Monque, Selection], Awaitable[BulkResult]]
) -> dict[str, Any]:
    selector = {key: value for key, value in call.body.items() if key != "everything"}
    call.audit.target = json.dumps(selector, sort_keys=True)
    if not await call.may(action, selector):
        raise RefusedRequestError(403, DENIED)
    selection = _selection_of(selector)
    result = BulkResult() if selection is None else await act(call.surface.monque, selection)
    call.audit.count = result.count
    return bulk_as_json(result)


def _selection_of(selector: dict[str, Any]) -> Selection | None:
    """Return the selection; None if no job can be selected."""
    if not is_possible_name(selector.get("name", "any")):
        return None
    selection: Selection = {}
    if "name" in selector:
        selection["name"] = selector["name"]
    if "status" in selector:
        selection["status"] = selector["status"]
    if "olderThan" in selector:
        selection["older_than"] = moment_in(selector["olderThan"])
    if "newerThan" in selector:
        selection["newer_than"] = moment_in(selector["newerThan"])
    return selection
