"""What log records carry beside their text."""

from __future__ import annotations

from ..jobs.job import Job
from ..safe_text import LONGEST_VALUE, one_line


def about(job: Job) -> dict[str, object]:
    """What log records carry of a job, for those who store logs as data."""
    return {
        "job_id": str(job.id),
        "job_name": one_line(job.name, LONGEST_VALUE),
        "job_status": str(job.status),
        "attempt": job.attempts,
    }
