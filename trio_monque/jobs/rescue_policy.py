"""Rescues: when a claim may be taken for dead, how many deaths a job survives, and what happens to it then. Pure.

An instance dies, or stops renewing its claims. Observers notice after a lease without a renewal, and write the death
into the job. The transition is guarded by the fence and by the last sign of life (see `transitions.py`), because:

- Two observers may see the same death. The first write ends the claim, so the second one matches nothing, and one
  death counts once.
- The holder may have been slow, not dead, and renew the claim before the rescue arrives. Then the rescue matches
  nothing, and the run goes on.
- The holder may have finished just before. Then the claim is over, and its result stays.

The next run may start at once after the first death, because most deaths have another cause than the job: a
deployment, a lost machine. Later rescues back off, and after `max_rescues` the job is given up: a job that kills its
process must not kill one instance after the other for ever.

A suspect is a job whose last claims died: it may kill its process. An instance runs one suspect at a time. If it ran
two, the innocent one would be blamed for the deaths that the other one causes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from ..checks import LARGEST_NUMBER
from ..error_types import InvalidCronError, ScheduleEndedError, UnknownTimeZoneError
from ..exponential_backoff import Backoff
from ..options_and_defaults import LEASE_IN_BEATS, SchedulerConfig
from . import transitions
from .claim_stamps_and_fences import claimed_at, is_ours, sign_of_life
from .conditional_write import OneOf, Transition
from .cron import next_occurrence
from .error_history import failure_of
from .instance import clamped
from .job import Job, deaths_of
from .job_parts import NO_CLAIM
from .outcomes import Discard

_SECOND: Final = timedelta(seconds=1)

# A job is a suspect after this number of claims in a row that died.
SUSPECT_FROM: Final = 2

# What a claim asks in addition, while the instance runs a suspect and must not take another.
UNSUSPECTED: Final = MappingProxyType({"rescues": OneOf((None, *range(SUSPECT_FROM)))})


def is_suspect(job: Job) -> bool:
    """Whether the job may have killed its holders. An instance runs one suspect at a time."""
    return job.rescues >= SUSPECT_FROM


class DiedTooOftenError(Discard):
    """The error of a job that was given up after too many deaths. It is stored and reported, never raised."""

    def __init__(self, deaths: int) -> None:
        super().__init__(f"died {deaths} time{'s' if deaths > 1 else ''} while running")
        self.deaths = deaths


@dataclass(frozen=True, kw_only=True)
class RescuePolicy:
    """How often a job is rescued, and how long it waits after a rescue.

    Attributes:
        max_rescues: How many deaths in a row a job survives, unless the job has a `max_rescues` of its own.
        backoff: The delay after the second and later rescues. After the first one, the job is due at once.
    """

    max_rescues: int
    backoff: Backoff

    @classmethod
    def of(cls, config: SchedulerConfig) -> RescuePolicy:
        """The policy of a scheduler with these options."""
        backoff = Backoff(base=config.base_retry_interval, cap=config.max_backoff_delay, jitter=config.retry_jitter)
        return cls(max_rescues=config.max_rescues, backoff=backoff)


# --- Whether a claim is dead ---


def mark_of(job: Job) -> Hashable:
    """Identifies the claim and the last sign of life of its holder: any renewal changes it."""
    claim = job.claim or NO_CLAIM
    return (claim.by, claim.since, claim.token, *sign_of_life(job).values())


def lease_of(job: Job) -> float:
    """The lease in seconds: three heartbeat intervals of the document, clamped to the range that ours may have."""
    return LEASE_IN_BEATS * clamped((job.claim or NO_CLAIM).heartbeat_interval)


def protected_for(job: Job, now: datetime, lock_timeout: float | None) -> float:
    """Seconds from `now` (server time) in which the claim must not be taken, however dead it looks.

    Minus infinity for a claim of ours, and infinity for one that must never be taken.
    """
    if is_ours(job):
        return -math.inf  # Its signs of life alone protect it.
    # Age protects a claim of another library, because its holder may stop the heartbeat before it drains.
    if lock_timeout is None:
        return math.inf
    left = lock_timeout - (now - claimed_at(job)) / _SECOND
    # A date centuries ahead is a mistake of another program. A timer set to it would overflow.
    return left if left <= LARGEST_NUMBER else math.inf


def is_stale(job: Job, now: datetime) -> bool:
    """Whether a claim of another library is dead by its own dates: it has no heartbeat, or none within its lease.

    Always False for claims of ours.
    """
    if is_ours(job):
        return False  # Judged by observation alone: the clocks of two machines are never compared.
    last = (job.claim or NO_CLAIM).last_heartbeat
    return last is None or (now - last) / _SECOND > lease_of(job)


# --- What happens to the job ---


@dataclass(frozen=True, slots=True)
class Rescue:
    """The write that follows a death.

    Attributes:
        transition: Guarded by the claim and its last sign of life.
        error: Why the job, or its occurrence, is given up; None for a rescue.
    """

    transition: Transition
    error: BaseException | None = None


def decide_rescue(job: Job, now: datetime, policy: RescuePolicy) -> Rescue:
    """Decides between a rescue and giving up. `job` is as it was observed."""
    # A death is not a failure: with `max_attempts=1`, a killed process would fail a job whose handler may never have
    # started.
    deaths = deaths_of(job) + 1
    if deaths > (policy.max_rescues if job.limits.max_rescues is None else job.limits.max_rescues):
        return _given_up(job, now, DiedTooOftenError(deaths), policy)
    # After the first death, due as before: it keeps its place in the queue. Most deaths have another cause than the
    # job.
    due = min(job.next_run_at, now)
    if deaths > 1:
        # Now the job is suspected: it backs off, so that it does not kill one instance after the other.
        due = now + timedelta(milliseconds=round(policy.backoff.delay(deaths) * 1000))
    return Rescue(transitions.rescue(job, now, due))


def _given_up(job: Job, now: datetime, error: BaseException, policy: RescuePolicy) -> Rescue:
    if job.schedule is not None and job.schedule.on_exhausted != "fail":
        try:
            following = next_occurrence(job.schedule.cron, job.schedule.timezone, now)
        except UnknownTimeZoneError:
            # Another machine knows it, and gives the occurrence up: no reason to end the schedule here.
            deaths = deaths_of(job) + 1
            return Rescue(transitions.rescue(job, now, now + timedelta(seconds=policy.backoff.delay(deaths))))
        except InvalidCronError as invalid:
            ended = ScheduleEndedError(invalid, f"it {error}")
            ended.__cause__ = error
            error = ended
        else:
            failure = failure_of(error, job, now)
            return Rescue(transitions.go_on_after_deaths(job, now, following, failure), error)
    failure = failure_of(error, job, now)
    if job.again is not None and job.schedule is None:
        return Rescue(transitions.run_again_after_deaths(job, now, failure), error)
    return Rescue(transitions.give_up(job, now, failure), error)
