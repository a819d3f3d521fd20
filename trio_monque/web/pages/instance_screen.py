"""The screen of one instance: its entry, and the jobs that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from ...jobs.claim_stamps_and_fences import is_ours
from ...jobs.job import Job
from ..answers import RefusedRequestError
from ..api.full_view import lease_end_of
from ..api.question_answers import NO_INSTANCE
from ..words.lengths import grouped
from .screen import PageCall, View
from .shown_values import short_values

MOST_RUNNING: Final = 100
LONGEST_CELL: Final = 120


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A job that runs.

    Attributes:
        job: The job.
        runs_for: Seconds since its claim; None if unknown.
        lease_until: When others may take it, if its claim is not renewed by then; None if unknown.
        is_lost: That is over.
        progress: What it has reported, in short; None for nothing.
    """

    job: Job
    runs_for: float | None
    lease_until: datetime | None
    is_lost: bool
    progress: str | None


async def instance_facts(call: PageCall) -> View:
    """Ask for what the screen shows. Raises RefusedRequestError (404) if there is neither an entry nor a job."""
    # A router in front may add a slash to each path. An id may end with one, too.
    asked = call.request.path_params["id"]
    instance_id = asked.removesuffix("/")
    entry = next((one for one in await call.monque.instances() if one.id in (asked, instance_id)), None)
    if entry is not None:
        instance_id = entry.id
    held = await call.monque.get_running(instance=instance_id, limit=MOST_RUNNING)
    if entry is None and not held.jobs:
        raise RefusedRequestError(404, NO_INSTANCE)
    number = grouped(len(held.jobs)) + ("+" if held.is_capped else "")
    state = "running" if entry is None or entry.is_live else "silent"
    wanted = [(job, "progress") for job in held.jobs]
    values = await short_values(wanted, LONGEST_CELL, call.dashboard.hooks, call.context)
    return View(
        "instance.html",
        f"{state}, {instance_id}" if state == "silent" else f"{number} {state}, {instance_id}",
        {
            "id": instance_id,
            "entry": entry,
            "is_node": entry is None and not any(is_ours(job) for job in held.jobs),
            "rows": running_rows(held.jobs, values, call.now),
            "number": number,
            "is_capped": held.is_capped,
        },
    )


def running_rows(jobs: Sequence[Job], values: Any, now: datetime) -> Sequence[RunningRow]:
    """Return the rows, in the order of the jobs."""
    return [_row(job, values.get((job.id, "progress")), now) for job in jobs]


def _row(job: Job, progress: str | None, now: datetime) -> RunningRow:
    since = None if job.claim is None else job.claim.since
    lease = lease_end_of(job)
    return RunningRow(
        job=job,
        runs_for=None if since is None else max(0.0, (now - since) / timedelta(seconds=1)),
        lease_until=lease,
        is_lost=lease is not None and lease < now,
        progress=progress,
    )
