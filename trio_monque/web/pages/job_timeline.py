"""What happened to a job, from its enqueuing to its end, as far as its document shows it. Pure.

A document keeps its last errors, and begin and end of its last run: what lies between is not known, and is not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ...jobs.claim_stamps_and_fences import is_ours
from ...jobs.claimable import was_unstarted
from ...jobs.job import Job, JobStatus, deaths_of
from ...jobs.job_parts import NO_CLAIM
from ..words.lengths import counted, moment
from .job_values import NO_TEXT, ShownError, ShownText

_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of the timeline.

    Attributes:
        at: When it was; None if the document does not say it.
        look: The classes of its dot.
        words: What happened.
        by: The instance that it happened on, which has a page; None if there is none.
        note: What stands behind it, less strong.
        ran: How long the run took, in seconds.
        follows: The id of the job that it refers to.
        error: The error that it shows; None for none.
        reason: The same for an error that has a message only.
        is_open: Whether the error is unfolded.
    """

    at: datetime | None
    look: str
    words: str
    by: str | None = None
    note: str = ""
    ran: float | None = None
    follows: str | None = None
    error: ShownError | None = None
    reason: ShownText = NO_TEXT
    is_open: bool = False


def timeline(job: Job, errors: Sequence[ShownError], reason: ShownText, now: datetime) -> Sequence[TimelineEntry]:
    """Return what happened, the earliest first; what has no moment stands where it belongs."""
    left_out = len(job.errors) - len(errors)
    found = [_enqueued(job)]
    if left_out:
        found.append(TimelineEntry(None, "bad", f"{counted(left_out, 'earlier failure')}: in the JSON of the job"))
    found += [_failed(one, is_open=one is errors[-1] and job.status is not JobStatus.COMPLETED) for one in errors]
    found += _last_run(job, errors)
    # No attempt was made of a job that was not started in time.
    if not errors and reason.text is not None and job.status is not JobStatus.FAILED and not was_unstarted(job):
        found.append(TimelineEntry(None, "bad full", "The last attempt failed", reason=reason))
    if deaths := deaths_of(job):
        found.append(_lost(deaths))
    found += _now(job, errors, reason, now)
    return found


def _enqueued(job: Job) -> TimelineEntry:
    if job.follows is None:
        return TimelineEntry(job.created_at, "off full", "Declared" if job.schedule is not None else "Enqueued")
    return TimelineEntry(job.created_at, "off full", "Enqueued as follow-up of", follows=str(job.follows))


def _failed(one: ShownError, *, is_open: bool) -> TimelineEntry:
    which = "An attempt" if one.attempt is None else f"Attempt {one.attempt:,}"
    on = "" if one.by is None else " on"
    return TimelineEntry(one.at, "bad full", f"{which} failed{on}", one.by, ran=one.ran, error=one, is_open=is_open)


def _last_run(job: Job, errors: Sequence[ShownError]) -> Iterator[TimelineEntry]:
    """Yield the last run that ended, unless it is that of the last error, or the end of the job."""
    end = job.finished_at
    has_ended = job.status not in (JobStatus.PENDING, JobStatus.PROCESSING)
    if end is None or has_ended or (errors and errors[-1].at is not None and errors[-1].at >= end):
        return
    word = "Its last run ended" if job.fail_count else "Its last run succeeded"
    yield TimelineEntry(end, "off full" if job.fail_count else "ok full", word, ran=_ran(job))


def _ran(job: Job) -> float | None:
    if job.started_at is None or job.finished_at is None or job.finished_at < job.started_at:
        return None
    return (job.finished_at - job.started_at) / _SECOND


def _lost(deaths: int) -> TimelineEntry:
    if deaths == 1:
        note = "the instance stopped answering, and another one took the job back"
        return TimelineEntry(None, "due full", "A claim was lost", note=note)
    note = "the instances stopped answering, and others took the job back"
    return TimelineEntry(None, "due full", f"{counted(deaths, 'claim')} in a row were lost", note=note)


def _now(job: Job, errors: Sequence[ShownError], reason: ShownText, now: datetime) -> Iterator[TimelineEntry]:
    match job.status:
        case JobStatus.PROCESSING:
            yield from _running(job, now)
        case JobStatus.PENDING:
            yield _due(job, now)
        case JobStatus.COMPLETED:
            yield TimelineEntry(job.finished_at or job.updated_at, "ok full", "Completed", ran=_ran(job))
        case JobStatus.FAILED:
            shown = NO_TEXT if errors else reason
            times = f"after {counted(job.fail_count, 'failure')} in a row" if job.fail_count else ""
            at = job.finished_at or job.updated_at
            yield TimelineEntry(at, "bad full", "Failed for good", note=times, reason=shown, is_open=True)
        case JobStatus.CANCELLED:
            start_by = job.limits.start_by if was_unstarted(job) else None
            note = "" if start_by is None else f"no run began by {moment(start_by)} (start_by)"
            yield TimelineEntry(job.updated_at, "off full", "Cancelled", note=note, ran=_ran(job))


def _running(job: Job, now: datetime) -> Iterator[TimelineEntry]:
    claim = job.claim or NO_CLAIM
    which = f"Attempt {job.attempts:,} runs" if is_ours(job) else "It runs"
    ran = None if claim.since is None else max(0.0, (now - claim.since) / _SECOND)
    note = "" if is_ours(job) else "through another library"
    yield TimelineEntry(claim.since, "run full", f"{which} on" if claim.by is not None else which, claim.by, note, ran)
    if claim.cancel_requested_at is not None:
        yield TimelineEntry(claim.cancel_requested_at, "due full", "Its cancellation was requested")


def _due(job: Job, now: datetime) -> TimelineEntry:
    is_due = job.next_run_at <= now
    what = "It"
    if job.fail_count or job.rescues:
        what = f"Attempt {job.attempts + 1:,}"
    elif job.schedule is not None:
        what = "Its next occurrence"
    word = "is due, and waits" if is_due else "will be due"
    return TimelineEntry(job.next_run_at, "due" if is_due else "later", f"{what} {word}")
