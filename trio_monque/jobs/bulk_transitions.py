"""The transitions of many jobs at once: those of single jobs, with a whole selection in the guard. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from bson import ObjectId

from .job import Job, JobStatus
from .selectors import JobSelector
from .transition import Transition
from .transitions import cancel_pending, retry_again

CANCELLABLE: Final = frozenset({JobStatus.PENDING})
RETRIABLE: Final = frozenset({JobStatus.FAILED, JobStatus.CANCELLED})
DELETABLE: Final = frozenset(JobStatus)

_NO_JOB: Final = ObjectId("0" * 24)


@dataclass(frozen=True, slots=True)
class Change:
    """One transition for the jobs that share it: its guard names no id."""

    transition: Transition
    jobs: tuple[Job, ...]


def cancel_selected(selector: JobSelector, jobs: tuple[Job, ...], now: datetime) -> Change:
    """pending -> cancelled, for those of the jobs that are still selected."""
    return Change(_guarded(cancel_pending(_NO_JOB, now), selector.guard(CANCELLABLE)), jobs)


def retry_selected(selector: JobSelector, job: Job, now: datetime, next_run_at: datetime) -> Change:
    """failed or cancelled -> pending, due then, if the job is still selected."""
    again = retry_again(_NO_JOB, now)
    guard = {**selector.guard(selector.among(RETRIABLE)), "name": job.name}
    return Change(replace(_guarded(again, guard), set={**again.set, "next_run_at": next_run_at}), (job,))


def _guarded(one: Transition, guard: Mapping[str, Any]) -> Transition:
    # The statuses of the selection are among those of the one transition, and stricter; a job's id is its only other
    # condition. A test compares the two guards.
    return replace(one, guard=guard)


def spread_over(now: datetime, seconds: float, count: int, random: Random) -> list[datetime]:
    """So many moments from `now` on, in whole milliseconds: evenly over the window, each by chance within its share."""
    share = seconds * 1000 / count
    return [now + timedelta(milliseconds=int((place + random.random()) * share)) for place in range(count)]
