"""The state machine. Everything that changes a job's status is here, and nothing here does I/O.

Each function returns a Transition: what must hold of the document (the guard), what is written, and
what is to be written instead where the guard failed for a known reason. The codec turns it into a
MongoDB filter and update; tests read and apply it without a database. TABLE lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from bson import ObjectId

from .claimable import claimable, pins
from .conditional_write import OneOf, Transition
from .error_history import Failure
from .fences import CLAIM_FIELDS, ClaimStamp, cycle_fence, fence, is_ours, sign_of_life, stamp_fence
from .job import OF_ONE_OCCURRENCE, Job, JobStatus, deaths_of, occurrence_of, resumed

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

PENDING, PROCESSING = JobStatus.PENDING, JobStatus.PROCESSING
COMPLETED, FAILED, CANCELLED = JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the state machine: which transition leads from where to where, and why it is made."""

    name: str
    source: JobStatus
    target: JobStatus
    why: str


TABLE: Final = (
    Row("claim", PENDING, PROCESSING, "an instance takes a due job"),
    Row("complete", PROCESSING, COMPLETED, "a one-off job succeeded"),
    Row("go_on", PROCESSING, PENDING, "a recurring job moves to its next occurrence"),
    Row("retry", PROCESSING, PENDING, "a try failed, and others are left"),
    Row("snooze", PROCESSING, PENDING, "the handler asked to be run later"),
    Row("release", PROCESSING, PENDING, "the claim is given back, uncounted"),
    Row("rescue", PROCESSING, PENDING, "the claim had died"),
    Row("give_up", PROCESSING, FAILED, "too many claims in a row had died"),
    Row("fail", PROCESSING, FAILED, "the last try failed, or no other can be made"),
    Row("cancel_claimed", PROCESSING, CANCELLED, "a requested cancellation"),
    Row("cancel_pending", PENDING, CANCELLED, "somebody cancelled it"),
    Row("set_aside", PENDING, FAILED, "the server refuses every claim on it"),
    Row("retry_again", FAILED, PENDING, "somebody gave it new tries"),
    Row("retry_again", CANCELLED, PENDING, "somebody gave it new tries"),
    Row("reschedule", PENDING, PENDING, "somebody changed when it is due"),
    Row("update_pending", PENDING, PENDING, "its schedule or data was brought up to date"),
    Row("update_claimed", PROCESSING, PROCESSING, "its schedule or data was brought up to date"),
    Row("request_cancel", PROCESSING, PROCESSING, "somebody asked for the run to be cancelled"),
)
"""All changes of a job's status, and the changes of a pending or processing job that keep it. Deletion is from any."""


# What no end of a claim leaves behind: the claim, and a request that was meant for it.
_ENDED: Final = (*CLAIM_FIELDS, "cancel_requested_at")


# --- pending -> processing ---


def claim(names: Sequence[str], now: datetime, stamp: ClaimStamp, pinned: Mapping[str, Any] = _NOTHING) -> Transition:
    """pending -> processing, for whichever of the chosen jobs are still claimable (and as pinned)."""
    return Transition(
        guard={**claimable(names, now), **pinned},
        set={
            "status": JobStatus.PROCESSING,
            "claimed_by": stamp.claimed_by,
            "locked_at": stamp.locked_at,
            "last_heartbeat": stamp.locked_at,
            # From the claim on, so that no renewal makes a document larger: a full one would have no room for this
            # field, no observer would see its renewals, and another instance would run the job beside its live run.
            "renewed_at": stamp.locked_at,
            "heartbeat_interval": stamp.heartbeat_interval,
            "claim_token": stamp.claim_token,
            "updated_at": stamp.locked_at,
        },
        added={"attempts": 1},
        # Others end claims of ours without clearing it: an older release, and Node.
        cleared=("cancel_requested_at",),
    )


# --- pending -> failed ---


def set_aside(job: Job, now: datetime, reason: str) -> Transition:
    """pending -> failed, where the server refuses every claim on the job. No failure is counted: there was no try.

    Pinned as a claim is: a job that changed since the refusal may be claimable by now.
    """
    return Transition(
        guard={"id": job.id, "status": PENDING, "claimed_by": None, **pins(job)},
        set={"status": FAILED, "fail_reason": reason, "updated_at": now},
    )


# --- The ends of a claim: all under the fence ---


def _ended(job: Job, now: datetime) -> dict[str, Any]:
    """What every counted end of a run writes."""
    return {"updated_at": now, "started_at": job.locked_at, "finished_at": now}


def _unless_cancelled(job: Job) -> dict[str, Any]:
    """The fence of every end but the completion of a one-off job: a requested cancellation must not be wiped."""
    return {**fence(job), "cancel_requested_at": None}


def complete(job: Job, now: datetime, result: Any = None) -> Transition:
    """processing -> completed: a one-off job that succeeded. A cancellation requested meanwhile came too late.

    Fenced on its being a one-off job: a schedule may have been declared over it while it ran.
    """
    return _completion(job, now, fence(job), {} if result is None else {"result": result})


def complete_claimed_with(job: Job, now: datetime) -> Transition:
    """The same for whichever job the cycle claimed that claimed this one; nothing is stored of what they returned."""
    return _completion(job, now, cycle_fence(job), {})


def _completion(job: Job, now: datetime, fenced: Mapping[str, Any], stored: Mapping[str, Any]) -> Transition:
    return Transition(
        guard={**fenced, "repeat_interval": None},
        set={"status": COMPLETED, **_ended(job, now), **stored},
        cleared=(*_ENDED, "fail_reason", "rescues", "saved"),
    )


def go_on(
    job: Job, now: datetime, next_run_at: datetime, failure: Failure | None = None, result: Any = None
) -> Transition:
    """processing -> pending at the next occurrence of a recurring job.

    Fenced on the schedule too: it may have been changed since `next_run_at` was computed from it. With
    a `failure` this occurrence used up its retries; without, it succeeded.
    """
    return Transition(
        guard={**_unless_cancelled(job), "repeat_interval": job.repeat_interval, "timezone": job.timezone},
        set={
            "status": PENDING,
            "next_run_at": next_run_at,
            "fail_count": 0,
            **_ended(job, now),
            **({} if failure is None else failure.written(job)),
            **({} if result is None else {"result": result}),
        },
        # What was saved was for another try at this occurrence.
        cleared=(*_ENDED, "rescues", *OF_ONE_OCCURRENCE, *(("fail_reason",) if failure is None else ())),
        otherwise=cancel_claimed(job, now),
    )


def retry(job: Job, now: datetime, failure: Failure, next_run_at: datetime) -> Transition:
    """processing -> pending after a failure, with tries left."""
    return Transition(
        guard=_unless_cancelled(job),
        set={
            "status": PENDING,
            "next_run_at": next_run_at,
            **_ended(job, now),
            **failure.written(job),
            **resumed(job, next_run_at),
        },
        added={"fail_count": 1},
        cleared=(*_ENDED, "rescues"),
        otherwise=cancel_claimed(job, now),
    )


def snooze(job: Job, now: datetime, next_run_at: datetime) -> Transition:
    """processing -> pending, as the handler asked: no failure is counted, and what it saved is kept."""
    return Transition(
        guard=_unless_cancelled(job),
        set={"status": PENDING, "next_run_at": next_run_at, **_ended(job, now), **resumed(job, next_run_at)},
        cleared=(*_ENDED, "rescues"),
        otherwise=cancel_claimed(job, now),
    )


def fail(job: Job, now: datetime, failure: Failure) -> Transition:
    """processing -> failed: the last try failed, or no other can be made.

    Fenced on what says that a schedule does not go on: it may have been declared otherwise meanwhile.
    """
    return Transition(
        guard={
            **_unless_cancelled(job),
            "repeat_interval": job.repeat_interval,
            "timezone": job.timezone,
            "on_exhausted": job.on_exhausted,
        },
        set={"status": FAILED, **_ended(job, now), **failure.written(job)},
        added={"fail_count": 1},
        cleared=(*_ENDED, "rescues"),
        otherwise=cancel_claimed(job, now),
    )


def release(job: Job, now: datetime) -> Transition:
    """processing -> pending, uncounted: the claim is given back, due as it was."""
    return Transition(
        guard=_unless_cancelled(job),
        set={"status": PENDING, "updated_at": now},
        cleared=_ENDED,
        otherwise=cancel_claimed(job, now),
    )


def release_all(stamp: ClaimStamp, now: datetime) -> Transition:
    """processing -> pending for everything that one claim cycle may have taken: for claims whose answer was lost."""
    return Transition(
        guard={**stamp_fence(stamp), "cancel_requested_at": None},
        set={"status": PENDING, "updated_at": now},
        cleared=_ENDED,
    )


def rescue(job: Job, now: datetime, next_run_at: datetime) -> Transition:
    """processing -> pending for a claim that was seen dead: counted apart from failures."""
    rescued = Transition(
        # Whether it was one too many, and when the job is due, was decided from this count.
        guard={**fence(job), "rescues": job.rescues or OneOf((None, 0))},
        set={
            "status": PENDING,
            "next_run_at": next_run_at,
            "updated_at": now,
            "rescues": deaths_of(job) + 1,
            "resumes_at": next_run_at,  # Of a one-off job too: Node may fail a try in between.
            **resumed(job, next_run_at),
        },
        cleared=_ENDED,
    )
    return _of_the_dead(job, now, rescued)


def give_up(job: Job, now: datetime, failure: Failure) -> Transition:
    """processing -> failed for a claim that was seen dead, where too many had died before. No failure is counted."""
    given_up = Transition(
        guard={
            **fence(job),
            "repeat_interval": job.repeat_interval,
            "timezone": job.timezone,
            "on_exhausted": job.on_exhausted,
        },
        set={"status": FAILED, **_ended(job, now), **failure.written(job)},
        cleared=(*_ENDED, "rescues"),
    )
    return _of_the_dead(job, now, given_up)


def go_on_after_deaths(job: Job, now: datetime, next_run_at: datetime, failure: Failure) -> Transition:
    """The same for a schedule: this occurrence is given up."""
    return _of_the_dead(job, now, go_on(job, now, next_run_at, failure))


def _of_the_dead(job: Job, now: datetime, ending: Transition) -> Transition:
    """As it must be where somebody else than the holder writes it.

    `job` is as it was observed: besides the fence, its holder must not have renewed it since. The same for
    the cancellation of a job whose holder died with a request to cancel it. A request on the claim of
    another library was left behind by an earlier claim of ours, and is not obeyed.
    """
    unmoved = sign_of_life(job)
    guard = {name: one for name, one in ending.guard.items() if name != "cancel_requested_at"}
    if not is_ours(job):
        return replace(ending, guard={**guard, **unmoved}, otherwise=None)
    cancelled = cancel_claimed(job, now)
    return replace(
        ending,
        guard={**guard, "cancel_requested_at": None, **unmoved},
        otherwise=replace(cancelled, guard={**cancelled.guard, **unmoved}),
    )


def cancel_claimed(job: Job, now: datetime) -> Transition:
    """processing -> cancelled, as was requested of the claim."""
    return Transition(
        guard=fence(job),
        set={"status": CANCELLED, **_ended(job, now)},
        cleared=(*_ENDED, "rescues"),
    )


# --- Under a claim, without ending it ---


def report(job: Job, now: datetime, **reported: Any) -> Transition:
    """What a handler saves or reports: written under the fence, so that a run that lost its claim writes nothing."""
    occurrence = occurrence_of(job)
    if "saved" in reported and occurrence is not None:
        reported["saved_for"] = occurrence
    return Transition(guard=fence(job), set={**reported, "updated_at": now})


def request_cancel(job: Job, now: datetime) -> Transition:
    """Asks the holder of a claim of ours to cancel its run. By status alone it might land on a claim of Node's."""
    return Transition(guard=_unless_cancelled(job), set={"cancel_requested_at": now, "updated_at": now})


# --- By hand ---


def cancel_pending(job_id: ObjectId, now: datetime) -> Transition:
    """pending -> cancelled."""
    return Transition(guard={"id": job_id, "status": PENDING}, set={"status": CANCELLED, "updated_at": now})


def retry_again(job_id: ObjectId, now: datetime) -> Transition:
    """failed or cancelled -> pending, due now, with all its tries."""
    return Transition(
        guard={"id": job_id, "status": OneOf((FAILED, CANCELLED))},
        set={"status": PENDING, "fail_count": 0, "next_run_at": now, "updated_at": now},
        cleared=(*_ENDED, "fail_reason", "rescues"),
        added={"rev": 1},
    )


def reschedule(job_id: ObjectId, now: datetime, next_run_at: datetime) -> Transition:
    """pending -> pending at another time."""
    return Transition(
        guard={"id": job_id, "status": PENDING},
        set={"next_run_at": next_run_at, "updated_at": now},
        # The time is in the claim's own condition; a copy that was read before still has the old one.
        added={"rev": 1},
    )


def update_pending(job: Job, now: datetime, next_run_at: datetime, **content: Any) -> Transition:
    """Changes what a pending job is about; `rev` tells whoever read a copy that it is stale.

    Guarded by what was read: of two changes at once, the second is made on top of the first, or not at all.
    """
    return Transition(
        guard={"id": job.id, "status": PENDING, "rev": job.rev or OneOf((None, 0))},
        set={"next_run_at": next_run_at, "updated_at": now, **_present(content)},
        cleared=_absent(content),
        added={"rev": 1},
    )


def update_claimed(job: Job, now: datetime, **content: Any) -> Transition:
    """Changes what a job that runs is about, from its next occurrence on: the run keeps its copy and its claim."""
    return Transition(
        guard={"id": job.id, "status": PROCESSING, "rev": job.rev or OneOf((None, 0))},
        set={"updated_at": now, **_present(content)},
        cleared=_absent(content),
        added={"rev": 1},
    )


def _present(content: Mapping[str, Any]) -> dict[str, Any]:
    # `data` may be None and mean it; any other field is absent then.
    return {name: value for name, value in content.items() if value is not None or name == "data"}


def _absent(content: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name, value in content.items() if value is None and name != "data")
