"""MinuteCounts: adds up what one scheduler does in each minute, until it is written. No I/O.

A run that ends costs one call and no memory: the numbers of a name are one list for as long as the minute lasts. The
minute is that of the write that ended the job, by the server's time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from ..jobs.job import Job, JobStatus
from ..jobs.minutes import (
    BUCKETS,
    FAILED_ATTEMPTS,
    FAILED_FOR_GOOD,
    MINUTE,
    MOST_NAMES,
    OTHER_NAMES,
    RESCUED,
    ROW,
    RUN_BUCKETS,
    RUN_MS,
    WAIT_BUCKETS,
    WAIT_MS,
    Part,
    minute_of,
)
from .settlement import JobSettlement

MOST_WAITING: Final = 60
"""Minutes that wait to be written: after an outage of an hour, the earliest are dropped."""


class MinuteCounts:
    """The minute that goes on, and those that wait to be written. Used on the thread of the run.

    Args:
        slots: Returns how many jobs may run at once.
    """

    def __init__(self, slots: Callable[[], int]) -> None:
        self._slots = slots
        self._rows: dict[str, list[int]] = {}
        self._begin: datetime | None = None
        self._end: datetime | None = None
        self._steps = 0
        self._waiting: deque[Part] = deque(maxlen=MOST_WAITING)

    def count(self, settlement: JobSettlement, what: int) -> None:
        """Count a run that has ended: as done, or as a failed attempt."""
        transition, job = settlement.transition, settlement.job
        if transition is None:
            return
        row = self._row(job.name, transition.set["updated_at"])
        row[what] += 1
        if what == FAILED_ATTEMPTS and transition.set.get("status") is JobStatus.FAILED:
            row[FAILED_FOR_GOOD] += 1
        milliseconds = round(settlement.duration * 1000)
        row[RUN_MS] += milliseconds
        # As `bucket_of`, without its call.
        row[RUN_BUCKETS + min(max(0, milliseconds - 1).bit_length(), BUCKETS - 1)] += 1
        claim = job.claim
        if claim is not None and claim.since is not None:
            # A job that is enqueued with a date in the past, to be the first one, did not wait since that date.
            due = max(job.next_run_at, job.created_at)
            milliseconds = max(0, round((claim.since - due).total_seconds() * 1000))
            row[WAIT_MS] += milliseconds
            row[WAIT_BUCKETS + min(max(0, milliseconds - 1).bit_length(), BUCKETS - 1)] += 1

    def rescued(self, job: Job) -> None:
        """Count a claim of a dead instance that was taken away, with the job as that left it."""
        row = self._row(job.name, job.updated_at)
        row[RESCUED] += 1
        if job.status is JobStatus.FAILED:
            row[FAILED_FOR_GOOD] += 1

    def failed_without_run(self, job: Job) -> None:
        """Count a job that has failed for good without a run."""
        self._row(job.name, job.updated_at)[FAILED_FOR_GOOD] += 1

    def _row(self, name: str, at: datetime) -> list[int]:
        if self._end is None or at >= self._end:
            self._begin_minute(at)
        # An end of an earlier minute that arrives late counts in this one.
        row = self._rows.get(name)
        if row is None:
            if len(self._rows) >= MOST_NAMES:
                name = OTHER_NAMES
            row = self._rows.setdefault(name, [0] * ROW)
        return row

    def _begin_minute(self, at: datetime) -> None:
        if self._rows and self._begin is not None:
            self._waiting.append(Part(self._begin, self._slots(), self._rows, self._steps))
        self._rows = {}
        self._begin = minute_of(at)
        self._end = self._begin + MINUTE

    def over_by(self, now: datetime) -> Sequence[Part]:
        """Return the minutes that are over and were not written, the earliest first."""
        if self._begin is not None and self._end is not None:
            if now < self._begin - MINUTE:
                # The server's clock was set back. Else all would count in one minute until that clock has caught up.
                self._begin_minute(now)
                self._steps += 1
            elif now >= self._end:
                self._begin_minute(now)
        return tuple(self._waiting)

    def all_so_far(self) -> Sequence[Part]:
        """Return all that was not written, also of the minute that goes on: nothing more is counted in it."""
        if self._begin is not None:
            self._begin_minute(self._begin)
        return tuple(self._waiting)

    def written(self, parts: Sequence[Part]) -> None:
        """Forget these minutes."""
        for part in parts:
            # One may have been dropped meanwhile: the deque is bounded.
            if self._waiting and self._waiting[0] is part:
                self._waiting.popleft()
