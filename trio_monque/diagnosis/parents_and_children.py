"""Facts about a parent of job nurseries, and about a child, at the cost of one read; without words. Pure.

Children that have ended are not counted: no index has them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..jobs.claimable import was_unstarted
from ..jobs.job import Job, JobStatus
from ..jobs.job_parts import NO_CLAIM
from ..jobs.nursery_scopes import OF_A_DELETED_PARENT
from .reasons import Reason

MOST_CHILDREN: Final = 200
"""Live children of a parent that are read to describe its blocks."""


@dataclass(frozen=True, slots=True)
class BlockNow:
    """A block of a parent that has live children, or that has failed.

    Attributes:
        key: Its key, or its number.
        running, pending: Its live children.
        failed_by: The ids of the children whose failures have ended it.
    """

    key: str
    running: Sequence[Job]
    pending: Sequence[Job]
    failed_by: Sequence[Any] = ()

    @property
    def holders(self) -> Sequence[str]:
        """The instances that run its children."""
        return sorted({by for job in self.running if (by := (job.claim or NO_CLAIM).by) is not None})


def blocks_of(parent: Job, live: Sequence[Job]) -> Sequence[BlockNow]:
    """Return the blocks of a parent, sorted by their keys."""
    failed: Mapping[str, Any] = (parent.nursery.failed if parent.nursery is not None else None) or {}
    children = [(child.child.block, child) for child in live if child.child is not None]
    keys = {*failed, *(block for block, _ in children if block is not None)}
    return [
        BlockNow(
            key=key,
            running=[one for block, one in children if block == key and one.status is JobStatus.PROCESSING],
            pending=[one for block, one in children if block == key and one.status is JobStatus.PENDING],
            failed_by=_ids(failed.get(key)),
        )
        for key in sorted(keys)
    ]


def why_cancelled(child: Job, parent: Job | None) -> Reason | None:
    """Return who cancelled a child, or asked it to end; None for other jobs.

    Args:
        child: The job.
        parent: Its parent as it is now; None if there is none, or if it cannot be read.
    """
    own = child.child
    is_asked = child.status is JobStatus.PROCESSING and (child.claim or NO_CLAIM).cancel_requested_at is not None
    if own is None or not (child.status is JobStatus.CANCELLED or is_asked):
        return None
    if was_unstarted(child):
        return Reason("by_start_by", {"start_by": child.limits.start_by})
    if own.cancelled_by is None:
        return Reason("by_caller")
    if own.cancelled_by == OF_A_DELETED_PARENT:
        return Reason("by_deletion")
    scope = None if parent is None else parent.nursery
    if scope is not None and scope.id == own.scope and (ids := _ids((scope.failed or {}).get(own.block or ""))):
        return Reason("by_failure", {"jobs": ids, "block": own.block})
    return Reason("by_run", {"run": own.cancelled_by})


def _ids(stored: Any) -> Sequence[Any]:
    return stored if isinstance(stored, list) else ()
