"""What may be claimed: the condition of every claim, who is suspect, and how a copy that was read is pinned. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from .conditional_write import AtMost, OneOf
from .job import Job, JobStatus


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


# After so many claims in a row that died, it may be what they died of.
SUSPECT_FROM: Final = 2

# What a job must be, besides, to be claimed where no other suspect may be.
UNSUSPECTED: Final = MappingProxyType({"rescues": OneOf((None, *range(SUSPECT_FROM)))})


def is_suspect(job: Job) -> bool:
    """Whether it may be what its holders died of. An instance runs one suspect at a time."""
    return job.rescues >= SUSPECT_FROM


def past(job: Job) -> tuple[int, int, int, int, datetime | None]:
    """What `pins` pins: equal for jobs that can be claimed under one condition.

    Of a recurring job its due date, too: it tells which occurrence runs, and another one may be due since the look.
    """
    due = None if job.repeat_interval is None else job.next_run_at
    return job.attempts, job.fail_count, job.rescues, job.rev, due


def pins(job: Job) -> dict[str, Any]:
    """What pins the copy of a pending job: while these are equal, all that a run relies on is as it was read."""
    *numbers, due = past(job)
    names = ("attempts", "fail_count", "rescues", "rev")
    pinned: dict[str, Any] = {
        name: value or OneOf((None, 0))
        for name, value in zip(names, numbers, strict=True)  # Absent means 0.
    }
    return pinned if due is None else {**pinned, "next_run_at": due}
