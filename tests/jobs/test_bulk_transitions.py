"""The transitions of many jobs: those of single jobs, with the whole selection in the guard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from bson import ObjectId
from hypothesis import given
from hypothesis import strategies as st

from trio_monque.jobs import transitions
from trio_monque.jobs.bulk_changes import cancel_selected, retry_selected, spread_over
from trio_monque.jobs.conditional_write import Containing, OneOf, Within, applied
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.jobs.job_parts import JobInternals
from trio_monque.jobs.job_selector import JobSelector

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=7)
SELECTOR = JobSelector(name=["a", "b"], older_than=LATER, newer_than=NOW, fail_reason="why")
ASKED = {"created_at": Within(above=NOW, below=LATER), "fail_reason": Containing("why")}


def job_of(status: JobStatus) -> Job:
    return Job(
        id=ObjectId(),
        name="a",
        next_run_at=NOW,
        created_at=NOW,
        updated_at=NOW,
        status=status,
        fail_count=3,
        fail_reason="why",
        rescues=2,
        internals=JobInternals(rev=4),
    )


def test_bulk_cancel_is_the_single_one_with_the_whole_selection_in_its_guard() -> None:
    job = job_of(JobStatus.PENDING)
    change = cancel_selected(SELECTOR, (job,), LATER)
    assert change.transition.guard == {"name": OneOf(("a", "b")), "status": JobStatus.PENDING, **ASKED}
    assert applied(job, change.transition) == applied(job, transitions.cancel_pending(job.id, LATER))


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELLED])
def test_bulk_retry_is_the_single_one_at_its_own_moment(status: JobStatus) -> None:
    job = job_of(status)
    change = retry_selected(SELECTOR, job, NOW, LATER)
    assert change.jobs == (job,)
    ended = OneOf((JobStatus.FAILED, JobStatus.CANCELLED))
    assert change.transition.guard == {"name": "a", "status": ended, "child.scope": None, **ASKED}
    single = applied(job, transitions.retry_again(job.id, NOW))
    after = applied(job, change.transition)
    assert after.next_run_at == LATER
    assert (after.fail_count, after.fail_reason, after.rescues, after.internals.rev) == (0, None, 0, 5)
    assert applied(after, transitions.reschedule(job.id, NOW, NOW)).updated_at == single.updated_at
    only = retry_selected(JobSelector(status=[status, "completed"]), job, NOW, LATER)
    assert only.transition.guard == {"name": "a", "status": status, "child.scope": None}


@pytest.mark.parametrize("selector", [JobSelector(), JobSelector(status=list(JobStatus)), JobSelector(name="a")])
def test_guard_of_many_has_every_condition_of_the_single_one_but_the_id(selector: JobSelector) -> None:
    job = job_of(JobStatus.PENDING)
    pairs = [
        (transitions.cancel_pending(job.id, NOW), cancel_selected(selector, (job,), NOW)),
        (transitions.retry_again(job.id, NOW), retry_selected(selector, job, NOW, LATER)),
    ]
    for single, many in pairs:
        assert single.guard.keys() - {"id"} <= many.transition.guard.keys()
        assert single.guard["status"] == many.transition.guard["status"]


def test_selector_that_asks_for_nothing_is_everything_and_one_that_asks_for_anything_is_not() -> None:
    assert JobSelector().is_everything
    assert JobSelector(name=None, status=None).is_everything
    assert JobSelector().guard(JobSelector().among(tuple(JobStatus))) == {}
    for selection in ({"name": "a"}, {"status": list(JobStatus)}, {"older_than": NOW}, {"fail_reason_prefix": "x"}):
        selector = JobSelector(**selection)
        assert not selector.is_everything
        assert selector.guard(selector.among(tuple(JobStatus))) != {}


@given(st.floats(0, 1e6), st.integers(1, 200), st.integers(0, 2**32).map(Random))
def test_moments_are_within_the_window_in_order_and_one_in_each_share(
    seconds: float, count: int, random: Random
) -> None:
    moments = spread_over(NOW, seconds, count, random)
    assert len(moments) == count
    assert moments == sorted(moments)
    share = seconds / count
    for place, moment in enumerate(moments):
        assert moment.microsecond % 1000 == 0
        assert timedelta(0) <= moment - NOW <= timedelta(seconds=seconds)
        begins = NOW + timedelta(seconds=place * share)
        assert abs(moment - begins) <= timedelta(seconds=share, milliseconds=1)
