"""The table, read without a database: what each row asks for, sets and clears."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.jobs_in_memory import LATER, NOW, STAMP, claimed, pending, with_flat
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import is_ours
from trio_monque.jobs.claimable import pins
from trio_monque.jobs.conditional_write import AtMost, OneOf, Transition, applied
from trio_monque.jobs.error_history import Failure
from trio_monque.jobs.job import JobStatus
from trio_monque.jobs.job_parts import JobClaim

ENDS = {
    "complete": lambda job: transitions.complete(job, LATER),
    "go_on": lambda job: transitions.go_on(job, LATER, LATER),
    "go_on after exhaustion": lambda job: transitions.go_on(job, LATER, LATER, Failure("why")),
    "retry": lambda job: transitions.retry(job, LATER, Failure("why"), LATER),
    "fail": lambda job: transitions.fail(job, LATER, Failure("why")),
    "release": lambda job: transitions.release(job, LATER),
    "cancel": lambda job: transitions.cancel_claimed(job, LATER),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_of_a_claim_is_fenced_by_all_five_and_clears_the_claim(end: str) -> None:
    job = claimed()
    transition: Transition = ENDS[end](job)
    assert {
        "id": job.id,
        "status": JobStatus.PROCESSING,
        "claim.by": "host-1-abc",
        "claim.since": NOW,
        "claim.token": STAMP.claim_token,
    }.items() <= transition.guard.items()
    after = applied(job, transition)
    assert after.claim is None
    assert after.updated_at == LATER
    assert after.attempts == 1


@pytest.mark.parametrize("end", sorted(ENDS.keys() - {"complete", "cancel"}))
def test_every_end_but_completion_yields_to_a_requested_cancellation(end: str) -> None:
    transition: Transition = ENDS[end](claimed())
    assert transition.guard["claim.cancel_requested_at"] is None
    assert "claim.cancel_requested_at" in transition.guard
    assert transition.otherwise is not None
    assert transition.otherwise.set["status"] is JobStatus.CANCELLED


def test_completion_of_a_one_off_wins_over_a_requested_cancellation() -> None:
    assert "claim.cancel_requested_at" not in transitions.complete(claimed(), LATER).guard


def test_claim_asks_for_everything_that_makes_a_job_claimable() -> None:
    transition = transitions.claim(["a", "b"], NOW, STAMP)
    assert transition.guard == {
        "name": OneOf(("a", "b")),
        "status": JobStatus.PENDING,
        "next_run_at": AtMost(NOW),
        "claim.by": None,
    }


def test_claim_counts_the_attempt_and_forgets_an_old_request() -> None:
    job = pending(attempts=4, cancel_requested_at=NOW, claim_token="an old one", receipt="kept", rescues=1)
    after = applied(job, transitions.claim(["greet"], NOW, STAMP))
    assert after.status is JobStatus.PROCESSING
    assert after.claim == JobClaim(
        by="host-1-abc",
        since=NOW,
        token=STAMP.claim_token,
        last_heartbeat=NOW,
        heartbeat_interval=30.0,
        renewed_at=NOW,
        cancel_requested_at=None,
    )
    assert (after.attempts, after.internals.receipt, after.rescues) == (5, "kept", 1)


def test_pins_take_absent_counters_for_zero() -> None:
    assert pins(pending()) == dict.fromkeys(("attempts", "fail_count", "rescues", "internals.rev"), OneOf((None, 0)))
    assert pins(pending(attempts=2, fail_count=1, rescues=4, rev=3)) == {
        "attempts": 2,
        "fail_count": 1,
        "rescues": 4,
        "internals.rev": 3,
    }


def test_claim_is_ours_only_while_its_token_belongs_to_its_owner_and_lock() -> None:
    job = claimed()
    assert is_ours(job)
    assert not is_ours(pending())
    # As Node leaves it behind: claimed anew, with our token in place.
    for fields in ({"claimed_by": "node-1"}, {"locked_at": LATER}, {"claim_token": None}):
        assert not is_ours(with_flat(job, **fields))


def test_retry_counts_the_failure_and_puts_the_job_off() -> None:
    job = claimed(fail_count=2, rescues=2)
    after = applied(job, transitions.retry(job, LATER, Failure("why"), LATER + timedelta(seconds=8)))
    assert (after.status, after.fail_count, after.fail_reason) == (JobStatus.PENDING, 3, "why")
    assert after.next_run_at == LATER + timedelta(seconds=8)
    assert (after.rescues, after.started_at, after.finished_at) == (0, NOW, LATER)


def test_release_counts_nothing_and_leaves_the_job_due_as_it_was() -> None:
    job = claimed(fail_count=2, fail_reason="before", rescues=2)
    after = applied(job, transitions.release(job, LATER))
    assert (after.status, after.next_run_at) == (JobStatus.PENDING, NOW)
    assert (after.fail_count, after.fail_reason, after.rescues) == (2, "before", 2)


def test_next_occurrence_is_fenced_on_the_schedule_that_it_was_computed_from() -> None:
    job = claimed(repeat_interval="0 9 * * *", timezone="Europe/Berlin", fail_count=3, fail_reason="before")
    transition = transitions.go_on(job, LATER, LATER)
    assert (transition.guard["schedule.cron"], transition.guard["schedule.timezone"]) == ("0 9 * * *", "Europe/Berlin")
    after = applied(job, transition)
    assert (after.status, after.fail_count, after.fail_reason) == (JobStatus.PENDING, 0, None)
    exhausted = applied(job, transitions.go_on(job, LATER, LATER, Failure("why")))
    assert (exhausted.fail_count, exhausted.fail_reason) == (0, "why")


def test_release_of_a_lost_claim_goes_by_the_whole_fence_without_ids() -> None:
    guard = transitions.release_all(STAMP, LATER).guard
    assert guard.keys() == {"status", "claim.by", "claim.since", "claim.token", "claim.cancel_requested_at"}
