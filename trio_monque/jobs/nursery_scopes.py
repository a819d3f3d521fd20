"""Job nurseries: how a child is named, which scope of its parent counts, and what becomes of a child that a run finds.

Pure. The parent of a nursery is a job. It has a *scope*: an id that its children have, too. The scope lives as long as
one occurrence of the parent, through all its runs. So a run that is killed anywhere is followed by one that asks for
the same children again, and finds them: `child_id` makes the same `_id` of the same block and key.

Three numbers decide, all of them counts of claims on the parent (`attempts`), so they only grow:

- the *epoch* of a run: its own number. A child has the epoch of the run that started it last (`run`), and that of the
  run that cancelled it (`cancelled_by`). A cancellation by an older run was the doing of a stale one, or of one that
  failed otherwise: the child runs again. One by a newer run shows that this run is the stale one.
- the *try*: the epoch of its first run. A retry of the parent by hand begins a new one. What had failed in this try
  stays failed for all its runs. What had failed in an earlier try runs again.

A block that fails is written into the parent, under its fence, before anything is cancelled and before the handler goes
on (`failed`). A later run of the same try that comes to this block starts nothing, and fails as the first one did.
Without that, a handler that acts on the failure (it undoes the order) and is killed would come to the block once more,
and its next run might start, or find again, what the failed block had cancelled.

A child that has no scope any more was detached from a parent that had ended. Who still waits for it is a stale run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum, auto
from hashlib import blake2b
from typing import Final, TypeGuard

from bson import ObjectId

from .job import Job, JobStatus, made_of, occurrence_of
from .job_parts import ChildOf, NurseryScope

PROGRAM: Final = "trio_monque.nursery"
"""The name of the job that a program holds while it has a nursery open."""

OF_A_DELETED_PARENT: Final = 2**53 - 1
"""The epoch of a sweep where no parent is left whose `attempts` it could be: no run of that scope comes any more."""

_LIVE: Final = frozenset({JobStatus.PENDING, JobStatus.PROCESSING})


def is_program_given_back(job: Job) -> bool:
    """Whether a job that stood for a program has lost its claim: nothing claims it again."""
    return job.name == PROGRAM and job.status is JobStatus.PENDING


def child_id(scope: ObjectId, block: str, key: str) -> ObjectId:
    """The id of the child with this key: the time of its scope, and a hash of all three.

    `_id` is the only index that makes a child unique, so no other one is needed.
    """
    named = f"{len(block)}:{block}:{key}"  # No two pairs of texts are the same then.
    return ObjectId(scope.binary[:4] + blake2b(scope.binary + named.encode(), digest_size=8).digest())


def is_key(given: object, longest: int) -> TypeGuard[str]:
    """Whether it can name a block, a child or a step: MongoDB stores no lone surrogates."""
    if not isinstance(given, str) or not 1 <= len(given) <= longest or "\0" in given:
        return False
    return not any("\ud800" <= one <= "\udfff" for one in given)


def default_key(name: str, payload: bytes, used: Counter[str]) -> str:
    """The key of a child without one: its name, a hash of its data, and how many equal ones were started before it."""
    content = f"{name}:{blake2b(payload, digest_size=8).hexdigest()}"
    used[content] += 1
    return f"{content}:{used[content]}"


def scope_of(job: Job) -> NurseryScope | None:
    """The scope that counts now: of a recurring job, only one that was opened in this occurrence."""
    # Monque for Node, or a reschedule, may have ended the occurrence without clearing it. The next one must not take
    # its results.
    own = job.nursery
    if own is None or own.id is None:
        return None
    if job.schedule is None:
        return own
    return own if own.occurrence is not None and own.occurrence == occurrence_of(job) else None


def opened_by(job: Job) -> NurseryScope:
    """The scope that a run of this job works in: the one that it has, in this try, or a new one."""
    own = scope_of(job)
    if own is None:
        return NurseryScope(id=ObjectId(), occurrence=occurrence_of(job), since_attempt=job.attempts)
    return own if own.since_attempt is not None else replace(own, since_attempt=job.attempts)


def with_scope(job: Job, scope: NurseryScope) -> Job:
    """The same job with this scope."""
    return made_of({**vars(job), "nursery": scope})


def as_child(job: Job, child: ChildOf, child_key: str) -> Job:
    """The new job as a child: with the id that its key makes."""
    assert child.scope is not None
    assert child.block is not None
    return made_of({**vars(job), "id": child_id(child.scope, child.block, child_key), "child": child})


class ChildFate(Enum):
    """What a run does with a child that it asks for, or waits for, and that it has found as it is."""

    TAKE = auto()
    """It is what it is: live, completed, or ended otherwise, which is a failure of the block."""
    ADOPT = auto()
    """It is live from an earlier try: this try takes it over."""
    RUN_AGAIN = auto()
    """It ended otherwise in an earlier try, or a stale run cancelled it."""
    LOST = auto()
    """A newer run has cancelled it, or it was detached: this run is a stale one."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The run that asks.

    Attributes:
        scope: The id of the scope.
        epoch: The `attempts` of the parent.
        since: The first epoch of this try.
    """

    scope: ObjectId
    epoch: int
    since: int

    def fate_of(self, found: Job) -> ChildFate:
        """Decide what to do with a child. While the run itself cancels its block, it asks for none."""
        child = found.child
        if child is None or child.scope != self.scope:
            return ChildFate.LOST
        is_older = (child.run or 0) < self.since
        if found.status in _LIVE:
            return ChildFate.ADOPT if is_older else ChildFate.TAKE
        if found.status is JobStatus.COMPLETED:
            return ChildFate.TAKE
        # Only a cancelled child has it by its end: one that was asked to end may have ended by itself.
        by = child.cancelled_by if found.status is JobStatus.CANCELLED else None
        # Its own epoch, too: it cancels nothing while it asks. A sweeper has found that the job of this run has ended.
        if by is not None and by >= self.epoch:
            return ChildFate.LOST
        # Without `cancelled_by`, an operator cancelled it, or its `start_by` did: that is a failure of the block.
        return ChildFate.RUN_AGAIN if is_older or by is not None else ChildFate.TAKE


def is_cancelled_by_block(ended: Job) -> bool:
    """Whether a child was cancelled by a block of its parent, or by a sweep after the parent's end."""
    return ended.status is JobStatus.CANCELLED and ended.child is not None and ended.child.cancelled_by is not None
