"""Whose claim it is: the stamp that a claim leaves, and the condition that only the current claim satisfies. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson import ObjectId

from .job import Job, JobStatus


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
        token = f"{_token_prefix(claimed_by, locked_at)}{_RENEWS_APART}{random}"
        return cls(
            claimed_by=claimed_by,
            locked_at=locked_at,
            claim_token=token,
            heartbeat_interval=heartbeat_interval,
        )


# Behind the prefix: the holder stores each renewal in `renewedAt` too. Tokens of older releases lack it.
_RENEWS_APART: Final = "r-"


def _token_prefix(claimed_by: str, locked_at: datetime) -> str:
    return f"{claimed_by}:{round(locked_at.timestamp() * 1000)}:"


def is_ours(job: Job) -> bool:
    """Whether the job's claim was made by this library: its token belongs to its current owner and lock time."""
    return _has_token(job, "")


def _has_token(job: Job, behind_the_prefix: str) -> bool:
    if job.claimed_by is None or job.locked_at is None or job.claim_token is None:
        return False
    return job.claim_token.startswith(_token_prefix(job.claimed_by, job.locked_at) + behind_the_prefix)


def sign_of_life(job: Job) -> dict[str, datetime | None]:
    """The field by which an observer sees that the holder lives, and its value.

    Not `last_heartbeat` where the holder writes a field of its own: a Node process with the same instance id renews
    the heartbeat of every claim under that id, and would keep the claim of a dead instance of ours alive.
    """
    if _has_token(job, _RENEWS_APART):
        return {"renewed_at": job.renewed_at}
    return {"last_heartbeat": job.last_heartbeat}


def shares_its_id(job: Job) -> bool:
    """Whether another process writes the heartbeat of this claim of ours, and so uses the id of its holder.

    The holder writes both fields in one command with one value.
    """
    return "renewed_at" in sign_of_life(job) and job.last_heartbeat != job.renewed_at


ClaimId = tuple[ObjectId, str | None]
"""Which claim: the job's id and the token. By the id alone, an instance may hold two: one that was taken away
without its knowledge, and the next one on the same job."""


def claim_id(job: Job) -> ClaimId:
    return job.id, job.claim_token


# What a claim writes and every end of a claim clears.
CLAIM_FIELDS: Final = (
    "claimed_by",
    "locked_at",
    "last_heartbeat",
    "heartbeat_interval",
    "claim_token",
    "renewed_at",
)


def fence(job: Job) -> dict[str, Any]:
    """The condition that only the current claim satisfies.

    All five. Node's recovery and Node's next claim leave our token in place, so the token alone would
    let our dead run settle Node's claim; `locked_at` alone may coincide.
    """
    return {"id": job.id, **cycle_fence(job)}


def cycle_fence(job: Job) -> dict[str, Any]:
    """The fence of all that the same cycle claimed, for where the ids are given apart."""
    return {
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
