"""Bulk changes: the transitions of many jobs at once, and the result of a bulk action. Pure.

Each transition is that of a single job, with the conditions of a whole selection in its guard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from bson import ObjectId

from .conditional_write import Transition
from .job import Job, JobStatus
from .job_selector import JobSelector
from .transitions import cancel_pending, retry_again

CANCELLABLE: Final = frozenset({JobStatus.PENDING})
RETRIABLE: Final = frozenset({JobStatus.FAILED, JobStatus.CANCELLED})
DELETABLE: Final = frozenset(JobStatus)

_NO_JOB: Final = ObjectId("0" * 24)


@dataclass(frozen=True, slots=True)
class Change:
    """A transition and the jobs that it applies to. Its guard has no ids; the store adds them."""

    transition: Transition
    jobs: tuple[Job, ...]


def cancel_selected(selector: JobSelector, jobs: tuple[Job, ...], now: datetime) -> Change:
    """pending -> cancelled, for the jobs that still match the selection."""
    return Change(_guarded(cancel_pending(_NO_JOB, now), selector.guard(CANCELLABLE)), jobs)


def retry_selected(selector: JobSelector, job: Job, now: datetime, next_run_at: datetime) -> Change:
    """failed or cancelled -> pending, due at `next_run_at`, if the job still matches the selection."""
    again = retry_again(_NO_JOB, now)
    guard = {**selector.guard(selector.among(RETRIABLE)), "name": job.name, "child.scope": None}
    return Change(replace(_guarded(again, guard), set={**again.set, "next_run_at": next_run_at}), (job,))


def _guarded(one: Transition, guard: Mapping[str, Any]) -> Transition:
    # The guard of the single transition has its statuses and an id. The selection's statuses are among them, and the
    # store adds the ids, so no condition is lost; a test compares the two guards. The whole selection is repeated,
    # because a job may change between the moment it was chosen and the write.
    return replace(one, guard=guard)


def spread_over(now: datetime, seconds: float, count: int, random: Random) -> list[datetime]:
    """Spreads `count` moments over `seconds` from `now` on: one at random in each equal share, in milliseconds."""
    share = seconds * 1000 / count
    return [now + timedelta(milliseconds=int((place + random.random()) * share)) for place in range(count)]


# --- The result ---

MOST_ERRORS_LISTED: Final = 100
MOST_NAMES_COUNTED: Final = 100


@dataclass(frozen=True, slots=True)
class BulkFailure:
    """A job that was selected, but could not be changed.

    Attributes:
        job_id: Its `_id`, as a hex string.
        reason: Why the server refused the change.
    """

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result of a bulk action; in `on_progress`, the result so far.

    A job that does not match the selection any more when its turn comes stays as it is, and is not counted.

    Attributes:
        count: How many jobs were changed or deleted for certain.
        errors: The first 100 jobs that could not be changed, and why.
        refused: How many could not be changed in all.
        unknown: How many may have been changed or deleted: the answer was lost, and since then they changed again or
            were deleted.
    """

    count: int = 0
    errors: tuple[BulkFailure, ...] = ()
    refused: int = 0
    unknown: int = 0


@dataclass(slots=True)
class Tally:
    """A BulkResult while the action runs."""

    count: int = 0
    refused: int = 0
    unknown: int = 0
    errors: list[BulkFailure] = field(default_factory=list)
    by_name: Counter[str] = field(default_factory=Counter)

    def add(self, count: int, by_name: Mapping[str, int]) -> None:
        self.count += count
        for name, number in by_name.items():
            if name in self.by_name or len(self.by_name) < MOST_NAMES_COUNTED:
                self.by_name[name] += number

    def refuse(self, document_id: object, reason: str) -> None:
        self.refused += 1
        if len(self.errors) < MOST_ERRORS_LISTED:
            self.errors.append(BulkFailure(str(document_id), reason))

    def result(self) -> BulkResult:
        return BulkResult(self.count, tuple(self.errors), self.refused, self.unknown)
