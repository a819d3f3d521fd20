"""Follow-ups: the job that a worker's `then` enqueues with the end of another one, exactly once. Pure.

The end of a job is one write, and the insert of the next job is another one: a kill may come between any two writes. So
the debt is written before there is anything to lose. A claim by a worker with `then` also marks the job
(`followUp: true`). A marked job that has completed or failed *owes* a follow-up. So the one write that ends it is also
the one that makes it owe: of its own run, of a rescuer that does not know the worker, or of Monque for Node.

Any instance that knows the worker pays, and any number of them may try at once:

1. *Insert* a new job with an id of its own, which is sent once. It is parked: due in the year 9999.
2. *Choose*: replace the mark by the id of the parked job. Of several instances, one succeeds.
3. *Release* the chosen job: it gets its due date.
4. *Clear* the mark.

What each rule closes is shown by `tests/model/test_follow_ups.py`, which takes them out one by one:

- *Parked*: A and B both insert, and one of the two is chosen. Without it, both would run.
- *The mark in the guard of the choice*: B chooses after A has. Without it, both would be released, one after the other.
- *The number of claims in that guard*: B reads the job and sleeps; A pays, a caller retries the job, and it ends again.
  Without it, B would pay for the second end with what it computed from the first.
- *An id is sent once*: A's insert is delayed in the network. Meanwhile B inserts the same id, it runs, and retention
  deletes it; then A's insert arrives. With one id for both, the follow-up would be released a second time.
- *Release before clear*: between the two, a kill leaves the id in the job, and the next look releases it. The other way
  round, nothing would show that the parked job was chosen.
- *What may be chosen stays*: a parked job that was not chosen is deleted only when its choice cannot succeed any more.
- *Retention spares a job that owes*: its document is all that shows the debt.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Final

from bson import ObjectId

from .job import Job, JobStatus
from .job_parts import FollowUp, FollowUpChosen, FollowUpOwed, FollowUpParked

OWED: Final = FollowUpOwed()
"""The mark: a job that has ended with it owes a follow-up."""

OWING: Final = (JobStatus.COMPLETED, JobStatus.FAILED)
"""The ends with a follow-up. A cancelled job has none."""

PARKED_UNTIL: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""The due date of a parked job. A field of ours would not keep Monque for Node from a claim: it goes by the date."""


def owes(job: Job) -> bool:
    """Whether the job has ended, and its follow-up is not chosen yet."""
    return isinstance(job.follow_up, FollowUpOwed) and job.status in OWING


def parked_for(new: Job, parent: Job) -> Job:
    """The new job, as it is inserted for the end of its parent: nothing claims it."""
    return replace(
        new,
        next_run_at=PARKED_UNTIL,
        follows=parent.id,
        follow_up=FollowUpParked(attempt=parent.attempts, due=new.next_run_at),
    )


def released(parked: Job) -> Job:
    """The parked job, as it is once it may be claimed."""
    assert isinstance(parked.follow_up, FollowUpParked)
    return replace(parked, next_run_at=parked.follow_up.due, follow_up=None)


class FateOfParked(Enum):
    """What is to be done with a parked job."""

    RELEASE = auto()  # It was chosen.
    KEEP = auto()  # It may still be chosen: another instance may be about to.
    DELETE = auto()  # It was not chosen, and cannot be any more.


def fate_of_parked(parked_id: ObjectId, attempt: Any, parent: tuple[int, FollowUp | None] | None) -> FateOfParked:
    """Decide about a parked job.

    Args:
        parked_id: Its id.
        attempt: How often its parent had been claimed when it ended.
        parent: How often its parent was claimed, and the mark of the parent: read after the parked job was seen. None
            if the parent is deleted.
    """
    if parent is None:
        return FateOfParked.DELETE
    attempts, mark = parent
    if mark == FollowUpChosen(parked_id):
        return FateOfParked.RELEASE
    # A choice asks for the mark and for this number of claims. Only a claim sets the mark, and each one adds to the
    # number: once one of the two is gone, no choice of this job succeeds any more.
    return FateOfParked.KEEP if mark == OWED and attempts == attempt else FateOfParked.DELETE
