"""Of each rule of the checker: a forgery that it refuses, beside an evidence that it accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import pytest

from . import promises
from .history import Change
from .promises import RULES, Evidence, broken, nothing_is_run_in_vain, renewed_claims_are_kept
from .records import Record

LEASE: Final = 1.2
START: Final = datetime(2026, 1, 1, tzinfo=UTC)

Document = Mapping[str, Any]
Story = list[tuple[float, Document | None]]
"""What a document is, from which second on."""

PENDING: Final = {
    "name": "mixed",
    "status": "pending",
    "data": {"n": 1},
    "nextRunAt": START,
    "uniqueKey": "key",
}
COMPLETED: Final = {**PENDING, "status": "completed", "attempts": 1}


def held(attempt: int, by: str = "one", beat: float = 0.0, **fields: Any) -> Document:
    return {
        **PENDING,
        "status": "processing",
        "attempts": attempt,
        "claimedBy": by,
        "lockedAt": START,
        "claimToken": f"{by}-{attempt}",
        "lastHeartbeat": START + timedelta(seconds=beat),
        "heartbeatInterval": 400,
        **fields,
    }


def history(**stories: Story) -> Sequence[Change]:
    changes = []
    for job, story in stories.items():
        for (_, before), (at, after) in pairwise([(0.0, None), *story]):
            changes.append(Change(job, START + timedelta(seconds=at), before, after))
    return sorted(changes, key=lambda one: one.at)


def run(start: float, end: float, attempt: int = 1, by: str = "one", outcome: str = "succeeded") -> list[Record]:
    def record(what: str, at: float, detail: str = "") -> Record:
        return Record(by, "a", attempt, what, at, detail)

    return [
        record("start", start, f"{by}-{attempt}"),
        record("passed", (start + end) / 2),
        record("outcome", end, outcome),
        record("end", end),
    ]


def of_test(what: str, at: float, detail: str = "", job: str = "") -> Record:
    return Record("test", job, 0, what, at, detail)


ACKNOWLEDGED: Final = of_test("acknowledged", 0, "1", "a")
RENEWED: Final = Record("one", "a", 1, "renewed", 1.4, "1.3")
REPORTED: Final = Record("one", "a", 1, "reported completed", 3)

ONCE: Final[Story] = [(0, PENDING), (1, held(1)), (2, COMPLETED)]
RESCUED: Final[Story] = [
    (0, PENDING),
    (1, held(1)),
    (3, {**PENDING, "attempts": 1, "rescues": 1}),
    (4, held(2, "two", rescues=1)),
    (5, {**COMPLETED, "attempts": 2}),
]

# A job that was run once; one whose process was killed; one whose process was frozen, and thawed.
PLAIN: Final = Evidence([ACKNOWLEDGED, *run(1, 2), REPORTED], history(a=ONCE), LEASE, 2.4, START)
KILLED: Final = Evidence(
    [ACKNOWLEDGED, run(1, 2)[0], RENEWED, of_test("killed", 1.5, "one"), *run(4, 5, 2, "two")],
    history(a=RESCUED),
    LEASE,
    2.4,
    START,
)
FROZEN: Final = Evidence(
    [
        ACKNOWLEDGED,
        run(1, 9)[0],
        RENEWED,
        of_test("frozen", 1.5, "one"),
        *run(4, 5, 2, "two"),
        of_test("thawed", 6, "one"),
        Record("one", "a", 1, "passed", 6.1),
        Record("one", "a", 1, "cancelled", 6.2, "lost"),
        Record("one", "a", 1, "end", 6.2),
    ],
    history(a=RESCUED),
    LEASE,
    2.4,
    START,
)
# One whose process was frozen between the last look at its claim and the first line of the handler.
CAUGHT: Final = replace(
    FROZEN,
    records=[
        ACKNOWLEDGED,
        of_test("frozen", 1.5, "one"),
        *run(4, 5, 2, "two"),
        of_test("thawed", 6, "one"),
        run(6.05, 9)[0],
        *FROZEN.records[-3:],
    ],
)


@pytest.mark.parametrize("evidence", [PLAIN, KILLED, FROZEN, CAUGHT], ids=["plain", "killed", "frozen", "caught"])
def test_what_kept_its_promises_is_accepted(evidence: Evidence) -> None:
    assert broken(evidence, nothing_is_run_in_vain, renewed_claims_are_kept) == []


def records(evidence: Evidence, *more: Record) -> Evidence:
    """With these as well."""
    return replace(evidence, records=sorted([*evidence.records, *more], key=lambda one: one.at))


def without(evidence: Evidence, *whats: str) -> Evidence:
    return replace(evidence, records=[one for one in evidence.records if one.what not in whats])


def story(evidence: Evidence, **stories: Story) -> Evidence:
    return replace(evidence, changes=history(**stories))


RELEASED: Final = {**PENDING, "attempts": 1}

# What is forged -> the rule that refuses it.
FORGED: Final[Mapping[str, tuple[Evidence, str]]] = {
    "acknowledged, and never stored": (
        records(PLAIN, of_test("acknowledged", 0, "", "b")),
        "acknowledged_jobs_have_ended",
    ),
    "deleted before it ended": (story(PLAIN, a=[(0, PENDING), (1, None)]), "acknowledged_jobs_have_ended"),
    "still pending at the end": (story(without(PLAIN, "start"), a=[(0, PENDING)]), "acknowledged_jobs_have_ended"),
    "a schedule without an occurrence": (
        story(PLAIN, a=[(0, {**PENDING, "repeatInterval": "0 0 29 2 *"})]),
        "acknowledged_jobs_have_ended",
    ),
    "two jobs of one call": (story(PLAIN, a=ONCE, b=[(3, COMPLETED)]), "nothing_was_enqueued_twice"),
    "another's job acknowledged": (
        records(story(PLAIN, a=ONCE, b=[(3, {**COMPLETED, "data": {"n": 2}})]), of_test("acknowledged", 3, "2", "a")),
        "nothing_was_enqueued_twice",
    ),
    "refused, and there": (records(PLAIN, of_test("refused", 0, "1")), "refusals_are_true"),
    "unknown, and there as another": (records(PLAIN, of_test("unknown", 0, "1", "b")), "refusals_are_true"),
    "asked for by nobody": (without(PLAIN, "acknowledged"), "refusals_are_true"),
    "a claim of what was done already": (
        story(PLAIN, a=[(0, COMPLETED), (1, held(1)), (2, COMPLETED)]),
        "claims_are_of_free_jobs",
    ),
    "an attempt that was there before": (
        story(KILLED, a=[*RESCUED[:3], (4, held(1, "two")), (5, COMPLETED)]),
        "claims_are_of_free_jobs",
    ),
    "a token that was there before": (
        story(KILLED, a=[*RESCUED[:3], (4, held(2, claimToken="one-1")), (5, {**COMPLETED, "attempts": 2})]),
        "claims_are_of_free_jobs",
    ),
    "completed by nobody's run": (without(PLAIN, "outcome"), "settlements_are_of_the_claim"),
    "completed although it failed": (
        replace(PLAIN, records=[ACKNOWLEDGED, *run(1, 2, outcome="failed")]),
        "settlements_are_of_the_claim",
    ),
    "a failure that no handler met": (
        story(PLAIN, a=[*ONCE[:2], (2, {**PENDING, "failCount": 1, "attempts": 1})]),
        "settlements_are_of_the_claim",
    ),
    "a failure that was counted twice": (
        story(
            replace(PLAIN, records=[ACKNOWLEDGED, *run(1, 2, outcome="failed")]),
            a=[*ONCE[:2], (2, {**PENDING, "failCount": 2, "attempts": 1})],
        ),
        "settlements_are_of_the_claim",
    ),
    "given back under a run that goes on": (
        story(PLAIN, a=[*ONCE[:2], (2, RELEASED)]),
        "settlements_are_of_the_claim",
    ),
    "a claim over a claim": (
        story(PLAIN, a=[*ONCE[:2], (1.5, held(2, "two")), (2, COMPLETED)]),
        "settlements_are_of_the_claim",
    ),
    "given up for its deaths": (
        story(KILLED, a=[*RESCUED[:2], (3, {**PENDING, "status": "failed", "attempts": 1})]),
        "settlements_are_of_the_claim",
    ),
    "saved by a run that lost its claim": (
        story(KILLED, a=[*RESCUED[:4], (4.5, held(2, "two", rescues=1, saved={"token": "one-1"})), RESCUED[4]]),
        "reports_are_of_the_claim",
    ),
    "renewed after its end": (
        story(PLAIN, a=[*ONCE, (2.5, {**COMPLETED, "lastHeartbeat": START})]),
        "ended_claims_leave_nothing",
    ),
    "renewed by a clock that went back": (
        story(PLAIN, a=[*ONCE[:2], (1.5, held(1, beat=-60)), (2, COMPLETED)]),
        "heartbeats_never_decrease",
    ),
    "run beside another": (records(KILLED, *run(4.5, 4.8, 3, "two")), "runs_do_not_overlap"),
    "run beside one that did not die": (without(KILLED, "killed"), "runs_do_not_overlap"),
    "run beside one that was frozen for less than its lease": (
        records(without(FROZEN, "thawed"), of_test("thawed", 2, "one")),
        "runs_do_not_overlap",
    ),
    "started twice": (records(PLAIN, replace(run(1, 2)[0], process="two", at=2.5)), "runs_do_not_overlap"),
    "a second checkpoint after the thaw": (
        records(FROZEN, Record("one", "a", 1, "passed", 6.15)),
        "thawed_runs_stop",
    ),
    "a second checkpoint after the thaw, of a run that the freeze caught at its first line": (
        records(CAUGHT, Record("one", "a", 1, "passed", 6.15)),
        "thawed_runs_stop",
    ),
    "begun under an old claim, and not the first after the thaw": (
        records(CAUGHT, Record("one", "b", 1, "start", 6.01, "one-b")),
        "runs_do_not_overlap",
    ),
    "taken from the living": (
        story(KILLED, a=[*RESCUED[:2], (2.5, held(1, beat=1.5)), *RESCUED[2:]]),
        "rescues_are_of_the_silent",
    ),
    "rescued too late": (replace(KILLED, rescued_within=1.9), "the_dead_are_rescued_in_time"),
    "never rescued": (
        story(KILLED, a=RESCUED[:2], b=[(9, {**COMPLETED, "data": {"n": 2}, "uniqueKey": "other"})]),
        "the_dead_are_rescued_in_time",
    ),
    "two live jobs with one key": (
        story(PLAIN, a=ONCE, b=[(1.5, {**PENDING, "data": {"n": 2}}), (3, None)]),
        "unique_keys_are_held",
    ),
    "reported twice": (records(PLAIN, REPORTED), "events_are_true"),
    "reported of what was not written": (records(PLAIN, replace(REPORTED, what="reported failed")), "events_are_true"),
    "reported by a run whose claim was taken": (records(KILLED, REPORTED), "events_are_true"),
    "reported as cancelled": (records(PLAIN, of_test("managed", 1, "cancel", "a")), "managed_jobs_are_as_acknowledged"),
    "reported as deleted": (records(PLAIN, of_test("managed", 1, "delete", "a")), "managed_jobs_are_as_acknowledged"),
    "reported as rescheduled": (
        records(PLAIN, of_test("managed", 1, "reschedule", "a")),
        "managed_jobs_are_as_acknowledged",
    ),
    "reported as rescheduled to another time": (
        records(PLAIN, of_test("managed", 1, "reschedule 2026-02-01T00:00:00+00:00", "a")),
        "managed_jobs_are_as_acknowledged",
    ),
    "reported as not rescheduled": (
        records(PLAIN, of_test("not managed", 1, f"reschedule {START.isoformat()}", "a")),
        "managed_jobs_are_as_acknowledged",
    ),
    "reported as not deleted": (
        records(PLAIN, of_test("not managed", 1, "delete", "b")),
        "managed_jobs_are_as_acknowledged",
    ),
    "put off, and lost": (records(PLAIN, of_test("put off", 1, "cancel", "b")), "managed_jobs_are_as_acknowledged"),
    "reported as missing": (records(PLAIN, of_test("missing", 1, "delete", "b")), "managed_jobs_are_as_acknowledged"),
    "done, and to be done again": (
        story(PLAIN, a=[*ONCE[:2], (2, {**RELEASED, "rescues": 1})]),
        "nothing_is_run_in_vain",
    ),
    "written, and reported as lost": (
        records(without(PLAIN, "reported completed"), Record("one", "a", 1, "lost", 3)),
        "nothing_is_run_in_vain",
    ),
    "rescued although its renewals were acknowledged": (
        records(KILLED, Record("one", "a", 1, "renewed", 2.1, "2.0")),
        "renewed_claims_are_kept",
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_forgery_is_refused(what: str) -> None:
    evidence, rule = FORGED[what]
    assert list(getattr(promises, rule)(evidence))


def test_every_rule_refuses_some_forgery() -> None:
    rules = (*RULES, nothing_is_run_in_vain, renewed_claims_are_kept)
    assert {rule for _, rule in FORGED.values()} == {rule.__name__ for rule in rules}


# Why only the machine's standstill is to blame -> what would be refused without it.
STOOD_STILL: Final = ((1.2, 1.9),)
EXCUSED: Final = (
    "done, and to be done again",
    "run beside one that did not die",
    "rescued too late",
)


@pytest.mark.parametrize("what", EXCUSED)
def test_what_a_standstill_of_the_machine_has_done_is_excused_and_what_it_has_not_is_not(what: str) -> None:
    evidence, rule = FORGED[what]
    assert not list(getattr(promises, rule)(replace(evidence, standstills=STOOD_STILL)))
    elsewhere = ((0.1, 0.9), (9.0, 12.0))
    assert list(getattr(promises, rule)(replace(evidence, standstills=elsewhere)))


@pytest.mark.parametrize("what", ["done, and to be done again", "run beside one that did not die"])
def test_standstill_in_which_no_lease_runs_out_excuses_nothing(what: str) -> None:
    evidence, rule = FORGED[what]
    assert list(getattr(promises, rule)(replace(evidence, standstills=((1.2, 1.2 + 0.49 * LEASE),))))
