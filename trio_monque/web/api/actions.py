"""The routes that change one job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from ...error_types import BrokenDocumentError
from ...jobs.job import Job
from ...store.jobs.job_json import iso
from ..answers import DENIED, NOT_FOUND, RefusedRequestError
from .job_shapes import job_as_json
from .moments import moment_in
from .route import Call

# --- One job ---


async def cancel_job(call: Call) -> dict[str, Any]:
    """Cancel a pending job. One that runs is asked to end only if the body asks for that, as Monque refuses it."""
    may_run = isinstance(call.body, dict) and call.body.get("running") is True
    return await _shown(call, await changed_job(call, "cancelRunning" if may_run else "cancel"))


async def retry_job(call: Call) -> dict[str, Any]:
    """Make a failed or cancelled job pending again."""
    return await _shown(call, await changed_job(call, "retry"))


async def reschedule_job(call: Call) -> dict[str, Any]:
    """Move a pending job."""
    return await _shown(call, await changed_job(call, "reschedule"))


def body_of_reschedule(moment: datetime) -> dict[str, str]:
    """Return the body that moves a job to this moment."""
    return {"nextRunAt": iso(moment)}


async def delete_job(call: Call) -> dict[str, Any]:
    """Delete a job."""
    await delete_one(call)
    return {"deleted": True}


async def changed_job(call: Call, action: str) -> Job:
    """Do it to the job of the call, if the caller may, and return the job.

    Raises:
        RefusedRequestError, JobStateError, BrokenDocumentError: It was not done.
    """
    job = await _permitted(call, action)
    changed = await _CHANGES[action](call, job)
    if changed is None:  # It has vanished meanwhile.
        raise RefusedRequestError(404, NOT_FOUND)
    call.audit.count = 1
    return changed


async def delete_one(call: Call) -> None:
    """Delete the job of the call, if the caller may; also a document that is not a job.

    Raises:
        RefusedRequestError: It was not done.
    """
    with suppress(BrokenDocumentError):  # The caller may delete it, or this would be another error.
        await _permitted(call, "delete")
    if not await call.surface.monque.delete_job(call.job_id):
        raise RefusedRequestError(404, NOT_FOUND)
    call.audit.count = 1


async def _cancel(call: Call, job: Job) -> Job | None:
    # Not by a look at the status: the job may be claimed between the look and the write.
    return await call.surface.monque.cancel_job(job.id, running=False)


async def _cancel_running(call: Call, job: Job) -> Job | None:
    return await call.surface.monque.cancel_job(job.id)


async def _retry(call: Call, job: Job) -> Job | None:
    return await call.surface.monque.retry_job(job.id)


async def _reschedule(call: Call, job: Job) -> Job | None:
    moment = moment_in(call.body["nextRunAt"])
    assert moment is not None, "its shape was checked"
    return await call.surface.monque.reschedule_job(job.id, moment)


_CHANGES: Final[Mapping[str, Callable[[Call, Job], Awaitable[Job | None]]]] = {
    "cancel": _cancel,
    "cancelRunning": _cancel_running,
    "retry": _retry,
    "reschedule": _reschedule,
}


async def _shown(call: Call, job: Job) -> dict[str, Any]:
    return await job_as_json(job, call.surface.hooks, call.context)


async def _permitted(call: Call, action: str) -> Job:
    """Return the job.

    The answer to a caller that may not do this does not depend on whether there is such a job, and neither does what is
    done for it: one read, and two questions to the hook, which may read something itself.
    """
    job_id = call.job_id
    call.audit.target = str(job_id)
    job, problem = None, None
    try:
        job = await call.surface.monque.get_job(job_id)
    except BrokenDocumentError as error:
        problem = error
    # A caller who is refused is always asked about twice: with a slow hook, the time would show whether the job exists.
    is_allowed = await call.may(action, job)
    if is_allowed and job is not None:
        return job
    if not await call.may(action):
        raise RefusedRequestError(403, DENIED)
    raise problem or RefusedRequestError(404, NOT_FOUND)
