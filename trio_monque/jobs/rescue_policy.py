"""What becomes of a job whose claim died, and when a claim may be taken for dead. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ..backoff import Backoff
from ..checks import LARGEST_NUMBER
from ..errors import InvalidCronError, ScheduleEndedError
from ..options import LEASE_IN_BEATS, SchedulerConfig
from . import transitions
from .conditional_write import Transition
from .cron import next_occurrence
from .error_history import failure_of
from .fences import is_ours, sign_of_life
from .instance import clamped
from .job import Job, deaths_of
from .verdicts import Discard

_SECOND: Final = timedelta(seconds=1)


class DiedTooOftenError(Discard):
    """Nobody raised it: the instances that ran the job died, again and again."""

    def __init__(self, deaths: int) -> None:
        super().__init__(f"died {deaths} time{'s' if deaths > 1 else ''} while running")
        self.deaths = deaths


@dataclass(frozen=True, kw_only=True)
class RescuePolicy:
    """How often a job is rescued, and how long it then waits.

    Attributes:
        max_rescues: How many deaths in a row a job survives that does not say so itself.
        backoff: Before the second rescue and those after it; the first one makes the job due at once.
    """

    max_rescues: int
    backoff: Backoff

    @classmethod
    def of(cls, config: SchedulerConfig) -> RescuePolicy:
        """As the options say."""
        backoff = Backoff(base=config.base_retry_interval, cap=config.max_backoff_delay, jitter=config.retry_jitter)
        return cls(max_rescues=config.max_rescues, backoff=backoff)


# --- Whether it is dead ---


def mark_of(job: Job) -> Hashable:
    """Which claim it is, and the last sign of life of its holder."""
    return (job.claimed_by, job.locked_at, job.claim_token, *sign_of_life(job).values())


def lease_of(job: Job) -> float:
    """Seconds: three of the document's own intervals. A foreign one is taken for the nearest that ours may be."""
    return LEASE_IN_BEATS * clamped(job.heartbeat_interval)


def protected_for(job: Job, now: datetime, lock_timeout: float | None) -> float:
    """Seconds from `now`, the server's, in which its claim must not be taken, however dead it looks.

    A claim of ours is protected by its signs of life alone. One of another library also by its age: its holder
    may have stopped its heartbeat before it drains. Without a `lock_timeout` it is protected for ever.
    """
    if is_ours(job):
        return -math.inf
    if lock_timeout is None:
        return math.inf
    claimed_at = job.updated_at if job.locked_at is None else job.locked_at
    left = lock_timeout - (now - claimed_at) / _SECOND
    # A date centuries ahead means nothing, and no timer is to be set to it.
    return left if left <= LARGEST_NUMBER else math.inf


def is_stale(job: Job, now: datetime) -> bool:
    """Whether a claim of another library is dead by its own dates: no heartbeat, or none for its lease.

    Of claims of ours no date is asked.
    """
    if is_ours(job):
        return False
    return job.last_heartbeat is None or (now - job.last_heartbeat) / _SECOND > lease_of(job)


# --- What becomes of it ---


@dataclass(frozen=True, slots=True)
class Rescue:
    """How a death is written.

    Attributes:
        transition: Conditional on the claim, and on its last sign of life.
        error: Where the job is given up, or its occurrence: why.
    """

    transition: Transition
    error: BaseException | None = None


def decide_rescue(job: Job, now: datetime, policy: RescuePolicy) -> Rescue:
    """What a death means for the job, which is as its claim was observed. It is never counted as a failure."""
    deaths = deaths_of(job) + 1
    if deaths > (policy.max_rescues if job.max_rescues is None else job.max_rescues):
        return _given_up(job, now, DiedTooOftenError(deaths))
    # Due as it was: it has its old place in the queue.
    due = min(job.next_run_at, now)
    if deaths > 1:
        due = now + timedelta(milliseconds=round(policy.backoff.delay(deaths) * 1000))
    return Rescue(transitions.rescue(job, now, due))


def _given_up(job: Job, now: datetime, error: BaseException) -> Rescue:
    if job.repeat_interval is not None and job.on_exhausted != "fail":
        try:
            following = next_occurrence(job.repeat_interval, job.timezone, now)
        except InvalidCronError as invalid:
            ended = ScheduleEndedError(invalid, f"it {error}")
            ended.__cause__ = error
            error = ended
        else:
            failure = failure_of(error, job, now)
            return Rescue(transitions.go_on_after_deaths(job, now, following, failure), error)
    return Rescue(transitions.give_up(job, now, failure_of(error, job, now)), error)
