"""Decides whether a job is tried again after a run, and when. Pure: the moment and the chance are given.

Two steps: `judged` turns an error into an outcome, `decide` turns an outcome into a guarded transition (for the races
that the guards close, see `transitions.py`).

If the schedule of a recurring job cannot be understood any more, `decide` raises ScheduleEndedError instead of a guess:
a wrong date would let a schedule pause silently. `end_of_schedule` then fails the job with that reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from ..error_types import InvalidCronError, ScheduleEndedError, UnknownTimeZoneError, UnreadablePayloadError
from ..exponential_backoff import SHORTEST, Backoff
from ..foreign_errors import is_a, leaves_of
from . import transitions
from .conditional_write import Transition
from .cron import next_occurrence
from .error_history import EVERYTHING, ErrorText, Failure, failure_of, kept_reason
from .job import OF_ONE_OCCURRENCE, Job, JobStatus
from .outcomes import CutShort, Discard, Discarded, Failed, Outcome, Retry, Snooze, Snoozed, Succeeded

ErrorTypes = tuple[type[BaseException], ...]


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Which errors are retried, how often, and after which delay.

    Attributes:
        max_attempts: The job fails for good after this number of failures.
        backoff: Computes the delay.
        own_backoff: The worker's own delay instead: seconds, or a function of the number of failures and the error.
        retry_on: Only these errors are retried; None for all.
        discard_on: These errors are never retried.
        error_text: Which texts of an error are stored.
    """

    max_attempts: int
    backoff: Backoff
    own_backoff: float | Callable[[int, BaseException], float] | None = None
    retry_on: ErrorTypes | None = None
    discard_on: ErrorTypes = ()
    error_text: ErrorText = EVERYTHING

    def delay(self, failures: int, error: BaseException) -> float:
        """Seconds until the next attempt."""
        # Never 0: a job that fails at once would be claimed and run in an endless loop.
        if self.own_backoff is None:
            return self.backoff.delay(failures)
        seconds = self.own_backoff(failures, error) if callable(self.own_backoff) else self.own_backoff
        return max(SHORTEST, min(round(seconds, 3), self.backoff.cap))


def judged(error: BaseException, policy: RetryPolicy) -> Outcome:
    """Turns an error into an outcome. In a group the strongest leaf decides: Discard, an error, Retry, then Snooze."""
    # A handler's own nursery wraps what is raised inside it, so a Retry may arrive in a group, next to errors.
    leaves = leaves_of(error)
    errors = [leaf for leaf in leaves if not is_a(leaf, (Retry, Snooze))]
    # Discard first: it is the one explicit word against any further attempt, and a sibling's error must not outvote it.
    for leaf in errors:
        if is_a(leaf, (Discard, *policy.discard_on)):
            return _discarded(leaf, errors)
    if errors:
        final = [leaf for leaf in errors if not _is_tried_again(leaf, policy)]
        return _discarded(final[0], errors) if final else Failed(error)
    for leaf in leaves:
        if isinstance(leaf, Retry):
            return Failed(leaf, leaf.after)
    (first, *_) = (leaf for leaf in leaves if isinstance(leaf, Snooze))
    return Snoozed(first)


def _discarded(by: BaseException, errors: Sequence[BaseException]) -> Discarded:
    others = [one for one in errors if one is not by]
    if len(others) > 1:
        return Discarded(by, BaseExceptionGroup("beside the one that decided", others))
    return Discarded(by, others[0] if others else None)


def _is_tried_again(error: BaseException, policy: RetryPolicy) -> bool:
    # Ctrl-C or an exit is not caused by the job, and unreadable data is not an error of the handler: `retry_on`, which
    # lists errors of the handler, does not apply to them.
    if is_a(error, UnreadablePayloadError) or not is_a(error, Exception):
        return True
    return policy.retry_on is None or is_a(error, policy.retry_on)


# --- From an outcome to a transition ---


def decide(job: Job, outcome: Outcome, now: datetime, policy: RetryPolicy, ran: float | None = None) -> Transition:
    """The transition that carries out an outcome on a job that this instance claimed.

    Args:
        job: As it was claimed.
        outcome: What came of its run.
        now: The server's time.
        policy: That of its worker.
        ran: How long the run took, in seconds; None if that is unknown.

    Raises:
        ScheduleEndedError: The next occurrence cannot be computed. Write `end_of_schedule` instead.
        UnknownTimeZoneError: This machine cannot compute it, and another one may. Write `left_to_others` instead.
    """
    match outcome:
        case CutShort(has_begun):
            return transitions.release(job, now, has_begun=has_begun)
        case Succeeded(result) if job.schedule is None:
            # A call has left newer data: the result is stored, and the same job runs once more with them.
            if job.again is not None:
                return transitions.run_again(job, now, result=result)
            return transitions.complete(job, now, result)
        case Succeeded(result):
            return _next_occurrence(job, now, policy.error_text, result=result)
        case Snoozed(snooze):
            return transitions.snooze(job, now, awake_at(snooze, now))
        case Discarded(error):
            return _give_up(job, now, error, policy.error_text, ran)
        case Failed(error, after):
            return _after_failure(job, now, error, after, policy, ran)


def _after_failure(
    job: Job, now: datetime, error: BaseException, after: float | None, policy: RetryPolicy, ran: float | None
) -> Transition:
    failures = job.fail_count + 1
    max_attempts = policy.max_attempts if job.limits.max_attempts is None else job.limits.max_attempts
    if failures >= max_attempts:  # With `max_attempts` 0 or 1, the first failure is the last.
        return _give_up(job, now, error, policy.error_text, ran)
    # In whole milliseconds, as the database stores it: otherwise the copy that is reported would differ from the
    # document.
    delay = policy.delay(failures, error) if after is None else max(SHORTEST, after)
    following = now + timedelta(milliseconds=round(delay * 1000))
    return transitions.retry(job, now, failure_of(error, job, now, policy.error_text, ran), following)


def _give_up(job: Job, now: datetime, error: BaseException, kept: ErrorText, ran: float | None) -> Transition:
    # One bad day must not end a schedule unnoticed: it goes on, unless it was declared with on_exhausted="fail".
    if job.schedule is not None and job.schedule.on_exhausted != "fail":
        return _next_occurrence(job, now, kept, error, ran=ran)
    return failed_for_good(job, now, failure_of(error, job, now, kept, ran))


def failed_for_good(job: Job, now: datetime, failure: Failure) -> Transition:
    """The transition after the last failure of the data that the job has: newer ones may have been left in it."""
    # The newer data have not failed: they get all their attempts.
    if job.again is not None and job.schedule is None:
        return transitions.run_again(job, now, failure)
    return transitions.fail(job, now, failure)


def _next_occurrence(
    job: Job,
    now: datetime,
    kept: ErrorText,
    error: BaseException | None = None,
    result: Any = None,
    ran: float | None = None,
) -> Transition:
    assert job.schedule is not None
    try:
        following = next_occurrence(job.schedule.cron, job.schedule.timezone, now)
    except UnknownTimeZoneError:
        raise  # Another machine knows it: no reason to end the schedule.
    except InvalidCronError as invalid:
        # Monque for Node accepts expressions that this library does not: end with an error instead of a guess.
        raise _schedule_ended(invalid, error, kept) from error
    failure = None if error is None else failure_of(error, job, now, kept, ran)
    return transitions.go_on(job, now, following, failure, result)


def _schedule_ended(invalid: InvalidCronError, error: BaseException | None, kept: ErrorText) -> ScheduleEndedError:
    last_run = "its last run succeeded" if error is None else f"its last run failed: {kept_reason(error, kept)}"
    return ScheduleEndedError(invalid, last_run)


def ambiguous_schedule(job: Job, outcome: Outcome, field: str, kept: ErrorText = EVERYTHING) -> ScheduleEndedError:
    """The error of a job whose document has a field of its schedule twice: it is unknown which one is meant."""
    error = outcome.error if isinstance(outcome, Failed | Discarded) else None
    cron = None if job.schedule is None else job.schedule.cron
    invalid = InvalidCronError(cron, f"the document has two fields called {field}")
    ended = _schedule_ended(invalid, error, kept)
    ended.__cause__ = error
    return ended


def end_of_schedule(
    job: Job, outcome: Outcome, now: datetime, ended: ScheduleEndedError, kept: ErrorText = EVERYTHING
) -> Transition:
    """The transition after `decide` raised: the job fails for good. The result of a successful run is stored."""
    failed = transitions.fail(job, now, failure_of(ended, job, now, kept))
    if not isinstance(outcome, Succeeded):
        return failed
    stored = {} if outcome.result is None else {"result": outcome.result}
    # The occurrence is over: if a caller retries the job, that is another occurrence.
    return replace(failed, set={**failed.set, **stored}, cleared=(*failed.cleared, *OF_ONE_OCCURRENCE))


LEFT_FOR: Final = timedelta(seconds=60)
"""How long a job that this machine cannot end is left to others. The instances that cannot run it do not claim it."""


def left_to_others(job: Job, now: datetime) -> Transition:
    """The transition after `decide` raised UnknownTimeZoneError: the occurrence runs again where its zone is known.

    Only after the schedule was given that zone during the run: a job whose zone is unknown is not claimed.
    """
    # A snooze counts no failure and keeps the checkpoint: this machine is at fault, and not the job.
    return transitions.snooze(job, now, now + LEFT_FOR)


SOONEST: Final = timedelta(seconds=1)
"""For a snooze to a moment that has passed. A handler whose clock is behind that of the database does this again and
again until the two agree, and so does a handler that goes by the wall clock in a test: without a pause, as fast as jobs
run."""


def awake_at(snooze: Snooze, now: datetime) -> datetime:
    """When a snoozed job is due again: at least a millisecond after `now`, and a second if `until` has passed."""
    if snooze.until is not None:
        return snooze.until if snooze.until > now else now + SOONEST
    return now + timedelta(milliseconds=max(1, round((snooze.after or 0) * 1000)))


def will_retry(after: Job) -> bool:
    """Whether a job, as a failure left it, runs again without an action of a caller."""
    return after.status is JobStatus.PENDING
