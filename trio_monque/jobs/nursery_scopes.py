"""Decisions about job nurseries: the id of a child, the scope of a parent, and what a run does with a child. Pure.

The parent of a nursery is a job. It has a *scope*: an id that its children have, too. The scope lives as long as one
occurrence of the parent, through all its runs. So after a run is killed, the next one asks for the same children and
finds them: `child_id` makes the same `_id` of the same scope, block and key.

A run compares numbers that are all counts of claims on the parent (`attempts`), so they only grow:

- The *epoch* of a run is its own number. A child has the epoch of the run that started it last (`run`), and that of the
  run that cancelled it (`cancelled_by`). If an older run has cancelled a child, that run was stale, or failed for
  another reason: the child runs again. If a newer run has cancelled it, the run that asks is stale.
- The *try* is the epoch of its first run. A retry of the parent by hand begins a new try. A child that has failed in
  this try stays failed for all its runs. A child that has failed in an earlier try runs again.

A block that fails is written into the parent (`failed`), under its fence, before the block cancels anything and before
the handler goes on. A later run of the same try that opens this block does not start children, and fails as the first
one did. Without that record, assume a handler that acts on the failure (it undoes the order) and is killed: its next
run would enter the block once more, and might start, or find again, the children that the failed block had cancelled.

A child that has no scope any more was detached from a parent that had ended. A run that still waits for it is stale.
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
"""The epoch of a sweep if the parent was deleted, and its `attempts` with it. No run of that scope follows."""

_LIVE: Final = frozenset({JobStatus.PENDING, JobStatus.PROCESSING})


def is_program_given_back(job: Job) -> bool:
    """Whether a job that stood for a program has lost its claim: no worker claims it again."""
    return job.name == PROGRAM and job.status is JobStatus.PENDING


def child_id(scope: ObjectId, block: str, key: str) -> ObjectId:
    """Return the id of the child with this key: the time of its scope, and a hash of all three.

    So the index of `_id` makes a child unique, and no other index is needed.
    """
    named = f"{len(block)}:{block}:{key}"  # The length makes sure that two different pairs never give the same text.
    return ObjectId(scope.binary[:4] + blake2b(scope.binary + named.encode(), digest_size=8).digest())


def ids_of_children(scope: ObjectId) -> tuple[ObjectId, ObjectId]:
    """Return the first and the last id that a child of this scope can have: they begin with the time of the scope.

    So the index of `_id` finds all children, those that have ended too, among the jobs of the same second.
    """
    second = scope.binary[:4]
    return ObjectId(second + b"\0" * 8), ObjectId(second + b"\xff" * 8)


def is_key(given: object, longest: int) -> TypeGuard[str]:
    """Whether it can be the key of a block, a child or a step: MongoDB does not store lone surrogates."""
    if not isinstance(given, str) or not 1 <= len(given) <= longest or "\0" in given:
        return False
    return not any("\ud800" <= one <= "\udfff" for one in given)


def default_key(name: str, payload: bytes, used: Counter[str]) -> str:
    """Return the key of a child without one: its name, a hash of its data, and its number among equal children."""
    content = f"{name}:{blake2b(payload, digest_size=8).hexdigest()}"
    used[content] += 1
    return f"{content}:{used[content]}"


def scope_of(job: Job) -> NurseryScope | None:
    """Return the scope of a job that is in effect; for a recurring job, only one that was opened in this occurrence."""
    # Monque for Node, or a reschedule, may have ended the occurrence without clearing the scope. The next occurrence
    # must not take its results.
    own = job.nursery
    if own is None or own.id is None:
        return None
    if job.schedule is None:
        return own
    return own if own.occurrence is not None and own.occurrence == occurrence_of(job) else None


def has_had_scope(job: Job) -> bool:
    """Whether the job has a scope, in effect or not, or had one in work that has ended: it may have children."""
    return job.nursery is not None or job.internals.last_scope is not None


def opened_by(job: Job) -> NurseryScope:
    """Return the scope for the nurseries of a run of this job: the one that the job has, in this try, or a new one."""
    own = scope_of(job)
    if own is None:
        return NurseryScope(id=ObjectId(), occurrence=occurrence_of(job), since_attempt=job.attempts)
    return own if own.since_attempt is not None else replace(own, since_attempt=job.attempts)


def with_scope(job: Job, scope: NurseryScope) -> Job:
    """Return the same job with this scope."""
    return made_of({**vars(job), "nursery": scope})


def as_child(job: Job, child: ChildOf, child_key: str) -> Job:
    """Return the new job as a child, with the id that its key makes."""
    assert child.scope is not None
    assert child.block is not None
    return made_of({**vars(job), "id": child_id(child.scope, child.block, child_key), "child": child})


class ChildFate(Enum):
    """What a run does with a child that it has found when it started it, or waits for."""

    TAKE = auto()
    """Take it as it is: live, completed, or ended otherwise, which is a failure of the block."""
    ADOPT = auto()
    """Take it over into this try: it is live from an earlier one."""
    RUN_AGAIN = auto()
    """Run it again: it did not complete in an earlier try, or a stale run has cancelled it."""
    LOST = auto()
    """End this run, which is stale: a newer run has cancelled the child, or it was detached."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The run that starts children and waits for them.

    Attributes:
        scope: The id of the scope.
        epoch: The `attempts` of the parent in this run.
        since: The first epoch of this try.
    """

    scope: ObjectId
    epoch: int
    since: int

    def fate_of(self, found: Job) -> ChildFate:
        """Decide what to do with a child. A run whose block cancels its children does not call it."""
        child = found.child
        if child is None or child.scope != self.scope:
            return ChildFate.LOST
        is_older = (child.run or 0) < self.since
        if found.status in _LIVE:
            return ChildFate.ADOPT if is_older else ChildFate.TAKE
        if found.status is JobStatus.COMPLETED:
            return ChildFate.TAKE
        # It counts only for a cancelled child: one that was asked to end may have ended by itself.
        by = child.cancelled_by if found.status is JobStatus.CANCELLED else None
        # Also its own epoch: this run does not cancel now, so a sweeper has found that the job of this run had ended.
        if by is not None and by >= self.epoch:
            return ChildFate.LOST
        # Without `cancelled_by`, an operator or its `start_by` has cancelled it: that is a failure of the block.
        return ChildFate.RUN_AGAIN if is_older or by is not None else ChildFate.TAKE


def is_cancelled_by_block(ended: Job) -> bool:
    """Whether a child was cancelled by a block of its parent, or by a sweep after the parent's end."""
    return ended.status is JobStatus.CANCELLED and ended.child is not None and ended.child.cancelled_by is not None
