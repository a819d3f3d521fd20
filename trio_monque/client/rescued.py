"""What was rescued, and the log lines and events that report it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .. import events
from ..errors import ScheduleEndedError
from ..jobs.job import Job, JobStatus
from ..log import logger_of

logger = logger_of()

MOST_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Rescued:
    """A dead claim that was taken away.

    Attributes:
        before, after: The job, as it was observed and as it was left.
        error: Where the job was given up, or its occurrence: why.
    """

    before: Job
    after: Job
    error: BaseException | None


def pending_again(rescued: Sequence[Rescued]) -> Sequence[Job]:
    """Return the rescued jobs that are pending, as they are now."""
    return [one.after for one in rescued if one.after.status is JobStatus.PENDING]


def log_and_events_of(rescued: Sequence[Rescued]) -> Sequence[events.Event]:
    """Log what was rescued, and return the events that report it."""
    found: list[events.Event] = []
    if pending := pending_again(rescued):
        by_name = dict(Counter(job.name for job in pending).most_common())
        holders = sorted({str(one.before.claimed_by) for one in rescued})
        logger.warning(
            "%d %s pending again that dead instances held (%s). Each of these was killed, out of memory, "
            "lost its database, or blocked its event loop for longer than its lease; "
            "or its handler did not obey at lock_timeout: %s",
            len(pending),
            "job is" if len(pending) == 1 else "jobs are",
            _listed(f"{name}: {count}" for name, count in by_name.items()),
            _listed(iter(holders)),
        )
        found.append(events.StaleJobsRecovered(len(pending), by_name))
    for one in rescued:
        found += _events_of(one)
    return found


def _events_of(rescued: Rescued) -> Sequence[events.Event]:
    job, error = rescued.after, rescued.error
    if job.status is JobStatus.CANCELLED:
        return [events.JobCancelled(job)]
    if error is None:
        return []
    goes_on = job.status is JobStatus.PENDING
    what = f"goes on at {job.next_run_at}" if goes_on else "is given up"
    logger.error("job %s %s: %s%s", job, what, "" if isinstance(error, ScheduleEndedError) else "it ", error)
    failed = events.JobFailed(job, error, will_retry=goes_on)
    return [events.ScheduleExhausted(job, error), failed] if goes_on else [failed]


def _listed(words: Iterator[str]) -> str:
    named = list(words)
    shown = ", ".join(named[:MOST_NAMED])
    return shown if len(named) <= MOST_NAMED else f"{shown} and {len(named) - MOST_NAMED} more"
