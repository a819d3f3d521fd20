"""One job: get, cancel, retry, reschedule and delete it. Blocking.

Each action is one guarded write, and races with the scheduler that runs the job and with other callers:

- The guard fails because the status changed since the caller looked. The job is read again: if its new status allows
  the action, the write is tried again; otherwise JobStateError says which status it has.
- The answer is lost. The write is sent again, and if it finds the job as it would leave it, the first one was applied.
  The second one asks for the job as the caller saw it: after a first retry that was applied, the job may have run and
  failed again, and a second retry would let it run once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from .. import events
from ..checks import checked_moment
from ..error_types import InvalidOptionError, JobStateError, MonqueConnectionError
from ..jobs import transitions
from ..jobs.claim_stamps_and_fences import is_ours, is_to_be_cancelled
from ..jobs.conditional_write import OneOf, Transition, applied
from ..jobs.job import Job, JobStatus
from ..jobs.job_query import object_id
from ..jobs.new_job import Named, check_name, check_unique_key, name_of
from ..jobs.nursery_scopes import PROGRAM
from ..store.driver.types import ObjectId
from ..store.jobs import job_changes, parents_of_children
from ..store.jobs.job_changes import KeyInUseError
from ..store.reads import queries
from .client_context import ClientContext
from .enqueue import looked_up
from .operation import Caused, Operation, Read, Write

# Between a write whose guard failed and the read that shows why, the status may change again. By chance, that cannot
# happen ten times in a row.
MOST_ROUNDS: Final = 10

# From which statuses each action is possible. If the job has one of these after the guard failed, its state changed
# meanwhile, and the action is tried again.
_ALLOWED: Final[Mapping[str, Set[JobStatus]]] = {
    "cancel": {JobStatus.PENDING, JobStatus.PROCESSING},
    "retry": {JobStatus.FAILED, JobStatus.CANCELLED},
    "reschedule": {JobStatus.PENDING},
}

_Attempt = Callable[[ClientContext, Job, datetime, Caused], Job | None]


def get_job(context: ClientContext, job_id: ObjectId | str) -> Operation[Job | None]:
    """Return the job of that id.

    Args:
        job_id: An ObjectId, or its hex string.

    Returns:
        The job; None if there is none, or if the id is not an ObjectId.

    Raises:
        BrokenDocumentError: The document is not a job.
        MonqueConnectionError: The database did not answer within `operation_timeout`.
    """
    known = object_id(job_id)
    return Read(lambda: None if known is None else queries.get_job(context.jobs, known))


def get_job_by_key(context: ClientContext, worker: str | Named, unique_key: str) -> Operation[Job | None]:
    """Return the pending or processing job that has a unique key.

    Args:
        worker: Its worker or name: keys are unique for each name.
        unique_key: The `unique_key` that it was enqueued with.

    Returns:
        The job; None if no pending or processing job has the key. Jobs that have ended do not hold their keys any
        more, and several may have had the same one.

    Raises:
        InvalidJobIdentifierError: It cannot be a name or a key.
        BrokenDocumentError: The document that has the key is not a job.
        MonqueConnectionError: The database did not answer within `operation_timeout`.
    """
    name = name_of(worker)
    check_name(name)
    check_unique_key(unique_key)
    return Read(lambda: queries.get_job_by_key(context.jobs, name, unique_key))


def cancel_job(context: ClientContext, job_id: ObjectId | str, *, running: bool = True) -> Operation[Job | None]:
    """Cancel a job: a pending one at once, a processing one by asking the scheduler that runs it.

    The scheduler receives the request by its change stream, or else with its next heartbeat, and cancels the run. The
    job is then `cancelled` however the run ends, unless it is a one-off job whose handler succeeded all the same.

    Args:
        job_id: Which job.
        running: False to cancel a pending job only: one that runs, or begins to run meanwhile, is left alone.

    Returns:
        The job as it is now, also if it was cancelled already; None if no job has that id, or if the id is not
        an ObjectId.

    Raises:
        JobStateError: It has ended, or another library holds it, which does not read such requests; without
            `running`, also if it runs.
        BrokenDocumentError: The document is not a job; it stays as it is.
        MonqueConnectionError: The database cannot be reached or used.
    """
    if running:
        return Write(partial(_act, context, job_id, "cancel", _cancel))
    return Write(partial(_act, context, job_id, "cancel", _cancel_pending, allowed={JobStatus.PENDING}))


def retry_job(context: ClientContext, job_id: ObjectId | str) -> Operation[Job | None]:
    """Make a failed or cancelled job pending again, due now and with all its attempts.

    A parent of job nurseries begins a new try: its handler decides anew, and children that had failed run again. A
    child that its parent does not need any more becomes a job of its own.

    Returns:
        The job as it is now; None if no job has that id.

    Raises:
        JobStateError: It is neither failed nor cancelled, or another live job has its unique key, or it is a child of
            a job that may still ask for it: retry that one.
        BrokenDocumentError: The document is not a job; it stays as it is.
        MonqueConnectionError: The database cannot be reached or used.
    """
    return Write(partial(_act, context, job_id, "retry", _retry))


def reschedule_job(context: ClientContext, job_id: ObjectId | str, run_at: datetime) -> Operation[Job | None]:
    """Change when a pending job is due.

    Args:
        job_id: Which job.
        run_at: The moment, timezone-aware; one that has passed is due at once.

    Returns:
        The job as it is now; None if no job has that id.

    Raises:
        JobStateError: It is not pending.
        BrokenDocumentError: The document is not a job; it stays as it is.
        InvalidOptionError: `run_at` is invalid, or not before the `start_by` of the job.
        MonqueConnectionError: The database cannot be reached or used.
    """
    moment = checked_moment("run_at", run_at)

    def reschedule(context: ClientContext, seen: Job, now: datetime, caused: Caused) -> Job | None:
        start_by = seen.limits.start_by
        # Of a job that is not pending, its status is the reason, and the guard finds that.
        if seen.status is JobStatus.PENDING and start_by is not None and start_by <= moment:
            limit = start_by.isoformat(timespec="milliseconds")
            raise InvalidOptionError(
                "run_at",
                run_at,
                f"must be before {limit}, the start_by of the job: it would never start. Enqueue another one instead",
            )
        return _applied(context, transitions.reschedule(seen.id, now, moment), seen)

    return Write(partial(_act, context, job_id, "reschedule", reschedule))


def delete_job(context: ClientContext, job_id: ObjectId | str) -> Operation[bool]:
    """Delete a job, whatever its status. A run of it loses its claim with that.

    Returns:
        Whether there was a job of that id.

    Raises:
        MonqueConnectionError: The database cannot be reached or used.
    """
    return Write(partial(_delete, context, job_id))


def _delete(context: ClientContext, job_id: ObjectId | str, caused: Caused) -> bool:
    known = object_id(job_id)
    if known is None:
        return False
    try:
        is_deleted = job_changes.delete(context.jobs, known)
    except MonqueConnectionError as error:
        # If it is found now, it is deleted now. If it is gone, it cannot be known who deleted it.
        if not looked_up(error, lambda: job_changes.delete(context.jobs, known)):
            raise
        is_deleted = True
    if is_deleted:
        caused.events.append(events.JobDeleted(known))
    return is_deleted


def _act(
    context: ClientContext,
    job_id: ObjectId | str,
    action: str,
    attempt: _Attempt,
    caused: Caused,
    *,
    allowed: Set[JobStatus] | None = None,
) -> Job | None:
    """Try the guarded write; if its guard fails, the job's status shows why."""
    known = object_id(job_id)
    if known is None:
        return None
    # The look comes first: a document that is not a job raises BrokenDocumentError, and is left as it is.
    current = queries.get_job(context.jobs, known)
    for _ in range(MOST_ROUNDS):
        if current is None:
            return None
        try:
            done = attempt(context, current, context.now(), caused)
        except KeyInUseError as error:
            raise JobStateError(known, _status_of(context, known), action, str(error)) from error
        if done is not None:
            caused.jobs = [done]
            return done
        current = queries.get_job(context.jobs, known)
        if current is None:
            return None
        if action == "cancel" and current.status is JobStatus.CANCELLED:
            return current
        if current.status not in (allowed or _ALLOWED[action]):
            break
    raise JobStateError(known, JobStatus.PENDING if current is None else current.status, action)


def _applied(context: ClientContext, transition: Transition, seen: Job | None) -> Job | None:
    """Make the change; None if its guard fails. `seen` is None if the guard cannot hold again after the change."""
    try:
        before = job_changes.apply_if_allowed(context.jobs, transition)
    except MonqueConnectionError as error:
        return _found_out(context, transition, seen, error)
    return None if before is None else applied(before, transition)


def _found_out(context: ClientContext, transition: Transition, seen: Job | None, error: MonqueConnectionError) -> Job:
    """Return what became of a change whose answer was lost; raise the error if that cannot be known."""
    # `rev` too: in virtual time the job may run and fail within the same millisecond.
    pinned = (
        {} if seen is None else {"updated_at": seen.updated_at, "internals.rev": seen.internals.rev or OneOf((None, 0))}
    )
    again = replace(transition, guard={**transition.guard, **pinned})
    after = looked_up(error, lambda: job_changes.apply_again(context.jobs, again))
    if after is None:
        raise error
    return after


def _cancel(context: ClientContext, seen: Job, now: datetime, caused: Caused) -> Job | None:
    return _cancel_pending(context, seen, now, caused) or _request_cancel(context, seen.id, now)


def _cancel_pending(context: ClientContext, seen: Job, now: datetime, caused: Caused) -> Job | None:
    cancelled = _applied(context, transitions.cancel_pending(seen.id, now), seen)
    if cancelled is not None:
        caused.events.append(events.JobCancelled(cancelled))
    return cancelled


def _request_cancel(context: ClientContext, job_id: ObjectId, now: datetime) -> Job | None:
    """Ask the scheduler that runs the job to cancel the run. Another library does not read the request."""
    current = queries.get_job(context.jobs, job_id)
    if current is None or current.status is not JobStatus.PROCESSING:
        return None
    if not is_ours(current):
        raise JobStateError(
            job_id, current.status, "cancel", "another library holds it, which does not read such requests"
        )
    if is_to_be_cancelled(current):
        return current
    return _applied(context, transitions.request_cancel(current, now), None)  # The fence, and no earlier request.


def _retry(context: ClientContext, seen: Job, now: datetime, caused: Caused) -> Job | None:
    if seen.status in _ALLOWED["retry"]:
        _free_of_nurseries(context, seen)
    transition = transitions.retry_again(seen.id, now)
    try:
        before = job_changes.apply_if_allowed(context.jobs, transition)
    except MonqueConnectionError as error:
        after = _found_out(context, transition, seen, error)
        # The event has the status from which the job was retried. The lost answer had it; the last look has it too,
        # unless the job changed in between.
        if seen.status not in _ALLOWED["retry"]:
            raise
        before = seen
    else:
        if before is None:
            return None
        after = applied(before, transition)
    caused.events.append(events.JobRetried(after, before.status))
    return after


def _free_of_nurseries(context: ClientContext, seen: Job) -> None:
    """Detach a child that its parent does not need, so that it may run by itself. Raises if its parent needs it."""
    if seen.name == PROGRAM:
        raise JobStateError(seen.id, seen.status, "retry", "it represented a program that is gone: start the program")
    if seen.child is None:
        return
    if seen.id in parents_of_children.needed(context.jobs, [seen.id]):
        because = f"it is a child of job {seen.child.parent}: retry that job"
        raise JobStateError(seen.id, seen.status, "retry", because)
    parents_of_children.detach(context.jobs, [seen])


def _status_of(context: ClientContext, job_id: ObjectId) -> str:
    job = queries.get_job(context.jobs, job_id)
    return "gone" if job is None else job.status
