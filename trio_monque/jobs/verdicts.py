"""How a handler ended -> which transition. Pure: the moment, the policy and the chance are given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ..backoff import Backoff
from ..errors import InvalidCronError
from . import transitions
from .cron import next_occurrence
from .job import Job, JobStatus
from .transitions import Transition

# A reason is for people; a megabyte of one would travel with every read of the job.
LONGEST_REASON = 10_000


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, or ran out of its time: a counted try."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class CutShort:
    """The scheduler left before the handler was through: not a try, the claim is given back."""


Verdict = Succeeded | Failed | CutShort


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """After how many failures a job has failed for good, and how long it waits before that."""

    max_retries: int
    backoff: Backoff


def reason_of(error: BaseException) -> str:
    """What `failReason` says of an error: the type and message of its first leaf, and how many others there were."""
    leaves = _leaves(error)
    first = leaves[0]
    text = f"{type(first).__name__}: {first}" if str(first) else type(first).__name__
    if len(leaves) > 1:
        text += f" (and {len(leaves) - 1} more)"
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]


def decide(job: Job, verdict: Verdict, now: datetime, policy: RetryPolicy) -> Transition:
    """The one transition that a verdict means for a job that is claimed by us."""
    match verdict:
        case CutShort():
            return transitions.release(job, now)
        case Succeeded() if job.repeat_interval is None:
            return transitions.complete(job, now)
        case Succeeded():
            return _next_occurrence(job, now)
        case Failed(error):
            return _after_failure(job, now, reason_of(error), policy)


def _after_failure(job: Job, now: datetime, reason: str, policy: RetryPolicy) -> Transition:
    failures = job.fail_count + 1
    max_retries = policy.max_retries if job.max_retries is None else job.max_retries
    if failures < max_retries:
        return transitions.retry(job, now, reason, now + timedelta(seconds=policy.backoff.delay(failures)))
    # A schedule must not die unnoticed of one bad day: it goes on, unless it was told not to.
    if job.repeat_interval is not None and job.on_exhausted != "fail":
        return _next_occurrence(job, now, reason)
    return transitions.fail(job, now, reason)


def _next_occurrence(job: Job, now: datetime, reason: str | None = None) -> Transition:
    assert job.repeat_interval is not None
    try:
        following = next_occurrence(job.repeat_interval, job.timezone, now)
    except InvalidCronError as error:
        # Monque for Node allows lines that this library does not: end loudly, and do not guess.
        return transitions.fail(job, now, str(error))
    return transitions.go_on(job, now, following, reason)


def will_retry(after: Job) -> bool:
    """Whether the job that a failure left behind runs again by itself: told from what was stored."""
    return after.status is JobStatus.PENDING
