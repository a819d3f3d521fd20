"""The model is of the code: what it takes for granted of each write stands in the library's own transitions.

A condition that is taken out of the code fails here; that each of them is needed is shown in `test_protocol.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from bson import ObjectId

from tests.support.jobs_in_memory import with_flat
from trio_monque.jobs import claim_stamps_and_fences as fences
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import ClaimStamp
from trio_monque.jobs.claimable import claimable, pins
from trio_monque.jobs.conditional_write import OneOf, Transition, applied
from trio_monque.jobs.error_history import Failure
from trio_monque.jobs.job import Job, JobStatus, value_at
from trio_monque.jobs.job_parts import JobClaim, Schedule
from trio_monque.store.jobs.job_json import NAMES

from .rules import ALL_OF_THE_FENCE, ENDS_THAT_OBEY, PINS
from .state import Document

NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER: Final = NOW + timedelta(hours=1)
STAMP: Final = ClaimStamp.new("A", NOW, 30.0, "random")
FAILURE: Final = Failure("it failed")

PENDING: Final = Job(
    id=ObjectId(), name="job", data=None, status=JobStatus.PENDING, next_run_at=NOW, created_at=NOW, updated_at=NOW
)
CLAIMED: Final = applied(PENDING, transitions.claim(["job"], NOW, STAMP))

# The ends of a claim, by the names that they have in the model.
ENDS: Final[Mapping[str, Transition]] = {
    "complete": transitions.complete(CLAIMED, NOW),
    "go on": transitions.go_on(CLAIMED, NOW, LATER),
    "go on, exhausted": transitions.go_on(CLAIMED, NOW, LATER, FAILURE),
    "fail": transitions.fail(CLAIMED, NOW, FAILURE),
    "retry": transitions.retry(CLAIMED, NOW, FAILURE, LATER),
    "release": transitions.release(CLAIMED, NOW),
    "disown": transitions.release_all(STAMP, NOW),
    "rescue": transitions.rescue(CLAIMED, NOW, NOW),
    "give up": transitions.give_up(CLAIMED, NOW, FAILURE),
    "cancel": transitions.cancel_claimed(CLAIMED, NOW),
}

# To the protocol a retry without a failure, and the next occurrence of a schedule: tests/model plays both.
NOT_IN_THE_MODEL: Final = {"snooze", "run_again"}

# A rescue, at and above the limit, of a one-off job and of a schedule.
OF_THE_DEAD: Final[Mapping[str, Callable[[Job], Transition]]] = {
    "rescue": lambda job: transitions.rescue(job, NOW, NOW),
    "give up": lambda job: transitions.give_up(job, NOW, FAILURE),
    "go on": lambda job: transitions.go_on_after_deaths(job, NOW, LATER, FAILURE),
}
# The model's `last_heartbeat` is what only the holder writes. A holder of an older release has no field of its own.
OF_AN_OLDER_RELEASE: Final = with_flat(CLAIMED, claim_token=f"A:{round(NOW.timestamp() * 1000)}:0123456789ab")
SIGNS_OF_LIFE: Final = ((CLAIMED, "claim.renewed_at"), (OF_AN_OLDER_RELEASE, "claim.last_heartbeat"))
# What the model names without the part of the job that it is in.
FENCE: Final = {NAMES[name] for name in ALL_OF_THE_FENCE}
PINNED: Final = {NAMES[name] for name in PINS}
OF_ANY_DEAD: Final = pytest.mark.parametrize("name", OF_THE_DEAD)

BY_NAME: Final = pytest.mark.parametrize("name", ENDS)


def test_the_fence_is_the_models() -> None:
    assert set(fences.fence(CLAIMED)) == {"id", *FENCE}
    assert set(fences.stamp_fence(STAMP)) == FENCE


def test_a_claim_is_ours_only_if_its_token_embeds_its_holder_and_moment() -> None:
    assert fences.is_ours(CLAIMED)
    changes: tuple[dict[str, Any], ...] = ({"claimed_by": "B"}, {"locked_at": LATER}, {"claim_token": None})
    for change in changes:
        assert not fences.is_ours(with_flat(CLAIMED, **change))


def test_the_claim_asks_for_what_the_models_asks_for() -> None:
    pinned = pins(PENDING)
    guard = transitions.claim(["job"], NOW, STAMP, pinned).guard
    assert set(pinned) == PINNED
    assert set(guard) == {"name", "status", "next_run_at", "claim.by", *PINNED}
    assert set(claimable(["job"], NOW)) == {"name", "status", "next_run_at", "claim.by"}


def test_the_claim_writes_what_the_models_writes() -> None:
    claim = transitions.claim(["job"], NOW, STAMP)
    assert claim.set["status"] is JobStatus.PROCESSING
    assert claim.added == {"attempts": 1}
    assert claim.set["claim"] == JobClaim(
        by=STAMP.claimed_by,
        since=STAMP.locked_at,
        token=STAMP.claim_token,
        last_heartbeat=STAMP.locked_at,
        heartbeat_interval=STAMP.heartbeat_interval,
        renewed_at=STAMP.locked_at,
        cancel_requested_at=None,
    )


@BY_NAME
def test_each_end_of_a_claim_is_fenced(name: str) -> None:
    guard = ENDS[name].guard
    whole = fences.stamp_fence(STAMP) if name == "disown" else fences.fence(CLAIMED)
    assert {field: guard.get(field) for field in whole} == whole


@BY_NAME
def test_each_end_of_a_claim_clears_it_and_the_request_that_was_meant_for_it(name: str) -> None:
    assert "claim" in ENDS[name].cleared


@BY_NAME
def test_the_ends_that_obey_a_request_are_the_models(name: str) -> None:
    end = ENDS[name]
    obeys = "claim.cancel_requested_at" in end.guard and end.guard["claim.cancel_requested_at"] is None
    assert obeys == (name in ENDS_THAT_OBEY)
    if obeys and name != "disown":  # A claim that this instance does not know is left to the reaper, which cancels it.
        assert end.otherwise is not None
        assert end.otherwise.set["status"] is JobStatus.CANCELLED


def test_the_model_knows_every_end_of_a_claim_in_the_table() -> None:
    ended = {row.name for row in transitions.TABLE if row.source is JobStatus.PROCESSING is not row.target}
    known = {"complete", "go_on", "retry", "release", "rescue", "give_up", "fail", "cancel_claimed"}
    assert ended == known | NOT_IN_THE_MODEL
    assert set(ENDS) >= ENDS_THAT_OBEY
    snooze = transitions.snooze(CLAIMED, NOW, LATER)
    assert snooze.guard == ENDS["retry"].guard
    assert snooze.otherwise == ENDS["retry"].otherwise


def test_what_depends_on_the_schedule_is_fenced_on_it() -> None:
    recurring = replace(CLAIMED, schedule=Schedule(cron="0 * * * *"))
    ends = {
        "go on": transitions.go_on(recurring, NOW, LATER),
        "go on, exhausted": transitions.go_on(recurring, NOW, LATER, FAILURE),
        "fail": transitions.fail(recurring, NOW, FAILURE),
        "give up": transitions.give_up(recurring, NOW, FAILURE),
    }
    for name in ends:
        assert {"schedule.cron", "schedule.timezone"} <= set(ends[name].guard)
    for name in ("complete", "fail", "give up"):  # A one-off job: that it is one.
        assert ENDS[name].guard["schedule.cron"] is None


@OF_ANY_DEAD
def test_a_rescue_is_conditional_on_all_four_that_were_observed(name: str) -> None:
    for claimed, sign_of_life in SIGNS_OF_LIFE:
        assert {"claim.by", "claim.since", "claim.token", sign_of_life} <= set(OF_THE_DEAD[name](claimed).guard)


@OF_ANY_DEAD
def test_a_rescue_that_cancels_is_conditional_on_the_heartbeat_too(name: str) -> None:
    for claimed, sign_of_life in SIGNS_OF_LIFE:
        otherwise = OF_THE_DEAD[name](claimed).otherwise
        assert otherwise is not None
        assert otherwise.guard[sign_of_life] == value_at(claimed, sign_of_life)


@OF_ANY_DEAD
def test_the_rescue_of_a_foreign_claim_does_not_obey_a_stale_request_and_does_not_keep_it(name: str) -> None:
    foreign = OF_THE_DEAD[name](with_flat(CLAIMED, claimed_by="Node"))
    assert "claim.cancel_requested_at" not in foreign.guard
    assert "claim" in foreign.cleared
    assert foreign.otherwise is None


def test_a_rescue_is_counted_apart_from_failures() -> None:
    assert ENDS["rescue"].set["rescues"] == CLAIMED.rescues + 1
    assert ENDS["rescue"].guard["rescues"] == OneOf((None, 0))
    assert "fail_count" not in ENDS["rescue"].set
    assert ENDS["rescue"].added == {}
    assert ENDS["give up"].added == OF_THE_DEAD["go on"](CLAIMED).added == {}
    assert "fail_count" not in ENDS["give up"].set
    assert "rescues" in ENDS["give up"].cleared
    assert "rescues" in OF_THE_DEAD["go on"](CLAIMED).cleared
    assert ENDS["release"].added == {}
    assert ENDS["retry"].added == {"fail_count": 1}


def test_a_request_is_made_under_the_fence_that_was_read() -> None:
    guard = transitions.request_cancel(CLAIMED, NOW).guard
    assert guard == {**fences.fence(CLAIMED), "claim.cancel_requested_at": None}


def test_every_edit_of_a_pending_job_is_counted() -> None:
    edits = (
        transitions.reschedule(PENDING.id, NOW, LATER),
        transitions.update_pending(PENDING, NOW, LATER, data=1),
        transitions.update_claimed(CLAIMED, NOW, schedule=Schedule(cron="0 * * * *")),
        transitions.retry_again(PENDING.id, NOW),
    )
    for edit in edits:
        assert edit.added == {"internals.rev": 1}


def test_retrying_by_hand_clears_the_holder() -> None:
    again = transitions.retry_again(PENDING.id, NOW)
    assert again.guard["status"] == OneOf((JobStatus.FAILED, JobStatus.CANCELLED))
    assert "claim" in again.cleared


def test_the_model_names_its_fields_as_the_library_does() -> None:
    own = {"due", "schedule", "claims", "cancel_requested"}  # Shorter there, or ghosts.
    assert set(Document._fields) - own <= NAMES.keys()
