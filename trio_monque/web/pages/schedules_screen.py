"""The screen Schedules: the recurring jobs, what their expressions mean, and how they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Final

import anyio.to_thread

from ...diagnosis.overview import NameOverview
from ...error_types import InvalidCronError
from ...jobs.job import Job, JobStatus
from ...jobs.job_parts import Schedule
from ...jobs.schedule_preview import preview
from ..words.lengths import counted, grouped
from .jobs_screen import state_of
from .page_actions import OF_SCHEDULES, PageAction
from .schedule_times import clock_there
from .screen import PageCall, View
from .shown_values import shown_text

MOST_SCHEDULES: Final = 500
LATE_AFTER: Final = timedelta(minutes=1)
"""A schedule that is due for longer than this, and has not started, is late."""

NO_OVERVIEW: Final = NameOverview()


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an expression means.

    Attributes:
        words: In English, without the zone; None if it cannot be understood.
        problem: Why not; None otherwise.
        warnings: What is probably not meant.
    """

    words: str | None
    problem: str | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One row.

    Attributes:
        job: The recurring job.
        state: As people call it: "later", "due", "running", or how the schedule has ended.
        meaning: Of its expression.
        marks: What is unusual: each with the class of its chip.
        ended_at: When its last run ended; None if it never ran, or if that is unknown.
        ran: Seconds of its last run; None if unknown.
        why: Its last error, as it may be shown; None for none.
        there: When it is due next, as the clock of its zone shows it; None if its zone is unknown.
        actions: What the caller may do to it.
    """

    job: Job
    state: str
    meaning: Meaning
    marks: Sequence[tuple[str, str]]
    ended_at: datetime | None
    ran: float | None
    why: str | None
    there: str | None
    actions: Sequence[PageAction]


async def schedules_facts(call: PageCall) -> View:
    """Ask for what the screen shows."""
    found = await call.monque.get_schedules(limit=MOST_SCHEDULES)
    overview = await call.monque.get_overview()
    # In a thread: five hundred expressions take some tenths of a second the first time.
    meanings = await anyio.to_thread.run_sync(partial(_meanings_of, found.jobs, call.now))
    rows = [
        ScheduleRow(
            job=job,
            state=state_of(job, call.now),
            meaning=meaning,
            marks=marks_of(job, overview.names.get(job.name, NO_OVERVIEW), call.now),
            ended_at=ended_at(job),
            ran=seconds_of_last_run(job),
            why=await shown_text(job, job.fail_reason, call.dashboard.hooks, call.context) if job.fail_count else None,
            there=clock_there(job.next_run_at, job.schedule.timezone if job.schedule else None),
            actions=await _actions_of(job, call),
        )
        for job, meaning in zip(found.jobs, meanings, strict=True)
    ]
    rows.sort(key=lambda row: _PLACES.get(row.job.status, 1))
    failed = sum(row.job.status is JobStatus.FAILED for row in rows)
    late = sum(("late", "due") in row.marks for row in rows)
    number = grouped(len(rows)) + ("+" if found.is_capped else "")
    news = f"{grouped(failed)} failed" if failed else f"{grouped(late)} late" if late else number
    return View(
        "schedules.html",
        f"{news}, schedules" if rows else "Schedules",
        {
            "rows": rows,
            "number": number,
            "failed": failed,
            "late": late,
            "has_jobs": bool(overview.names),
            "is_capped": found.is_capped,
            "shown": counted(len(rows), "schedule"),
        },
    )


async def _actions_of(job: Job, call: PageCall) -> Sequence[PageAction]:
    state = state_of(job, call.now)
    fitting = [one for one in OF_SCHEDULES if state in one.states]
    # All have one permission: a hook that asks a database itself is not asked twice for each of many rows.
    is_allowed = bool(fitting) and await call.may(fitting[0].permission, job)
    return fitting if is_allowed else ()


_PLACES: Final[Mapping[JobStatus, int]] = {JobStatus.FAILED: 0, JobStatus.COMPLETED: 2, JobStatus.CANCELLED: 2}
"""Those that failed for good come first, then the living ones by their next run, then those that have ended."""


def marks_of(job: Job, name: NameOverview, now: datetime) -> Sequence[tuple[str, str]]:
    """Return what is unusual about a schedule, as words with the class of their chip."""
    if job.status is JobStatus.FAILED:
        return [("failed for good", "bad")]
    if job.status in (JobStatus.CANCELLED, JobStatus.COMPLETED):
        return [(job.status.value, "")]
    marks = []
    if name.is_paused:
        marks.append(("paused", ""))
    if job.status is JobStatus.PENDING:
        is_due = job.next_run_at <= now
        if is_due and not name.is_served and not name.is_paused:
            marks.append(("no worker", "due"))
        if now - job.next_run_at > LATE_AFTER:
            marks.append(("late", "due"))
    if job.fail_count:
        marks.append((f"{counted(job.fail_count, 'failure')} in a row", "due"))
    return marks


def ended_at(job: Job) -> datetime | None:
    """Return when the last run of a schedule ended; None if it never ran, or if that is unknown."""
    # Other libraries do not write the end of a run, so it is that of a schedule which a run has ended. A cancelled one
    # may never have run, and one that the server refuses to claim has failed without a run.
    by_a_run = job.status is JobStatus.COMPLETED or (job.status is JobStatus.FAILED and job.fail_count > 0)
    return job.finished_at or (job.updated_at if by_a_run else None)


def seconds_of_last_run(job: Job) -> float | None:
    """Return how long the last run took that has ended; None if that is unknown."""
    if job.started_at is None or job.finished_at is None or job.finished_at < job.started_at:
        return None
    return (job.finished_at - job.started_at) / timedelta(seconds=1)


def _meanings_of(jobs: Sequence[Job], now: datetime) -> Sequence[Meaning]:
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return [meaning_of(job.schedule, day) if job.schedule is not None else Meaning(None) for job in jobs]


@lru_cache(1024)
def meaning_of(schedule: Schedule, after: datetime) -> Meaning:
    """Return what the expression of a schedule means.

    Args:
        schedule: The schedule.
        after: Any moment; the meaning does not depend on it, and the number of kept ones does.
    """
    try:
        found = preview(schedule.cron, schedule.timezone, 1, after)
    except InvalidCronError as error:
        return Meaning(None, str(error))
    zone = "UTC" if found.timezone == "UTC" else f"{found.timezone} time"
    return Meaning(found.description.removesuffix(f", {zone}."), None, found.warnings)
