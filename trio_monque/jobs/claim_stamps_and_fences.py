"""The stamp that a claim leaves in a job, and the fence: the condition that only the holder of this very claim meets.

Everywhere in this package, "fence" means that condition, as a part of the filter of a write. Pure.

A run that lost its claim does not know it: its instance was suspended, or its network was down, for longer than the
lease. Another instance took the job, and then the first one wakes up and writes its result. So every write under a
claim has the fence: it repeats the stamp of that claim. If another claim holds the job now, the write matches nothing.
No single field is enough:

- The token alone: an instance of ours claims a job and is suspended. Monque for Node recovers the job and claims it,
  but leaves our token in place, because it does not know that field. Our old run would end Node's run.
- `claimed_by` and `locked_at` alone: one instance may lose a claim and claim the job again within one millisecond. The
  old run would end the new one.
- `locked_at` and the token alone: Node's claim may have the same `locked_at` as ours by chance.

`status` is redundant beside these, but it states the meaning and serves the indexes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson import ObjectId

from .job import Job, JobStatus
from .job_parts import NO_CLAIM, JobClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimStamp:
    """What one claim cycle writes into every job that it takes. It is sent once; a repetition has a new stamp.

    Attributes:
        claimed_by: The instance's id.
        locked_at: The moment of the claim, UTC.
        claim_token: The fencing token. It embeds the other two: if another library claims the job later and
            leaves our token in place, the token no longer fits, and the claim does not count as ours.
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

    def claim(self) -> JobClaim:
        """The claim that it is, as long as nothing is renewed: the jobs of one cycle share it."""
        return JobClaim(
            by=self.claimed_by,
            since=self.locked_at,
            token=self.claim_token,
            last_heartbeat=self.locked_at,
            heartbeat_interval=self.heartbeat_interval,
            # Written by the claim already, so that a renewal does not make the document larger. A document of almost
            # 16 MiB would have no room for the field; then observers would see no renewal, and another instance would
            # run the job beside its live run.
            renewed_at=self.locked_at,
        )


# The second part of a claim token: says that the holder stores each renewal in `renewedAt` too. Tokens of older
# releases do not have it.
_RENEWS_APART: Final = "r-"


def _token_prefix(claimed_by: str, locked_at: datetime) -> str:
    return f"{claimed_by}:{round(locked_at.timestamp() * 1000)}:"


def is_ours(job: Job) -> bool:
    """Whether the job's claim was made by this library: its token belongs to its current owner and lock time."""
    return _has_token(job, "")


def _has_token(job: Job, behind_the_prefix: str) -> bool:
    claim = job.claim
    if claim is None or claim.by is None or claim.since is None or claim.token is None:
        return False
    # Node keeps a token that it does not know, when it claims the job. So the token alone proves nothing: owner and
    # lock time must be those that it was made for.
    return claim.token.startswith(_token_prefix(claim.by, claim.since) + behind_the_prefix)


def sign_of_life(job: Job) -> dict[str, datetime | None]:
    """What shows an observer by its changes that the holder is alive, and its value: one item."""
    # A Node process with the same instance id renews `last_heartbeat` of every claim under that id. By that field, the
    # claim of a dead instance of ours would look alive for ever.
    claim = job.claim or NO_CLAIM
    if _has_token(job, _RENEWS_APART):
        return {"claim.renewed_at": claim.renewed_at}
    return {"claim.last_heartbeat": claim.last_heartbeat}


def is_to_be_cancelled(job: Job) -> bool:
    """Whether a caller requested that the current run be cancelled."""
    return job.claim is not None and job.claim.cancel_requested_at is not None


def claimed_at(job: Job) -> datetime:
    """When the job was claimed, or last changed if its claim does not have that."""
    return (job.claim or NO_CLAIM).since or job.updated_at


def last_sign_of_life(job: Job) -> datetime | None:
    """When the holder of the claim has shown last that it is alive; None if it never did."""
    (moment,) = sign_of_life(job).values()
    return moment


def shares_its_id(job: Job) -> bool:
    """Whether another process renews this claim of ours, and so uses the instance id of its holder."""
    # The holder writes both fields in one command with one value: they differ only if another process wrote one.
    claim = job.claim or NO_CLAIM
    return _has_token(job, _RENEWS_APART) and claim.last_heartbeat != claim.renewed_at


ClaimId = tuple[ObjectId, str | None]
"""A claim: the job's id and the token. The id alone is not enough: an instance may have lost a claim without knowing
it, and have claimed the same job again."""


def claim_id(job: Job) -> ClaimId:
    return job.id, None if job.claim is None else job.claim.token


def fence(job: Job) -> dict[str, Any]:
    """The condition that only the current claim satisfies: the id, and what the top of this file names."""
    return {"id": job.id, **cycle_fence(job)}


def cycle_fence(job: Job) -> dict[str, Any]:
    """The fence of every job of the same claim cycle. The caller adds the ids."""
    # All four: the token alone would be enough between instances of ours, but Node writes owner and lock time and
    # leaves the token.
    claim = job.claim or NO_CLAIM
    return {
        "status": JobStatus.PROCESSING,
        "claim.by": claim.by,
        "claim.since": claim.since,
        "claim.token": claim.token,
    }


def stamp_fence(stamp: ClaimStamp) -> dict[str, Any]:
    """The fence of every job that a claim cycle took. The caller adds the ids, or does not know them."""
    return {
        "status": JobStatus.PROCESSING,
        "claim.by": stamp.claimed_by,
        "claim.since": stamp.locked_at,
        "claim.token": stamp.claim_token,
    }
