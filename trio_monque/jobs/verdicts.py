"""How a handler ended -> which transition. Pure: the moment, the policy and the chance are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from ..backoff import SHORTEST, Backoff
from ..checks import check_seconds
from ..errors import InvalidCronError, InvalidOptionError, ScheduleEndedError, UnreadablePayloadError
from ..exception_text import message_of, name_of, plain, traceback_of
from . import transitions
from .cron import next_occurrence
from .error_text import EVERYTHING, ErrorText
from .job import Job, JobStatus
from .new_job import checked_moment
from .occurrences import OF_ONE_OCCURRENCE
from .transition import Transition
from .transitions import Failure

# A reason is for people; a megabyte of one would travel with every read of the job.
LONGEST_REASON: Final = 10_000
LONGEST_TRACEBACK: Final = 4_000


# --- What a handler may raise to say what is to become of its job ---


class Retry(Exception):  # noqa: N818  # It is no error: it says what to do.
    """Counts as a failed try, and says when the next one is.

    Args:
        reason: Becomes the job's `fail_reason`.
        after: Seconds until the next try; None for the backoff.
    """

    after: float | None = None  # Also of a subclass that does not call this one's __init__.

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        if after is not None:
            check_seconds("after", after, zero=True)
        given: object = reason
        if isinstance(given, int | float):
            raise InvalidOptionError("reason", given, "must be a text: write Retry(after=...) for seconds")
        super().__init__(reason)
        self.after = after


class Snooze(Exception):  # noqa: N818
    """Runs the job again later, with no failure counted.

    Args:
        after: Seconds from now.
        until: Or a moment, timezone-aware.
    """

    after: float | None = None
    until: datetime | None = None

    def __init__(self, *, after: float | None = None, until: datetime | None = None) -> None:
        if (after is None) == (until is None):
            raise InvalidOptionError("after", after, "give one of after= and until=")
        if after is not None:
            check_seconds("after", after, zero=True)
        super().__init__(f"for {after:g} s" if after is not None else f"until {until}")
        self.after = after
        self.until = None if until is None else checked_moment("until", until)


class Discard(Exception):  # noqa: N818
    """Gives the job up: it has failed for good. An occurrence of a recurring job is given up, and the schedule goes on.

    Args:
        reason: Becomes the job's `fail_reason`.
    """

    def __init__(self, reason: str = "discarded") -> None:
        super().__init__(reason)


# --- What an end means ---


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned; `result` is what is to be stored of that."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A counted try; the next one is `after` seconds away, where the handler said so."""

    error: BaseException
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Discarded:
    """A counted try, and the last one."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Snoozed:
    """No failure; it is run again later."""

    snooze: Snooze


@dataclass(frozen=True, slots=True)
class CutShort:
    """The scheduler left before the handler was through: not a try, the claim is given back."""


Verdict = Succeeded | Failed | Discarded | Snoozed | CutShort

ErrorTypes = tuple[type[BaseException], ...]


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """What is tried again, how often, and how long it waits before that.

    Attributes:
        max_attempts: After how many failures a job has failed for good.
        backoff: Computes the delay.
        own_backoff: The worker's own instead: fixed (seconds), or asked with the number of failures and the error.
        retry_on: Only these errors are tried again; None for all.
        discard_on: These errors are never tried again.
        error_text: What is kept of an error.
    """

    max_attempts: int
    backoff: Backoff
    own_backoff: float | Callable[[int, BaseException], float] | None = None
    retry_on: ErrorTypes | None = None
    discard_on: ErrorTypes = ()
    error_text: ErrorText = EVERYTHING

    def delay(self, failures: int, error: BaseException) -> float:
        """Seconds until the next try: never at once, or a job that fails at once would spin."""
        if self.own_backoff is None:
            return self.backoff.delay(failures)
        seconds = self.own_backoff(failures, error) if callable(self.own_backoff) else self.own_backoff
        return max(SHORTEST, min(round(seconds, 3), self.backoff.cap))


def judged(error: BaseException, policy: RetryPolicy) -> Verdict:
    """What an error means. Of a group, its leaves decide: Discard before errors before Retry before Snooze.

    A handler's own nursery wraps what is raised inside, so a Retry may arrive in a group, and beside errors.
    """
    leaves = leaves_of(error)
    errors = [leaf for leaf in leaves if not isinstance(leaf, Retry | Snooze)]
    for leaf in errors:
        if isinstance(leaf, (Discard, *policy.discard_on)):
            return Discarded(leaf)
    if errors:
        final = [leaf for leaf in errors if not _is_tried_again(leaf, policy)]
        return Discarded(final[0]) if final else Failed(error)
    for leaf in leaves:
        if isinstance(leaf, Retry):
            return Failed(leaf, leaf.after)
    (first, *_) = (leaf for leaf in leaves if isinstance(leaf, Snooze))
    return Snoozed(first)


def _is_tried_again(error: BaseException, policy: RetryPolicy) -> bool:
    # A Ctrl-C or an exit says nothing about the job, and data that cannot be read says nothing about the handler: which
    # of its errors are worth another try is not asked of them.
    if isinstance(error, UnreadablePayloadError) or not isinstance(error, Exception):
        return True
    return policy.retry_on is None or isinstance(error, policy.retry_on)


def leaves_of(error: BaseException) -> list[BaseException]:
    """The errors in a group, at any depth; an error that is none, itself."""
    leaves: list[BaseException] = []
    left = [error]
    while left:  # Not by recursion: a group may be nested deeper than Python's stack.
        one = left.pop()
        if isinstance(one, BaseExceptionGroup):
            left.extend(reversed(one.exceptions))
        else:
            leaves.append(one)
    return leaves


# --- What is written ---


def decide(job: Job, verdict: Verdict, now: datetime, policy: RetryPolicy) -> Transition:
    """The one transition that a verdict means for a job that is claimed by us.

    Raises:
        ScheduleEndedError: The next occurrence cannot be computed; then `end_of_schedule` is what is written.
    """
    match verdict:
        case CutShort():
            return transitions.release(job, now)
        case Succeeded(result) if job.repeat_interval is None:
            return transitions.complete(job, now, result)
        case Succeeded(result):
            return _next_occurrence(job, now, policy.error_text, result=result)
        case Snoozed(snooze):
            return transitions.snooze(job, now, awake_at(snooze, now))
        case Discarded(error):
            return _give_up(job, now, error, policy.error_text)
        case Failed(error, after):
            return _after_failure(job, now, error, after, policy)


def _after_failure(
    job: Job, now: datetime, error: BaseException, after: float | None, policy: RetryPolicy
) -> Transition:
    failures = job.fail_count + 1
    max_attempts = policy.max_attempts if job.max_attempts is None else job.max_attempts
    if failures >= max_attempts:
        return _give_up(job, now, error, policy.error_text)
    delay = policy.delay(failures, error) if after is None else max(SHORTEST, after)
    following = now + timedelta(milliseconds=round(delay * 1000))
    return transitions.retry(job, now, failure_of(error, job, now, policy.error_text), following)


def _give_up(job: Job, now: datetime, error: BaseException, kept: ErrorText) -> Transition:
    # A schedule must not die unnoticed of one bad day: it goes on, unless it was told not to.
    if job.repeat_interval is not None and job.on_exhausted != "fail":
        return _next_occurrence(job, now, kept, error)
    return transitions.fail(job, now, failure_of(error, job, now, kept))


def _next_occurrence(
    job: Job, now: datetime, kept: ErrorText, error: BaseException | None = None, result: Any = None
) -> Transition:
    assert job.repeat_interval is not None
    try:
        following = next_occurrence(job.repeat_interval, job.timezone, now)
    except InvalidCronError as invalid:
        # Monque for Node allows lines that this library does not: end loudly, and do not guess.
        raise _schedule_ended(invalid, error, kept) from error
    failure = None if error is None else failure_of(error, job, now, kept)
    return transitions.go_on(job, now, following, failure, result)


def _schedule_ended(invalid: InvalidCronError, error: BaseException | None, kept: ErrorText) -> ScheduleEndedError:
    last_run = "its last run succeeded" if error is None else f"its last run failed: {kept_reason(error, kept)}"
    return ScheduleEndedError(invalid, last_run)


def ambiguous_schedule(job: Job, verdict: Verdict, field: str, kept: ErrorText = EVERYTHING) -> ScheduleEndedError:
    """Why a job ends whose document has a field of its schedule twice: nothing tells which one is meant."""
    error = verdict.error if isinstance(verdict, Failed | Discarded) else None
    invalid = InvalidCronError(job.repeat_interval, f"the document has two fields called {field}")
    ended = _schedule_ended(invalid, error, kept)
    ended.__cause__ = error
    return ended


def end_of_schedule(
    job: Job, verdict: Verdict, now: datetime, ended: ScheduleEndedError, kept: ErrorText = EVERYTHING
) -> Transition:
    """What is written where `decide` raised: the job has failed. The result of a run that succeeded is stored."""
    failed = transitions.fail(job, now, failure_of(ended, job, now, kept))
    if not isinstance(verdict, Succeeded):
        return failed
    stored = {} if verdict.result is None else {"result": verdict.result}
    # The occurrence is over: a retry by hand is another one.
    return replace(failed, set={**failed.set, **stored}, cleared=(*failed.cleared, *OF_ONE_OCCURRENCE))


def awake_at(snooze: Snooze, now: datetime) -> datetime:
    """When what was snoozed is due again: later than now."""
    if snooze.until is not None:
        return max(snooze.until, now + timedelta(milliseconds=1))
    return now + timedelta(milliseconds=max(1, round((snooze.after or 0) * 1000)))


def will_retry(after: Job) -> bool:
    """Whether the job that a failure left behind runs again by itself: told from what was stored."""
    return after.status is JobStatus.PENDING


# --- Words for people ---


def failure_of(error: BaseException, job: Job, now: datetime, kept: ErrorText = EVERYTHING) -> Failure:
    """What a failed try leaves in its job."""
    reason = kept_reason(error, kept)
    record: dict[str, Any] = {"at": now, "attempt": job.attempts, "error": reason}
    if kept.store_tracebacks:
        record["traceback"] = plain(kept.redacted(traceback_of(error, LONGEST_TRACEBACK)), LONGEST_TRACEBACK)
    return Failure(reason, record)


def kept_reason(error: BaseException, kept: ErrorText) -> str:
    """What is stored and logged as the reason of a failure."""
    return plain(kept.redacted(reason_of(error)), LONGEST_REASON)


def reason_of(error: BaseException) -> str:
    """What `failReason` says of an error: the type and message of its first leaf, and how many others there were."""
    # Beside a real error, a Retry or Snooze is not what anybody wants to read of.
    leaves = sorted(leaves_of(error), key=lambda leaf: isinstance(leaf, Retry | Snooze))
    first = leaves[0]
    text = name_of(first)
    if message := message_of(first, LONGEST_REASON):
        text = message if isinstance(first, Retry | Discard) else f"{text}: {message}"
    if len(leaves) > 1:
        text += f" (and {len(leaves) - 1} more)"
    return plain(text, LONGEST_REASON)
