"""The state machine. Everything that changes a job's status is here, and nothing here does I/O.

Each function returns a Transition: what must hold of the document (the guard), what is written, and
what is to be written instead where the guard failed for a known reason. The codec turns it into a
MongoDB filter and update; tests read and apply it without a database.

    pending    -> processing   claim
    processing -> completed    complete
    processing -> pending      retry, go_on (the next occurrence), release
    processing -> failed       fail
    processing -> cancelled    cancel_claimed (a requested cancellation wins over every end but completion)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from .job import Job, JobStatus

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


# --- Conditions a guard may put on a field; a plain value means equality, and None means absent ---


@dataclass(frozen=True, slots=True)
class AtMost:
    """The field is at most this."""

    value: Any


@dataclass(frozen=True, slots=True)
class OneOf:
    """The field is one of these; None among them means that it may be absent."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Transition:
    """One conditional write.

    Attributes:
        guard: What must hold, by field; all of it is repeated in the write.
        set: Fields and their new values.
        cleared: Fields that are removed.
        added: Fields and what is added to them; an absent field counts as 0.
        otherwise: What to write where the guard failed because a cancellation had been requested.
    """

    guard: Mapping[str, Any]
    set: Mapping[str, Any]
    cleared: tuple[str, ...] = ()
    added: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    otherwise: Transition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimStamp:
    """What one claim cycle writes into every job it takes. Sent once; a repetition takes a new one.

    Attributes:
        claimed_by: The instance's id.
        locked_at: The moment of the claim, UTC.
        claim_token: The fencing token; embeds the other two, so that a token left behind by us in a
            document that another library claimed since is not taken for its claim.
        heartbeat_interval: Seconds between renewals.
    """

    claimed_by: str
    locked_at: datetime
    claim_token: str
    heartbeat_interval: float

    @classmethod
    def new(cls, claimed_by: str, locked_at: datetime, heartbeat_interval: float, random: str) -> ClaimStamp:
        token = f"{_token_prefix(claimed_by, locked_at)}{random}"
        return cls(
            claimed_by=claimed_by,
            locked_at=locked_at,
            claim_token=token,
            heartbeat_interval=heartbeat_interval,
        )


def _token_prefix(claimed_by: str, locked_at: datetime) -> str:
    return f"{claimed_by}:{round(locked_at.timestamp() * 1000)}:"


def is_ours(job: Job) -> bool:
    """Whether the job's claim was made by this library: its token belongs to its current owner and lock time."""
    if job.claimed_by is None or job.locked_at is None or job.claim_token is None:
        return False
    return job.claim_token.startswith(_token_prefix(job.claimed_by, job.locked_at))


# What a claim writes and every end of a claim clears.
CLAIM_FIELDS: Final = ("claimed_by", "locked_at", "last_heartbeat", "heartbeat_interval", "claim_token")

# What no end of a claim leaves behind: the claim, and a request that was meant for it.
_ENDED: Final = (*CLAIM_FIELDS, "cancel_requested_at")


def fence(job: Job) -> dict[str, Any]:
    """The condition that only the current claim satisfies.

    All five. Node's recovery and Node's next claim leave our token in place, so the token alone would
    let our dead run settle Node's claim; `locked_at` alone may coincide.
    """
    return {
        "id": job.id,
        "status": JobStatus.PROCESSING,
        "claimed_by": job.claimed_by,
        "locked_at": job.locked_at,
        "claim_token": job.claim_token,
    }


def stamp_fence(stamp: ClaimStamp) -> dict[str, Any]:
    """The fence of all the jobs that one claim cycle took, for where their ids are not known or given apart."""
    return {
        "status": JobStatus.PROCESSING,
        "claimed_by": stamp.claimed_by,
        "locked_at": stamp.locked_at,
        "claim_token": stamp.claim_token,
    }


# --- pending -> processing ---


def claimable(names: Sequence[str], now: datetime) -> dict[str, Any]:
    """What a job must be to be claimed. Used for the look, and repeated whole in the guarded write:

    between the two, another instance may have run the job and put it off until tomorrow.
    """
    return {
        "name": OneOf(tuple(names)) if len(names) != 1 else names[0],
        "status": JobStatus.PENDING,
        "next_run_at": AtMost(now),
        "claimed_by": None,
    }


def pins(job: Job) -> dict[str, Any]:
    """What pins the copy of a pending job: while these are equal, all that a run relies on is as it was read."""
    return {
        name: value or OneOf((None, 0))  # Absent means 0.
        for name, value in (("attempts", job.attempts), ("fail_count", job.fail_count), ("rev", job.rev))
    }


def claim(names: Sequence[str], now: datetime, stamp: ClaimStamp, pinned: Mapping[str, Any] = _NOTHING) -> Transition:
    """pending -> processing, for whichever of the chosen jobs are still claimable (and as pinned)."""
    return Transition(
        guard={**claimable(names, now), **pinned},
        set={
            "status": JobStatus.PROCESSING,
            "claimed_by": stamp.claimed_by,
            "locked_at": stamp.locked_at,
            "last_heartbeat": stamp.locked_at,
            "heartbeat_interval": stamp.heartbeat_interval,
            "claim_token": stamp.claim_token,
            "updated_at": stamp.locked_at,
        },
        added={"attempts": 1},
        cleared=("cancel_requested_at",),
    )


# --- processing -> anything: all under the fence ---


def complete(job: Job, now: datetime) -> Transition:
    """processing -> completed: a one-off job that succeeded. A cancellation requested meanwhile came too late."""
    return Transition(
        guard=fence(job),
        set={
            "status": JobStatus.COMPLETED,
            "updated_at": now,
            "started_at": job.locked_at,
            "finished_at": now,
        },
        cleared=(*_ENDED, "fail_reason", "rescues"),
    )


def go_on(job: Job, now: datetime, next_run_at: datetime, fail_reason: str | None = None) -> Transition:
    """processing -> pending at the next occurrence of a recurring job.

    Fenced on the schedule too: it may have been changed since `next_run_at` was computed from it. With
    a `fail_reason` this occurrence used up its retries; without, it succeeded.
    """
    return Transition(
        guard={
            **fence(job),
            "cancel_requested_at": None,
            "repeat_interval": job.repeat_interval,
            "timezone": job.timezone,
        },
        set={
            "status": JobStatus.PENDING,
            "next_run_at": next_run_at,
            "fail_count": 0,
            "updated_at": now,
            "started_at": job.locked_at,
            "finished_at": now,
            **({} if fail_reason is None else {"fail_reason": fail_reason}),
        },
        cleared=(*_ENDED, "rescues", *(("fail_reason",) if fail_reason is None else ())),
        otherwise=cancel_claimed(job, now),
    )


def retry(job: Job, now: datetime, fail_reason: str, next_run_at: datetime) -> Transition:
    """processing -> pending after a failure, with tries left."""
    return Transition(
        guard={**fence(job), "cancel_requested_at": None},
        set={
            "status": JobStatus.PENDING,
            "next_run_at": next_run_at,
            "fail_reason": fail_reason,
            "updated_at": now,
            "started_at": job.locked_at,
            "finished_at": now,
        },
        added={"fail_count": 1},
        cleared=(*_ENDED, "rescues"),
        otherwise=cancel_claimed(job, now),
    )


def fail(job: Job, now: datetime, fail_reason: str) -> Transition:
    """processing -> failed: the last try failed, or no other can be made."""
    return Transition(
        guard={**fence(job), "cancel_requested_at": None},
        set={
            "status": JobStatus.FAILED,
            "fail_reason": fail_reason,
            "updated_at": now,
            "started_at": job.locked_at,
            "finished_at": now,
        },
        added={"fail_count": 1},
        cleared=(*_ENDED, "rescues"),
        otherwise=cancel_claimed(job, now),
    )


def release(job: Job, now: datetime) -> Transition:
    """processing -> pending, uncounted: the claim is given back, due as it was."""
    return Transition(
        guard={**fence(job), "cancel_requested_at": None},
        set={"status": JobStatus.PENDING, "updated_at": now},
        cleared=_ENDED,
        otherwise=cancel_claimed(job, now),
    )


def release_all(stamp: ClaimStamp, now: datetime) -> Transition:
    """processing -> pending for everything that one claim cycle may have taken: for claims whose answer was lost."""
    return Transition(
        guard={**stamp_fence(stamp), "cancel_requested_at": None},
        set={"status": JobStatus.PENDING, "updated_at": now},
        cleared=_ENDED,
    )


def cancel_claimed(job: Job, now: datetime) -> Transition:
    """processing -> cancelled, as was requested of the claim."""
    return Transition(
        guard=fence(job),
        set={
            "status": JobStatus.CANCELLED,
            "updated_at": now,
            "started_at": job.locked_at,
            "finished_at": now,
        },
        cleared=(*_ENDED, "rescues"),
    )


_ABSENT: Final[Mapping[str, Any]] = MappingProxyType({"attempts": 0, "rescues": 0, "rev": 0})


def applied(job: Job, transition: Transition) -> Job:
    """The job after the transition, as the database holds it: the after-image of a write whose guard held."""
    changes = {
        **{name: _ABSENT.get(name) for name in transition.cleared},
        **{name: getattr(job, name) + step for name, step in transition.added.items()},
        **transition.set,
    }
    return replace(job, **changes)
