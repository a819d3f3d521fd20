"""How a job ended, for a caller that waits for it: the job itself, or an error. Pure."""

from __future__ import annotations

from bson import ObjectId

from ..error_types import MonqueError
from ..safe_text import one_line, shown
from .job import Job, JobStatus


class JobEndedError(MonqueError):
    """The common base of `JobFailedError` and `JobCancelledError`.

    Attributes:
        job: The job as it ended.
    """

    def __init__(self, job: Job, message: str) -> None:
        super().__init__(message)
        self.job = job


class JobFailedError(JobEndedError):
    """Raised to a caller that waits for a job that is `failed`. `error.job.fail_reason` has the reason."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, f"job {job} failed for good: {one_line(job.fail_reason or 'without a reason')}")


class JobCancelledError(JobEndedError):
    """Raised to a caller that waits for a job that is `cancelled`."""

    def __init__(self, job: Job) -> None:
        # No run of it has failed as long as it has a `start_by`: then this is the reason of its end.
        reason = "" if job.limits.start_by is None or not job.fail_reason else f": {one_line(job.fail_reason)}"
        super().__init__(job, f"job {job} was cancelled{reason}")


class JobDeletedError(MonqueError):
    """Raised to a caller that waits for a job that does not exist: it was deleted, or was never stored.

    Attributes:
        job_id: Its id, as a hex string, or the text that was passed as an id and is none.
    """

    def __init__(self, job_id: object) -> None:
        named = job_id if isinstance(job_id, ObjectId) else shown(job_id)
        super().__init__(f"job {named} does not exist: it was deleted, or was never stored in this collection")
        self.job_id = str(job_id)


def problem_of(job: Job) -> JobEndedError | None:
    """Return the error that an ended job means to a caller that waits; None if it has completed."""
    match job.status:
        case JobStatus.FAILED:
            return JobFailedError(job)
        case JobStatus.CANCELLED:
            return JobCancelledError(job)
        case _:
            return None
