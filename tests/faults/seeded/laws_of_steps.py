"""What the server may do to a job, one change at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from bson import ObjectId

from .evidence import Evidence, Run, Step
from .records import LIVE

CLAIM: Final = ("claimedBy", "lockedAt", "lastHeartbeat", "heartbeatInterval", "claimToken")

CLOSE: Final = timedelta(milliseconds=10)
"""Heartbeats grow by a millisecond where time does not, and the jobs' time has no shorter moments."""

SOON: Final = timedelta(seconds=1)
"""After a claim: what befalls the claim itself."""

BY_ITSELF: Final = ("dies", "breaks", "has left")

# How a run must have ended that is settled so.
OUTCOMES: Final[Mapping[str, tuple[str, ...]]] = {
    "complete": ("returned",),
    "go_on": ("returned",),
    "retry": ("raised", "cancelled timeout"),
    "fail": ("raised", "cancelled timeout"),
    "exhausted": ("raised", "cancelled timeout"),
    "snooze": ("raised Snooze",),
}


# --- What a document may look like ---


def jobs_begin_as_new_ones(evidence: Evidence) -> Iterator[str]:
    for step in evidence.steps:
        new = step.after
        if step.name == "insert" and (new["status"] != "pending" or "claimedBy" in new or new["failCount"]):
            yield str(step)
        if " to " in step.name:
            yield f"there is no such change: {step}"


def claims_are_whole_and_of_what_is_due(evidence: Evidence) -> Iterator[str]:
    tokens: set[tuple[ObjectId, str]] = set()
    for step in evidence.steps:
        if step.name != "claim":
            continue
        after = step.after
        if any(field not in after for field in CLAIM) or "cancelRequestedAt" in after:
            yield f"not whole: {step}"
        if after["nextRunAt"] > after["lockedAt"]:
            yield f"not due: {step}"
        if (step.job, after["claimToken"]) in tokens:
            yield f"a token was used twice: {step}"
        tokens.add((step.job, after["claimToken"]))


def each_claim_is_one_attempt(evidence: Evidence) -> Iterator[str]:
    for step in evidence.steps:
        if step.change.before is not None and step.change.after is not None:
            more = step.after.get("attempts", 0) - step.before.get("attempts", 0)
            if more != (step.name == "claim"):
                yield str(step)


def claims_do_not_change_while_they_are_held(evidence: Evidence) -> Iterator[str]:
    for step in evidence.steps:
        if step.name not in ("renew", "request_cancel"):
            continue
        before, after = step.before, step.after
        if any(before[field] != after[field] for field in CLAIM if field != "lastHeartbeat"):
            yield f"another claim: {step}"
        if after["lastHeartbeat"] < before["lastHeartbeat"]:
            yield f"a heartbeat went back: {step}"
        if "cancelRequestedAt" in before and before["cancelRequestedAt"] != after.get("cancelRequestedAt"):
            yield f"a request to cancel was wiped: {step}"


def nothing_of_a_claim_is_left_behind(evidence: Evidence) -> Iterator[str]:
    for step in evidence.steps:
        if step.is_an_end and any(field in step.after for field in (*CLAIM, "cancelRequestedAt")):
            yield str(step)


# --- How a claim may end ---


def claims_end_after_their_runs(evidence: Evidence) -> Iterator[str]:
    for step in evidence.steps:
        run = evidence.run_of(step)
        if step.is_an_end and run is not None and step.after["updatedAt"] < run.ended_at:
            yield f"{step}, {run}"


def _missed_its_lease_too_often(step: Step, run: Run) -> bool:
    """The one failure that no handler raised."""
    is_said = str(step.after.get("failReason")).startswith("MissedLeaseError: ")
    return step.name in ("fail", "retry") and run.outcome == "cancelled lost" and is_said


def ends_are_what_the_run_of_this_claim_meant(evidence: Evidence) -> Iterator[str]:
    for step in evidence.steps:
        if step.name not in OUTCOMES or step.gives_up:
            continue
        run = evidence.run_of(step)
        if run is None or not (run.outcome.startswith(OUTCOMES[step.name]) or _missed_its_lease_too_often(step, run)):
            yield f"{step}, {run}"
        if step.after.get("startedAt") != step.before["lockedAt"]:
            yield f"by the run of another claim: {step}"


def requests_to_cancel_are_obeyed(evidence: Evidence) -> Iterator[str]:
    for step in evidence.steps:
        if step.is_an_end and "cancelRequestedAt" in step.before and step.name not in ("complete", "cancel_claimed"):
            yield f"wiped: {step}"
        if step.name == "cancel_claimed" and "cancelRequestedAt" not in step.before:
            yield f"nobody asked for it: {step}"


def _completed(step: Step, most: int) -> bool:
    return "repeatInterval" not in step.before and bool(step.after["failCount"] == step.before["failCount"])


def _tried_again(step: Step, most: int) -> bool:
    return bool(step.after["failCount"] < most and step.after["nextRunAt"] > step.after["updatedAt"])


def _released(step: Step, most: int) -> bool:
    same = ("nextRunAt", "failCount", "rescues")
    return all(step.before.get(name) == step.after.get(name) for name in same)


def _rescued(step: Step, most: int) -> bool:
    is_the_first, is_due_at_once = step.after["rescues"] == 1, step.after["nextRunAt"] <= step.after["updatedAt"]
    return step.after["failCount"] == step.before["failCount"] and bool(is_due_at_once == is_the_first)


_COUNTED: Final[Mapping[str, Callable[[Step, int], bool]]] = {
    "complete": _completed,
    "retry": _tried_again,
    "release": _released,
    "rescue": _rescued,
    "give_up": lambda step, most: step.gives_up,
}


def ends_count_what_they_are(evidence: Evidence) -> Iterator[str]:
    for step in evidence.steps:
        if not step.is_an_end:
            continue
        options = evidence.played.options[step.before["claimedBy"]]
        most = max(step.before.get("maxRetries", options.get("max_attempts", 10)), 1)
        if step.name in _COUNTED and not _COUNTED[step.name](step, most):
            yield str(step)
        run = evidence.run_of(step)
        is_discarded = run is not None and run.outcome == "raised Discard"
        if step.name == "fail" and step.after["failCount"] < most and not is_discarded:
            yield f"it had more tries: {step}"
        if step.name not in ("rescue", "release") and step.after.get("rescues"):
            yield f"these deaths are no more in a row: {step}"


# --- Rescue ---


def claims_are_taken_when_their_lease_is_over(evidence: Evidence) -> Iterator[str]:
    for step in evidence.steps:
        if step.is_a_death:
            lease = timedelta(milliseconds=3 * step.before["heartbeatInterval"])
            if step.after["updatedAt"] < step.before["lastHeartbeat"] + lease - CLOSE:
                yield str(step)


def claims_are_taken_from_who_was_in_trouble(evidence: Evidence) -> Iterator[str]:
    """One call of a holder that lives may fail at any time: no claim dies of that.

    It dies with its holder, or of what has befallen the holder since, which kept it from renewing or from giving back.
    """
    for step in evidence.steps:
        if step.is_a_death and not _was_in_trouble(step, evidence):
            yield str(step)


def _was_in_trouble(step: Step, evidence: Evidence) -> bool:
    holder, since, until = step.before["claimedBy"], step.before["lockedAt"], step.after["updatedAt"]
    if any(one.who == holder and one.what in BY_ITSELF and one.at <= until for one in evidence.played.records):
        return True
    # What befalls the claim itself is found out at once, and one that is applied late with one of the next beats.
    beats = timedelta(milliseconds=2 * step.before["heartbeatInterval"])
    from_when = {"slow there": -CLOSE, "slow back": -CLOSE, "applied late": beats}
    return any(
        whose == holder and since + from_when.get(kind, SOON) <= at <= until
        for at, whose, kind, purpose in evidence.troubles
        # One that never ran had only to be given back; it may have waited behind what takes its time.
        if evidence.run_of(step) is not None or purpose in ("", "release claims")
    )


# --- Over all jobs, and over all occurrences ---


def one_live_job_has_a_key(evidence: Evidence) -> Iterator[str]:
    live: dict[tuple[str, str], ObjectId] = {}
    for step in evidence.steps:
        one = step.after or step.before
        if "uniqueKey" not in one:
            continue
        key = (one["name"], one["uniqueKey"])
        if step.after and step.after["status"] in LIVE:
            if live.setdefault(key, step.job) != step.job:
                yield f"{key}: {live[key]} and {step}"
        elif live.get(key) == step.job:
            del live[key]


def occurrences_run_once(evidence: Evidence) -> Iterator[str]:
    following: dict[ObjectId, datetime] = {}
    for step in evidence.steps:
        if step.name in ("go_on", "exhausted"):
            due = step.after["nextRunAt"]
            if due <= step.after["updatedAt"] or due.second or due.microsecond:
                yield f"not the next one: {step}"
            if step.before["nextRunAt"] < following.get(step.job, step.before["nextRunAt"]):
                yield f"it had run: {step}"
            following[step.job] = due
        elif step.name in ("retry_again", "reschedule", "update"):
            following.pop(step.job, None)


def schedules_end_only_with_on_exhausted_fail(evidence: Evidence) -> Iterator[str]:
    for step in evidence.steps:
        is_over = step.name in ("fail", "give_up") and "repeatInterval" in step.before
        if is_over and step.before.get("onExhausted") != "fail":
            yield str(step)


LAWS: Final = (
    jobs_begin_as_new_ones,
    claims_are_whole_and_of_what_is_due,
    each_claim_is_one_attempt,
    claims_do_not_change_while_they_are_held,
    nothing_of_a_claim_is_left_behind,
    claims_end_after_their_runs,
    ends_are_what_the_run_of_this_claim_meant,
    requests_to_cancel_are_obeyed,
    ends_count_what_they_are,
    claims_are_taken_when_their_lease_is_over,
    claims_are_taken_from_who_was_in_trouble,
    one_live_job_has_a_key,
    occurrences_run_once,
    schedules_end_only_with_on_exhausted_fail,
)
