"""Which occurrence of a recurring job a try belongs to, where Monque for Node may have run the job in between. Pure.

Node clears no field that it does not know. When it completes an occurrence that failed here, our checkpoint and our
count of deaths stay in the document, and no field of ours shows that the occurrence is over. But Node then always
writes another `nextRunAt`. So each write of ours that leaves a job pending for another try at the same occurrence
stores the date of that try a second time, in `resumesAt`. While both dates are equal, only we have ended tries.

A date that differs proves nothing: Node may have completed the occurrence, or failed a try at it, or someone may have
rescheduled the job. Then the next try counts as a new occurrence. It costs the work of a lost checkpoint. To guess
wrong in the other direction would make a handler skip work that was never done.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from .job import Job

OF_ONE_OCCURRENCE: Final = ("saved", "saved_for", "occurrence", "resumes_at")
"""What the end of an occurrence clears."""


def is_resumed(job: Job) -> bool:
    """Whether the try that is due, or runs, was left to be made by this library, and no one else has run since."""
    return job.resumes_at is not None and job.resumes_at == job.next_run_at


def occurrence_of(job: Job) -> datetime | None:
    """Which occurrence is due, or runs, by the date when it was first due; None for a one-off job."""
    if job.repeat_interval is None:
        return None
    return job.occurrence if job.occurrence is not None and is_resumed(job) else job.next_run_at


def checkpoint_of(job: Job) -> Any:
    """What an earlier try at the present occurrence saved; None where nothing was, or where that is not sure."""
    if job.repeat_interval is None or (job.saved_for is not None and job.saved_for == occurrence_of(job)):
        return job.saved
    return None


def deaths_of(job: Job) -> int:
    """How many claims on the job died in a row before the present one."""
    # A release without `resumesAt` counted: its count must not be lost, or a job that kills processes never ends.
    return job.rescues if job.resumes_at is None or is_resumed(job) else 0


def resumed(job: Job, next_run_at: datetime) -> dict[str, Any]:
    """What is stored beside the date of another try at the present occurrence; nothing for a one-off job."""
    occurrence = occurrence_of(job)
    return {} if occurrence is None else {"occurrence": occurrence, "resumes_at": next_run_at}
