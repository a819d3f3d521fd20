"""When a claim may be taken for dead, and what becomes of its job. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from tests.support.jobs_in_memory import with_flat
from trio_monque.errors import InvalidCronError
from trio_monque.exponential_backoff import Backoff
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import ClaimStamp
from trio_monque.jobs.conditional_write import applied
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.jobs.rescue_policy import (
    DiedTooOftenError,
    RescuePolicy,
    decide_rescue,
    is_stale,
    lease_of,
    mark_of,
    protected_for,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = RescuePolicy(max_rescues=3, backoff=Backoff(base=1.0, cap=60.0, jitter=0.0))
PENDING = Job(id=ObjectId(), name="job", next_run_at=NOW - timedelta(hours=1), created_at=NOW, updated_at=NOW)
CLAIMED = applied(PENDING, transitions.claim(["job"], NOW, ClaimStamp.new("us", NOW, 30.0, "random")))
FOREIGN = with_flat(CLAIMED, claimed_by="node-1")


def after(job: Job) -> Job:
    return applied(job, decide_rescue(job, NOW, POLICY).transition)


@pytest.mark.parametrize(
    ("interval", "lease"),
    [(30.0, 90.0), (0.2, 0.6), (0.001, 0.6), (0.0, 0.6), (-5.0, 0.6), (1e9, 900.0), (None, 900.0), (math.nan, 900.0)],
)
def test_lease_is_three_of_the_documents_intervals_within_what_ours_may_be(
    interval: float | None, lease: float
) -> None:
    assert lease_of(with_flat(FOREIGN, heartbeat_interval=interval)) == pytest.approx(lease)


def test_each_part_of_a_claim_is_in_its_mark() -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"claimed_by": "x"},
        {"locked_at": NOW + timedelta(1)},
        {"claim_token": None},
        {"renewed_at": NOW + timedelta(1)},
    )
    assert len({mark_of(CLAIMED), *(mark_of(with_flat(CLAIMED, **change)) for change in changes)}) == 5
    assert mark_of(replace(CLAIMED, updated_at=NOW + timedelta(1))) == mark_of(CLAIMED)


def test_heartbeat_does_not_count_for_a_holder_that_renews_a_field_of_its_own() -> None:
    """A Node process with the same instance id renews the heartbeat of every claim under that id."""
    assert mark_of(with_flat(CLAIMED, last_heartbeat=NOW + timedelta(1))) == mark_of(CLAIMED)
    of_an_older_release = with_flat(CLAIMED, claim_token=f"us:{round(NOW.timestamp() * 1000)}:0123456789ab")
    for job in (FOREIGN, of_an_older_release):
        assert mark_of(with_flat(job, last_heartbeat=NOW + timedelta(1))) != mark_of(job)


@pytest.mark.parametrize("now", [NOW - timedelta(days=400), NOW, NOW + timedelta(days=400)])
def test_of_a_claim_of_ours_no_date_is_asked(now: datetime) -> None:
    assert protected_for(CLAIMED, now, 1800.0) == protected_for(CLAIMED, now, None) == -math.inf
    assert not is_stale(CLAIMED, now)
    assert not is_stale(with_flat(CLAIMED, last_heartbeat=None), now)


def test_foreign_claim_is_protected_by_its_age_and_for_ever_where_there_is_no_limit() -> None:
    assert protected_for(FOREIGN, NOW + timedelta(seconds=800), 1800.0) == 1000.0
    assert protected_for(FOREIGN, NOW + timedelta(seconds=1900), 1800.0) == -100.0
    assert protected_for(FOREIGN, NOW + timedelta(days=1000), None) == math.inf
    # Without the date of its claim it is as old as its last change.
    assert protected_for(with_flat(FOREIGN, locked_at=None), NOW + timedelta(seconds=800), 1800.0) == 1000.0


def test_foreign_claim_is_stale_without_a_heartbeat_or_with_one_older_than_its_lease() -> None:
    assert not is_stale(FOREIGN, NOW + timedelta(seconds=90))
    assert is_stale(FOREIGN, NOW + timedelta(seconds=91))
    assert is_stale(with_flat(FOREIGN, last_heartbeat=None), NOW)


def test_first_rescue_makes_due_at_once_in_the_old_place_and_later_ones_back_off() -> None:
    first = after(CLAIMED)
    assert (first.status, first.rescues, first.next_run_at) == (JobStatus.PENDING, 1, CLAIMED.next_run_at)
    assert after(replace(CLAIMED, next_run_at=NOW + timedelta(days=1))).next_run_at == NOW
    waits = [after(replace(CLAIMED, rescues=rescues)).next_run_at - NOW for rescues in (1, 2)]
    assert waits == [timedelta(seconds=4), timedelta(seconds=8)]


def test_above_the_limit_it_has_failed_with_no_failure_counted() -> None:
    dead = replace(CLAIMED, rescues=3, fail_count=1)
    rescue = decide_rescue(dead, NOW, POLICY)
    left = applied(dead, rescue.transition)
    assert isinstance(rescue.error, DiedTooOftenError)
    assert (left.status, left.fail_count, left.rescues) == (JobStatus.FAILED, 1, 0)
    assert left.fail_reason == left.errors[-1]["error"] == "died 4 times while running"
    assert left.claim is None


def test_limit_of_the_job_itself_comes_first() -> None:
    assert after(with_flat(CLAIMED, max_rescues=0)).fail_reason == "died 1 time while running"
    assert after(with_flat(CLAIMED, max_rescues=9, rescues=8)).status is JobStatus.PENDING


def test_schedule_above_the_rescue_limit_goes_on_unless_on_exhausted_is_fail() -> None:
    schedule = with_flat(CLAIMED, rescues=3, fail_count=1, repeat_interval="0 * * * *")
    left = after(schedule)
    assert (left.status, left.next_run_at) == (JobStatus.PENDING, NOW + timedelta(hours=1))
    assert (left.rescues, left.fail_count, left.fail_reason) == (0, 0, "died 4 times while running")
    assert after(with_flat(schedule, on_exhausted="fail")).status is JobStatus.FAILED


def test_schedule_that_cannot_be_understood_ends_above_the_limit_with_that_reason() -> None:
    rescue = decide_rescue(with_flat(CLAIMED, rescues=3, repeat_interval="whenever"), NOW, POLICY)
    assert isinstance(rescue.error, InvalidCronError)
    assert rescue.transition.set["status"] is JobStatus.FAILED
