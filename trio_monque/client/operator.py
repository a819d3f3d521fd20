"""What manages single jobs: blocking calls, for threads, scripts and the async client behind the door."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from .. import events
from ..checks import checked_moment
from ..errors import JobStateError, MonqueConnectionError
from ..jobs import transitions
from ..jobs.conditional_write import Transition, applied
from ..jobs.fences import is_ours
from ..jobs.job import Job, JobStatus
from ..jobs.job_query import object_id
from ..store import job_changes, queries
from ..store.job_changes import KeyInUseError
from ..store.types import ObjectId
from .context import ClientContext
from .intake import looked_up
from .wake_board import Announcer

# Between a write whose guard failed and the read that tells why, the state may change again. It cannot go
# on for ever by chance.
MOST_ROUNDS = 10


class Operator:
    """Manages jobs; every call blocks until the database has answered.

    `tell` hears of what was done; see `Monque.on`.
    """

    def __init__(self, context: ClientContext, tell: Callable[[events.Event], None], announcer: Announcer) -> None:
        self._context = context
        self._tell = tell
        self._announcer = announcer

    def cancel_job(self, job_id: ObjectId | str) -> Job | None:
        """See `Monque.cancel_job`."""
        return self._act(job_id, "cancel", self._cancel)

    def retry_job(self, job_id: ObjectId | str) -> Job | None:
        """See `Monque.retry_job`."""
        return self._act(job_id, "retry", self._retry)

    def reschedule_job(self, job_id: ObjectId | str, run_at: datetime) -> Job | None:
        """See `Monque.reschedule_job`."""
        moment = checked_moment("run_at", run_at)

        def reschedule(seen: Job, now: datetime) -> Job | None:
            return self._applied(transitions.reschedule(seen.id, now, moment))

        return self._act(job_id, "reschedule", reschedule)

    def delete_job(self, job_id: ObjectId | str) -> bool:
        """See `Monque.delete_job`."""
        known = object_id(job_id)
        if known is None or not self._delete(known):
            return False
        self._tell(events.JobDeleted(known))
        return True

    def _act(self, job_id: ObjectId | str, action: str, attempt: Callable[[Job, datetime], Job | None]) -> Job | None:
        """Tries the guarded write; where its guard failed, the job's status says why."""
        known = object_id(job_id)
        if known is None:
            return None
        # The look comes first: a document that is not a job raises BrokenDocumentError, and is left as it is.
        current = queries.get_job(self._context.jobs, known)
        for _ in range(MOST_ROUNDS):
            if current is None:
                return None
            try:
                with self._announcer.also_if_lost():
                    done = attempt(current, self._context.now())
            except KeyInUseError as error:
                raise JobStateError(known, _status_of(self._context, known), action, str(error)) from error
            if done is not None:
                self._announcer.announce([done])
                return done
            current = queries.get_job(self._context.jobs, known)
            if current is None:
                return None
            if action == "cancel" and current.status is JobStatus.CANCELLED:
                return current
            if current.status not in _ALLOWED[action]:
                break
        raise JobStateError(known, JobStatus.PENDING if current is None else current.status, action)

    def _delete(self, job_id: ObjectId) -> bool:
        try:
            return job_changes.delete(self._context.jobs, job_id)
        except MonqueConnectionError as error:
            # Found now, it is deleted now. Gone, nobody can tell by whom.
            if not looked_up(error, lambda: job_changes.delete(self._context.jobs, job_id)):
                raise
            return True

    def _applied(self, transition: Transition) -> Job | None:
        try:
            before = job_changes.apply_if_allowed(self._context.jobs, transition)
        except MonqueConnectionError as error:
            return self._found_out(transition, error)
        return None if before is None else applied(before, transition)

    def _found_out(self, transition: Transition, error: MonqueConnectionError) -> Job:
        """What became of a change whose answer was lost; raises the error where nobody can tell."""
        after = looked_up(error, lambda: job_changes.apply_again(self._context.jobs, transition))
        if after is None:
            raise error
        return after

    def _cancel(self, seen: Job, now: datetime) -> Job | None:
        cancelled = self._applied(transitions.cancel_pending(seen.id, now))
        if cancelled is not None:
            self._tell(events.JobCancelled(cancelled))
            return cancelled
        return self._request_cancel(seen.id, now)

    def _request_cancel(self, job_id: ObjectId, now: datetime) -> Job | None:
        """Asks a run of ours to stop; nobody could hear it for a claim of another library."""
        current = queries.get_job(self._context.jobs, job_id)
        if current is None or current.status is not JobStatus.PROCESSING:
            return None
        if not is_ours(current):
            raise JobStateError(job_id, current.status, "cancel", "it is held by another library, which would not hear")
        if current.cancel_requested_at is not None:
            return current
        return self._applied(transitions.request_cancel(current, now))

    def _retry(self, seen: Job, now: datetime) -> Job | None:
        transition = transitions.retry_again(seen.id, now)
        try:
            before = job_changes.apply_if_allowed(self._context.jobs, transition)
        except MonqueConnectionError as error:
            after = self._found_out(transition, error)
            if seen.status not in _ALLOWED["retry"]:
                raise
            before = seen
        else:
            if before is None:
                return None
            after = applied(before, transition)
        self._tell(events.JobRetried(after, before.status))
        return after


# From which statuses each action is possible: found in one of these after the guard failed, the state changed
# meanwhile, and it is tried again.
_ALLOWED = {
    "cancel": {JobStatus.PENDING, JobStatus.PROCESSING},
    "retry": {JobStatus.FAILED, JobStatus.CANCELLED},
    "reschedule": {JobStatus.PENDING},
}


def _status_of(context: ClientContext, job_id: ObjectId) -> str:
    job = queries.get_job(context.jobs, job_id)
    return "gone" if job is None else job.status
