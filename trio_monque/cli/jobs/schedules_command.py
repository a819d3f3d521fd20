"""`trio-monque schedules`: the recurring jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import click

from ...client.questions import MOST_LISTED
from ...jobs.job import Job, JobStatus
from ...safe_text import one_line
from ...store.jobs.job_json import job_as_json
from ...store.reads.special_jobs import MOST_READ, searches_all_keys
from ..exit_statuses import SUCCEEDED
from ..output import duration, moment, print_json, print_records, warn
from .access import JobsAccess, jobs_options

_MORE: Final = "there are more: give a greater --limit"
_MORE_LARGE: Final = "there are more: these are as large as one answer may be"
_WITHOUT_INDEX: Final = (
    "recurring jobs that have ended or have no unique key are not listed: there is no index of schedules yet"
)
_ONLY_SOME: Final = f"; only {MOST_READ:,} live jobs with a unique key were searched"

_EXAMPLES: Final = """\b
Examples:
  trio-monque schedules
  trio-monque schedules --json
"""


@click.command(short_help="List the recurring jobs.", epilog=_EXAMPLES)
@click.option(
    "--limit",
    type=click.IntRange(1, MOST_LISTED),
    default=100,
    metavar="N",
    help="Show N at most. (default: 100)",
)
@jobs_options
def schedules(access: JobsAccess, *, limit: int) -> int:
    """List the recurring jobs, the next run first; also those that have ended.

    `last run` is when its last run ended, and `failures` counts those in a row: `show ID` has the error. A schedule
    that is `cancelled` or `failed` runs no more, until `retry ID`. `preview CRON` explains an expression.

    With --json: {"jobs": [...], "is_capped": false}. There, the cron expression is `repeat_interval`.
    """
    found = access.client.get_schedules(limit=limit)
    if access.as_json:
        jobs = [job_as_json(job, is_light=True) for job in found.jobs]
        print_json({"jobs": jobs, "is_capped": found.is_capped})
        return SUCCEEDED
    now = access.now()
    records = [
        {
            "id": job.id,
            "name": one_line(job.name),
            "key": one_line(job.unique_key or ""),
            "cron": "" if job.schedule is None else one_line(job.schedule.cron),
            "zone": one_line((job.schedule and job.schedule.timezone) or "UTC"),
            "status": job.status.value,
            "next run": _next_run(job, now),
            "last run": "" if job.finished_at is None else moment(job.finished_at),
            "failures": job.fail_count,
        }
        for job in found.jobs
    ]
    print_records(records, f"no recurring job in {access.name}", kept=4)
    if found.is_without_index:
        warn(_WITHOUT_INDEX + ("" if searches_all_keys(access.jobs) else _ONLY_SOME))
    if len(found.jobs) >= limit and found.is_capped:
        warn(_MORE)
    elif found.is_capped and not found.is_without_index:
        warn(_MORE_LARGE)
    return SUCCEEDED


def _next_run(job: Job, now: datetime) -> str:
    if job.status is JobStatus.PROCESSING:
        return "running now"
    if job.status is not JobStatus.PENDING:
        return ""
    seconds = (job.next_run_at - now).total_seconds()
    return f"{moment(job.next_run_at)}, {'in ' if seconds > 0 else 'due for '}{duration(abs(seconds))}"
