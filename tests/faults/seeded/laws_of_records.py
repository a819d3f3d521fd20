"""What handlers, clients and listeners may have written down, beside what the server did."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Final

from bson import ObjectId

from .evidence import NOBODY, Evidence, Run, Step
from .history import Document
from .records import Told

HARD_BOUND: Final = 2.0
STANDS_STILL: Final = timedelta(seconds=90)

ENQUEUE: Final = ("enqueue", "delayed", "unique", "many", "transaction", "schedule", "poison")

# Which step needs which word of a client.
BY_HAND: Final = {
    "cancel": "cancel",
    "request_cancel": "cancel",
    "retry_again": "retry",
    "reschedule": "reschedule",
    "delete": "delete",
}

EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "complete": ("JobCompleted",),
    "go_on": ("JobCompleted",),
    "retry": ("JobFailed",),
    "fail": ("JobFailed",),
    "give_up": ("JobFailed",),
    "exhausted": ("ScheduleExhausted", "JobFailed"),
    "cancel": ("JobCancelled",),
    "cancel_claimed": ("JobCancelled",),
    "retry_again": ("JobRetried",),
    "delete": ("JobDeleted",),
}
TOLD: Final = frozenset(event for events in EVENTS.values() for event in events)

OF_A_JOB: Final = frozenset({"JobDeleted", "JobRetried", "JobCancelled"})
"""Events that do not tell of an attempt."""


# --- Runs ---


def each_run_has_the_claim_and_the_job_that_it_was_given(evidence: Evidence) -> Iterator[str]:
    claims = {(step.job, step.attempt): step.after for step in evidence.steps if step.name == "claim"}
    for key, run in evidence.runs.items():
        claim = claims.get(key)
        if claim is None:
            yield f"without a claim: {run}"
            continue
        seen = (claim["failCount"], claim["data"]["marker"], claim.get("rescues", 0), claim.get("rev", 0))
        if (claim["claimedBy"], seen) != (run.who, run.seen) or run.started_at < claim["lockedAt"]:
            yield f"{run} {claim}"


def runs_of_one_job_do_not_overlap(evidence: Evidence) -> Iterator[str]:
    by_job: dict[ObjectId, list[Run]] = defaultdict(list)
    for run in evidence.runs.values():
        by_job[run.job].append(run)
    for runs in by_job.values():
        for earlier, later in pairwise(sorted(runs, key=lambda run: run.start)):
            if later.start < earlier.end or later.attempt <= earlier.attempt:
                yield f"{earlier} {later}"


# --- What clients asked for ---


def nothing_is_done_by_hand_that_nobody_asked_for(evidence: Evidence) -> Iterator[str]:
    asked = {(told.what, told.job) for told in evidence.played.told}
    for step in evidence.steps:
        what = BY_HAND.get(step.name)
        if what is not None and (what, step.job) not in asked:
            yield str(step)


def each_enqueue_is_answered_truly(evidence: Evidence) -> Iterator[str]:
    made: dict[str, list[Document]] = defaultdict(list)
    for step in evidence.steps:
        if step.name == "insert":
            made[step.after["data"]["marker"]].append(step.after)
    by_id = {step.job: step.after for step in evidence.steps if step.name == "insert"}
    for told in evidence.played.told:
        if told.what in ENQUEUE:
            mine = made.pop(told.marker, [])
            if len(mine) > (told.answer != "no"):
                yield f"{told} made {mine}"
            if told.answer == "yes" and not _is_right(told, mine, by_id.get(told.job or NOBODY)):
                yield f"not what was asked for: {told} made {mine}"
    if made:
        yield f"nobody asked for these: {dict(made)}"


def _is_right(told: Told, mine: list[Document], answered: Document | None) -> bool:
    if answered is None or (answered["name"], answered.get("uniqueKey")) != (told.name, told.key):
        return False
    return told.key is not None or [one["_id"] for one in mine] == [told.job]


# --- What was told ---


def events_tell_what_happened_and_once(evidence: Evidence) -> Iterator[str]:
    happened: Counter[tuple[str, ObjectId, int]] = Counter()
    for step in evidence.steps:
        for event in EVENTS.get(step.name, ()):
            happened[event, step.job, 0 if event in OF_A_JOB else step.attempt] += 1
    told: Counter[tuple[str, ObjectId, int]] = Counter()
    for one in evidence.played.records:
        if one.job is not None and (one.what in TOLD or one.what == "JobStarted"):
            told[one.what, one.job, 0 if one.what in OF_A_JOB else one.attempt] += 1
    for told_of, times in told.items():
        if times > (1 if told_of[0] == "JobStarted" else happened[told_of]):
            yield f"{told_of} {times} times, and it happened {happened[told_of]} times"


def events_tell_the_job_as_it_was_left(evidence: Evidence) -> Iterator[str]:
    left = {(step.job, step.attempt): step.after for step in evidence.steps if step.is_an_end}
    for one in evidence.played.records:
        job = left.get((one.job or NOBODY, one.attempt))
        if one.what in ("JobCompleted", "JobFailed") and job is not None:
            status, fail_count, will_retry = one.detail
            if (status, fail_count) != (job["status"], job["failCount"]) or (will_retry and status == "failed"):
                yield f"{one} {job}"


def whoever_left_in_order_has_told_of_all_that_it_wrote(evidence: Evidence) -> Iterator[str]:
    """As far as nobody can have overwritten the receipt."""
    told = {(one.what, one.job, one.attempt) for one in evidence.played.records}
    last = {step.job: step for step in evidence.steps}
    played = evidence.played
    for step in last.values():
        if step.name in ("complete", "fail") and not _may_be_untold(step, evidence):
            event = "JobCompleted" if step.name == "complete" else "JobFailed"
            if (event, step.job, step.attempt) not in told:
                yield f"{event} of {step}; unfinished were {played.unfinished}"


def _may_be_untold(step: Step, evidence: Evidence) -> bool:
    return step.before["claimedBy"] in evidence.played.broken or step.job in evidence.played.unfinished


# --- The end ---


def all_that_can_end_has_ended(evidence: Evidence) -> Iterator[str]:
    """But for schedules, and these go on."""
    assert evidence.played.ended_at is not None
    last = {step.job: step for step in evidence.steps}
    for step in last.values():
        job = step.after
        if not job or job["status"] in ("completed", "failed", "cancelled"):
            continue
        is_schedule = job["status"] == "pending" and "repeatInterval" in job
        if not is_schedule or job["nextRunAt"] < evidence.played.ended_at - STANDS_STILL:
            yield str(step)


def schedulers_end_within_their_bound(evidence: Evidence) -> Iterator[str]:
    for who, how, asked, left in evidence.played.left:
        options = evidence.played.options[who]
        bound = {
            "crash": HARD_BOUND,
            "cut": HARD_BOUND + options["cleanup_timeout"],
            "drain": HARD_BOUND + options["cleanup_timeout"] + options["shutdown_timeout"],
        }
        if left - asked > bound[how]:
            yield f"{who} was asked to {how} and took {left - asked} seconds: {options}"


LAWS: Final = (
    each_run_has_the_claim_and_the_job_that_it_was_given,
    runs_of_one_job_do_not_overlap,
    nothing_is_done_by_hand_that_nobody_asked_for,
    each_enqueue_is_answered_truly,
    events_tell_what_happened_and_once,
    events_tell_the_job_as_it_was_left,
    whoever_left_in_order_has_told_of_all_that_it_wrote,
    all_that_can_end_has_ended,
    schedulers_end_within_their_bound,
)
