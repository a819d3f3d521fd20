"""`trio-monque jobs` and `stats`: look at jobs, and change nothing."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from time import sleep
from typing import Final

import click

from ...diagnosis.reasons import is_silent
from ...error_types import MonqueConnectionError
from ...jobs.cursors import ORDERS
from ...jobs.job import Job, JobStatus
from ...jobs.job_parts import NO_CLAIM
from ...jobs.job_query import JobFilter
from ...jobs.views import QueueDepth
from ...safe_text import one_line
from ...store.jobs.job_json import job_as_json
from ...store.reads.diagnosis.documents import has_undated
from ..exit_statuses import SUCCEEDED
from ..output import duration, moment, print_json, print_records, since, warn
from ..parameters import LENGTH
from .access import JobsAccess, invalid_options, jobs_options
from .field_options import GivenFields, field_options
from .held import list_held
from .selection import GivenSelection, selection_options

SHORTEST_INTERVAL: Final = 2.0
"""Seconds between two counts: each is an aggregation on the primary."""

_EXAMPLES_OF_JOBS: Final = """\b
Examples:
  trio-monque jobs --status failed --newer-than 1d
  trio-monque jobs --name send-mail --status pending
  trio-monque jobs --name send-mail --data order.id=17
  trio-monque jobs --fail-reason timeout --limit 200 --json
  trio-monque jobs --status pending --with-data --json
  trio-monque jobs --held-by worker-1
  trio-monque jobs --parent 65f1c0ffee0123456789abcd
"""

_EXAMPLES_OF_STATS: Final = """\b
Examples:
  trio-monque stats
  trio-monque stats --watch 5s
"""


@click.command(short_help="List jobs.", epilog=_EXAMPLES_OF_JOBS)
@selection_options
@field_options
@click.option(
    "--sort",
    type=click.Choice([sign + order for order in ORDERS for sign in ("", "-")]),
    metavar="ORDER",
    help="id, created_at, updated_at or next_run_at; -created_at is the latest first. (default: pending jobs as they "
    "are due, others the latest first)",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, metavar="N", help="Show N at most. (default: 50)")
@click.option("--cursor", metavar="TEXT", help="Continue where the previous page ended: the cursor that it printed.")
@click.option("--parent", metavar="ID", help="Only the children of this job, of its job nurseries.")
@click.option("--held-by", metavar="INSTANCE", help="Only jobs that this instance holds, the longest held first.")
@click.option("--with-data", is_flag=True, help="With --json: also the data, progress, results and tracebacks.")
@jobs_options
def jobs(
    access: JobsAccess,
    fields: GivenFields,
    selection: GivenSelection,
    *,
    sort: str | None,
    limit: int,
    cursor: str | None,
    held_by: str | None,
    parent: str | None,
    with_data: bool,
) -> int:
    """List jobs, a page at a time.

    A page reads ten thousand jobs at most. If those that match are rare, it may have few of them, or none, and its
    cursor continues the search.

    --data and --meta have no index: the server looks into each job that --name and --status leave. Give these as well,
    or create an index for the field with `trio-monque indexes`; --sort -created_at uses it.

    A job is `processing (stuck)` if its holder gives no sign of life, and `pending (broken)` if it still has an owner,
    so that nothing claims it: `show ID` says what becomes of it.

    With --json: {"jobs": [...], "cursor": "..."}, and the cursor is null on the last page. The values that may be large
    are left out, unless --with-data is given; `show ID --json` has them for one job.

    Exit status: 0, even if no job matches; 1 if --held-by names an unknown instance; 2 if the jobs could not be read.
    """
    if with_data and (held_by is not None or not access.as_json):
        raise click.UsageError("--with-data is for --json, without --held-by: `trio-monque show ID` shows one job")
    if held_by is not None:
        if sort or cursor or parent or fields or not selection.is_everything:
            raise click.UsageError("--held-by takes no other selection, no --sort and no --cursor: leave them out")
        return list_held(access, held_by, limit)
    with invalid_options(fields="data"):
        chosen = JobFilter(**selection.at(access.now), parent=parent, fields=fields or None)
    page = access.client.get_jobs_with_cursor(
        cursor=cursor, limit=limit, filter=chosen, sort=sort or _default_order(chosen)
    )
    following = page.cursor if page.has_next_page else None
    if access.as_json:
        print_json({"jobs": [job_as_json(job, is_light=not with_data) for job in page.jobs], "cursor": following})
        return SUCCEEDED
    now = access.now()
    records = [
        {
            "id": job.id,
            "name": job.name,
            "status": _status(job, now),
            "due": moment(job.next_run_at),
            "changed": since(job.updated_at, now),
            "attempts": job.attempts,
            "failure": one_line(job.fail_reason or ""),
        }
        for job in page.jobs
    ]
    print_records(records, f"no job in {access.name} matches{' so far' if following else ''}", kept=3)
    if following:
        warn(f"more: --cursor {following}")
    return SUCCEEDED


def _status(job: Job, now: datetime) -> str:
    # By the document alone, and by the word of `stats`.
    if job.status is JobStatus.PROCESSING and is_silent(job, now):
        return f"{job.status.value} (stuck)"
    has_owner = job.status is JobStatus.PENDING and (job.claim or NO_CLAIM).by is not None
    return f"{job.status.value} (broken)" if has_owner else job.status.value


def _default_order(chosen: JobFilter) -> str:
    """An order that an index has for these conditions, with what an operator looks for first."""
    if chosen.parent is not None:
        return "id"
    if chosen.statuses and set(chosen.statuses) <= {JobStatus.PENDING, JobStatus.PROCESSING}:
        return "next_run_at"
    if chosen.names is not None:
        return "-next_run_at"
    return "-created_at" if chosen.statuses is None else "-updated_at"


@click.command(short_help="Count jobs by name and status.", epilog=_EXAMPLES_OF_STATS)
@click.option(
    "--watch",
    type=LENGTH,
    is_flag=False,
    flag_value="2s",
    metavar="[LENGTH]",
    help="Count again every LENGTH, until Ctrl-C. (default and minimum: 2s)",
)
@jobs_options
def stats(access: JobsAccess, *, watch: float | None) -> int:
    """Count the jobs of each name by status, with those whose holder is silent (stuck).

    `due` counts the pending jobs that are due, and `oldest due` is how long the first of them has waited.

    For each name, up to 100,000 pending jobs, 10,000 failed ones and 1,000 of the others are counted; a plus sign means
    more. A document whose nextRunAt is not a date is not a valid job, and is counted
    only in `processing`: `trio-monque doctor` names such documents.

    With --json: one object on one line for each count.
    """
    if watch is None:
        _print_depths(access)
        return SUCCEEDED
    if watch < SHORTEST_INTERVAL:
        raise click.UsageError(f"--watch must be at least {SHORTEST_INTERVAL:g}s: each count is work for the server")
    while True:
        if not access.as_json:
            click.clear()  # Nothing without a terminal.
            click.echo(f"{access.name} at {moment(access.now())}")
        try:
            _print_depths(access)
        except MonqueConnectionError as error:
            warn(one_line(str(error)))  # An election, for example: the next count may have an answer.
        sleep(watch)


def _print_depths(access: JobsAccess) -> None:
    depths = access.client.get_queue_depths()
    if access.as_json:
        print_json({name: _depth_as_json(depth) for name, depth in sorted(depths.items())}, is_one_line=True)
        return
    print_records(
        [
            {
                "name": one_line(name),
                **_numbers(depth),
                "stuck": depth.stuck,
                "oldest due": None if depth.oldest_due_age is None else f"{duration(depth.oldest_due_age)} ago",
            }
            for name, depth in sorted(depths.items())
        ],
        f"no jobs in {access.name}",
    )
    with suppress(MonqueConnectionError):  # The table is printed, and is right without it.
        _mention_what_is_left_out(access)


def _mention_what_is_left_out(access: JobsAccess) -> None:
    if has_undated(access.jobs):
        warn("documents whose nextRunAt is not a date are left out: `trio-monque doctor` names them")


def _numbers(depth: QueueDepth) -> dict[str, str]:
    numbers = {str(status): _number(getattr(depth, status), is_capped=status in depth.capped) for status in JobStatus}
    # The due ones are counted first: there may be more only if all that were counted are due.
    is_due_capped = JobStatus.PENDING in depth.capped and depth.due == depth.pending
    pending = numbers.pop(JobStatus.PENDING)
    return {JobStatus.PENDING: pending, "due": _number(depth.due, is_capped=is_due_capped), **numbers}


def _number(number: int, *, is_capped: bool) -> str:
    return f"{number:,}{'+' if is_capped else ''}"


def _depth_as_json(depth: QueueDepth) -> dict[str, object]:
    numbers = {str(status): getattr(depth, status) for status in JobStatus}
    return {
        **numbers,
        "due": depth.due,
        "stuck": depth.stuck,
        "oldest_due_age": depth.oldest_due_age,
        "capped": sorted(depth.capped),
    }
