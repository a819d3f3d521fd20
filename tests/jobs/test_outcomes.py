from __future__ import annotations

from datetime import UTC, datetime, timedelta

import bson
import pytest

from tests.support.jobs_in_memory import LATER, claimed
from trio_monque.errors import ScheduleEndedError
from trio_monque.exponential_backoff import Backoff
from trio_monque.jobs.conditional_write import applied
from trio_monque.jobs.error_history import LONGEST_REASON, reason_of
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.jobs.outcomes import CutShort, Discarded, Failed, Outcome, Retry, Snooze, Snoozed, Succeeded
from trio_monque.jobs.retries_and_next_occurrences import RetryPolicy, decide, end_of_schedule, judged, will_retry

POLICY = RetryPolicy(max_attempts=3, backoff=Backoff(base=1, cap=60, jitter=0))


def after(job: Job, outcome: Outcome, policy: RetryPolicy = POLICY) -> Job:
    return applied(job, decide(job, outcome, LATER, policy))


def test_success_completes_a_one_off_job() -> None:
    assert after(claimed(), Succeeded()).status is JobStatus.COMPLETED


def test_success_moves_a_recurring_job_to_its_next_occurrence_after_now() -> None:
    # Twelve o'clock was due; it is one now, and what was missed is one run.
    job = after(claimed(repeat_interval="0 * * * *"), Succeeded())
    assert (job.status, job.next_run_at) == (JobStatus.PENDING, datetime(2026, 3, 1, 14, tzinfo=UTC))


def test_failure_is_retried_below_the_limit_and_ends_at_it() -> None:
    retried = after(claimed(fail_count=1), Failed(ValueError("no")))
    assert (retried.status, retried.fail_count) == (JobStatus.PENDING, 2)
    assert retried.next_run_at == LATER + timedelta(seconds=4)
    assert will_retry(retried)
    ended = after(claimed(fail_count=2), Failed(ValueError("no")))
    assert (ended.status, ended.fail_count, ended.fail_reason) == (JobStatus.FAILED, 3, "ValueError: no")
    assert not will_retry(ended)


@pytest.mark.parametrize("max_attempts", [0, 1])
def test_limit_of_zero_or_one_means_a_single_try(max_attempts: int) -> None:
    policy = RetryPolicy(max_attempts=max_attempts, backoff=POLICY.backoff)
    assert after(claimed(), Failed(ValueError()), policy).status is JobStatus.FAILED


def test_limit_of_the_job_itself_comes_first() -> None:
    assert after(claimed(max_attempts=1), Failed(ValueError())).status is JobStatus.FAILED
    assert after(claimed(max_attempts=9, fail_count=5), Failed(ValueError())).status is JobStatus.PENDING


def test_schedule_without_retries_left_goes_on_unless_on_exhausted_is_fail() -> None:
    job = after(claimed(repeat_interval="0 * * * *", fail_count=2), Failed(ValueError("no")))
    assert (job.status, job.fail_count, job.fail_reason) == (JobStatus.PENDING, 0, "ValueError: no")
    ended = after(claimed(repeat_interval="0 * * * *", fail_count=2, on_exhausted="fail"), Failed(ValueError("no")))
    assert ended.status is JobStatus.FAILED


def test_run_that_was_cut_short_is_given_back_uncounted() -> None:
    job = after(claimed(fail_count=1), CutShort())
    assert (job.status, job.fail_count) == (JobStatus.PENDING, 1)


def test_reason_names_the_first_leaf_and_counts_the_others() -> None:
    assert reason_of(ValueError("no")) == "ValueError: no"
    assert reason_of(ValueError()) == "ValueError"
    group = ExceptionGroup("a", [ExceptionGroup("b", [KeyError("x")]), OSError("y"), OSError("z")])
    assert reason_of(group) == "KeyError: 'x' (and 2 more)"
    assert len(reason_of(ValueError("x" * 100_000))) == LONGEST_REASON


def test_exit_and_interrupt_are_tried_again_whatever_errors_the_worker_names() -> None:
    policy = RetryPolicy(max_attempts=3, backoff=POLICY.backoff, retry_on=(OSError,))
    for error in (SystemExit(3), KeyboardInterrupt(), BaseExceptionGroup("", [SystemExit(3)])):
        assert judged(error, policy) == Failed(error)
    assert isinstance(judged(ValueError(), policy), Discarded)


def test_discard_on_does_not_match_control_exceptions() -> None:
    policy = RetryPolicy(max_attempts=3, backoff=POLICY.backoff, discard_on=(Exception,))
    assert isinstance(judged(Retry(after=1), policy), Failed)
    assert isinstance(judged(Snooze(after=1), policy), Snoozed)


def test_retry_and_snooze_are_never_at_once() -> None:
    assert after(claimed(), Failed(Retry(after=0), 0)).next_run_at == LATER + timedelta(milliseconds=1)
    assert after(claimed(), Snoozed(Snooze(after=0))).next_run_at == LATER + timedelta(milliseconds=1)
    for passed in (timedelta(days=1), timedelta(0)):
        assert after(claimed(), Snoozed(Snooze(until=LATER - passed))).next_run_at == LATER + timedelta(seconds=1)
    ahead = LATER + timedelta(milliseconds=1)
    assert after(claimed(), Snoozed(Snooze(until=ahead))).next_run_at == ahead
    assert (Snooze(after=timedelta(hours=1)).after, Retry(after=timedelta(minutes=2)).after) == (3600, 120)
    assert str(Snooze(after=timedelta(hours=1))) == "for 3600 s"


def test_run_that_succeeded_keeps_its_result_although_its_schedule_has_ended() -> None:
    job = claimed(repeat_interval="0 0 ? * FRI")
    with pytest.raises(ScheduleEndedError) as ended:
        decide(job, Succeeded({"sent": 7}), LATER, POLICY)
    left = applied(job, end_of_schedule(job, Succeeded({"sent": 7}), LATER, ended.value))
    assert (left.status, left.result) == (JobStatus.FAILED, {"sent": 7})


@pytest.mark.full
def test_what_failures_add_to_their_job_is_bounded_however_large_their_errors_are() -> None:
    error: Exception = ValueError("x" * 100_000)
    for _ in range(100):
        try:
            raise ValueError("a line of text\n" * 100) from error
        except ValueError as raised:
            error = raised
    left = after(claimed(max_attempts=100), Failed(error))
    for failures in range(1, 20):
        left = after(claimed(max_attempts=100, fail_count=failures, errors=left.errors), Failed(error))
    assert len(left.errors) == 5
    assert {len(one["traceback"]) for one in left.errors} == {4_000}
    assert len(bson.encode({"": [*left.errors, left.fail_reason]})) < 5 * (4_000 + 10_000) + 10_000 + 1_000
