"""The condition of a claim, and how it pins the copies that were read. Pure.

A claim has two steps: a look reads due jobs, and a guarded write takes those that the instance can start. The look may
be a tenth of a second old when the write arrives. Two races are closed here:

- Between the two steps, another instance claims a job, runs it, and moves it to tomorrow. It is pending again. If the
  write asked for `status: "pending"` only, the job would run a day early. So the write repeats the whole condition.
- Between the two steps, another instance claims a job and releases it, or its attempt fails and the next one is due at
  once, or a caller edits its data. The job is due as before, but the copy that the look read is stale: its handler
  would run with old data, and its retry would be computed from an old count of failures. So the write also asks that
  the numbers that change with each of these are as they were read. Then the copies are exact, and the claim needs no
  further read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from .conditional_write import AbsentOrAbove, AtMost, OneOf
from .job import Job, JobStatus

CLAIMS_GO_BY: Final = "next_run_at"
"""The field whose order claims go by, earliest first: looks, pages, and the jobs that they found are sorted by it."""


def in_claim_order(jobs: Iterable[Job]) -> list[Job]:
    """These jobs in the order of their claims. Jobs of the same moment go by their ids."""
    return sorted(jobs, key=lambda job: (getattr(job, CLAIMS_GO_BY), job.id))


def claimable(names: Sequence[str], now: datetime) -> dict[str, Any]:
    """The condition of a claim at `now`. The look uses it, and the guarded write repeats all of it."""
    return {
        "name": OneOf(tuple(names)) if len(names) != 1 else names[0],
        "status": JobStatus.PENDING,
        "next_run_at": AtMost(now),
        "claim.by": None,
    }


def past(job: Job) -> tuple[int, int, int, int, datetime | None]:
    """What happened to a job so far, in the values that `pins` compares. Jobs with equal values share a statement."""
    # The due date identifies the occurrence of a recurring job, and another one may be due since the look. (Node's
    # reschedule changes it without a new `rev`.)
    due = None if job.schedule is None else job.next_run_at
    return job.attempts, job.fail_count, job.rescues, job.internals.rev, due


def pins(job: Job) -> dict[str, Any]:
    """The condition that a pending job is still as it was read, in everything that a run relies on."""
    *numbers, due = past(job)
    names = ("attempts", "fail_count", "rescues", "internals.rev")
    pinned: dict[str, Any] = {
        name: value or OneOf((None, 0))
        for name, value in zip(names, numbers, strict=True)  # Absent means 0.
    }
    return pinned if due is None else {**pinned, "next_run_at": due}


# --- Jobs that must start by a moment ---


def is_too_late(job: Job, now: datetime) -> bool:
    """Whether this pending job must not start any more: its first run has not begun by its `start_by`."""
    start_by = job.limits.start_by
    return start_by is not None and start_by <= now


NOT_STARTED: Final = "start_by"
"""How the reason of a job that was not started in time begins."""


def unstarted_reason(start_by: datetime) -> str:
    """What `fail_reason` has of a job that was not started in time."""
    return f"{NOT_STARTED}: not started by {start_by.isoformat(timespec='milliseconds')}"


def was_unstarted(job: Job) -> bool:
    """Whether the job was cancelled because no run had begun by its `start_by`, and not by a caller."""
    start_by = job.limits.start_by
    return job.status is JobStatus.CANCELLED and start_by is not None and job.fail_reason == unstarted_reason(start_by)


def in_time(jobs: Sequence[Job], now: datetime) -> dict[str, Any]:
    """The condition that a claim of these jobs at `now` is in time; empty if none of them has a `start_by`.

    So the claim of jobs without this option is the same command as ever.
    """
    return {"limits.start_by": AbsentOrAbove(now)} if any(job.limits.start_by is not None for job in jobs) else {}
