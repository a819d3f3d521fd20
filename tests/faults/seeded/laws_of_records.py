"""What handlers, clients and listeners may have written down, beside what the server did."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Final

from bson import ObjectId

from .evidence import NO_JOB, Evidence, Run, Step
from .history import Document
from .records import Request

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
REPORTED: Final = frozenset(event for events in EVENTS.values() for event in events)

OF_A_JOB: Final = frozenset({"JobDeleted", "JobRetried", "JobCancelled"})
"""Events that do not belong to an attempt."""


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


def changes_by_hand_were_asked_for(evidence: Evidence) -> Iterator[str]:
    asked = {(request.what, request.job) for request in evidence.played.requests}
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
    for request in evidence.played.requests:
        if request.what in ENQUEUE:
            mine = made.pop(request.marker, [])
            if len(mine) > (request.answer != "no"):
                yield f"{request} made {mine}"
            if request.answer == "yes" and not _is_right(request, mine, by_id.get(request.job or NO_JOB)):
                yield f"not what was asked for: {request} made {mine}"
    if made:
        yield f"nobody asked for these: {dict(made)}"


def _is_right(request: Request, mine: list[Document], answered: Document | None) -> bool:
    if answered is None or (answered["name"], answered.get("uniqueKey")) != (request.name, request.key):
        return False
    return request.key is not None or [one["_id"] for one in mine] == [request.job]


# --- What was reported ---


def events_tell_what_happened_and_once(evidence: Evidence) -> Iterator[str]:
    happened: Counter[tuple[str, ObjectId, int]] = Counter()
    for step in evidence.steps:
        for event in EVENTS.get(step.name, ()):
            happened[event, step.job, 0 if event in OF_A_JOB else step.attempt] += 1
    reported: Counter[tuple[str, ObjectId, int]] = Counter()
    for one in evidence.played.records:
        if one.job is not None and (one.what in REPORTED or one.what == "JobStarted"):
            reported[one.what, one.job, 0 if one.what in OF_A_JOB else one.attempt] += 1
    for key, times in reported.items():
        if times > (1 if key[0] == "JobStarted" else happened[key]):
            yield f"{key} {times} times, and it happened {happened[key]} times"


def events_tell_the_job_as_it_was_left(evidence: Evidence) -> Iterator[str]:
    left = {(step.job, step.attempt): step.after for step in evidence.steps if step.is_an_end}
    for one in evidence.played.records:
        job = left.get((one.job or NO_JOB, one.attempt))
        if one.what in ("JobCompleted", "JobFailed") and job is not None:
            status, fail_count, will_retry = one.detail
            if (status, fail_count) != (job["status"], job["failCount"]) or (will_retry and status == "failed"):
                yield f"{one} {job}"


def clean_shutdown_has_reported_all_settlements(evidence: Evidence) -> Iterator[str]:
    """As far as no later write can have overwritten the receipt."""
    reported = {(one.what, one.job, one.attempt) for one in evidence.played.records}
    last = {step.job: step for step in evidence.steps}
    played = evidence.played
    for step in last.values():
        if step.name in ("complete", "fail") and not _may_lack_its_report(step, evidence):
            event = "JobCompleted" if step.name == "complete" else "JobFailed"
            if (event, step.job, step.attempt) not in reported:
                yield f"{event} of {step}; unfinished were {played.unfinished}"


def _may_lack_its_report(step: Step, evidence: Evidence) -> bool:
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
    changes_by_hand_were_asked_for,
    each_enqueue_is_answered_truly,
    events_tell_what_happened_and_once,
    events_tell_the_job_as_it_was_left,
    clean_shutdown_has_reported_all_settlements,
    all_that_can_end_has_ended,
    schedulers_end_within_their_bound,
)
