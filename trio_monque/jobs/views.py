"""Answers to queries about jobs: pages, counts, views, and documents that are not jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from .cursors import Anchor, anchor_of, encode
from .job import Job, JobStatus
from .job_query import JobQuery


@dataclass(frozen=True, kw_only=True)
class CursorPage:
    """A page of jobs.

    Attributes:
        jobs: In the order that was asked for, also where the page was read backward.
        cursor: Where to go on in the same direction; None where there is nothing to go on from.
        has_next_page: There are jobs behind it. Of a page that was read backward, whether a cursor was given.
        has_previous_page: There are jobs before it. Of one that was read forward, whether a cursor was given.
        is_capped: The filter let so few pass that the look ended before the page was full. `cursor` says where; go on
            there.
    """

    jobs: Sequence[Job]
    cursor: str | None
    has_next_page: bool
    has_previous_page: bool
    is_capped: bool = False


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the database knows of a query.

    Attributes:
        jobs: In the order of reading.
        frontier: Up to where all that match were found; None where that is to the end.
        is_capped: The look was ended there by a limit on what is examined.
    """

    jobs: Sequence[Job]
    frontier: Anchor | None = None
    is_capped: bool = False


def page_of(query: JobQuery, found: Found) -> CursorPage:
    """The page; `found` holds one job more than it shows, where there is one."""
    shown = list(found.jobs[: query.limit])
    has_more = len(found.jobs) > query.limit or found.frontier is not None
    is_capped = found.is_capped and len(found.jobs) <= query.limit
    end: Anchor | None = None
    if len(found.jobs) <= query.limit and found.frontier is not None:
        end = found.frontier  # Up to there it is known, and perhaps nothing was found.
    elif shown:
        end = anchor_of(shown[-1], query.sort.by)
    cursor = None if end is None else encode(end, query.sort.by, query.sort.direction, backward=query.backward)
    was_continued = query.anchor is not None
    if query.backward:
        shown.reverse()
    return CursorPage(
        jobs=tuple(shown),
        cursor=cursor,
        has_next_page=was_continued if query.backward else has_more,
        has_previous_page=has_more if query.backward else was_continued,
        is_capped=is_capped,
    )


@dataclass(frozen=True, kw_only=True)
class QueueStats:
    """How many jobs are in which status, at one moment of the last few seconds.

    Attributes:
        pending, processing, completed, failed, cancelled: How many; of those in `capped`, at least so many.
        average_lifetime: Seconds from the enqueuing of a completed job to its completion, in the mean; None where there
            is none.
        averaged: Of how many completed jobs that is, the latest.
        capped: The statuses that were not counted to their end.
    """

    pending: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    average_lifetime: float | None = None
    averaged: int = 0
    capped: frozenset[JobStatus] = field(default_factory=frozenset)

    @property
    def total(self) -> int:
        """Of all statuses; at least so many where `capped` is not empty."""
        return self.pending + self.processing + self.completed + self.failed + self.cancelled


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """What a scheduler runs of a name.

    Attributes:
        concurrency: How many jobs of it may run at once in this scheduler.
        active: How many do.
    """

    concurrency: int
    active: int


@dataclass(frozen=True, kw_only=True)
class QueueView:
    """What is known of one name.

    Attributes:
        name: The name.
        has_jobs: There are jobs of it in the collection.
        stats: How many, see QueueStats.
        worker: What this scheduler runs of it; None where it has no worker for it, and of a client that runs nothing.
    """

    name: str
    has_jobs: bool
    stats: QueueStats
    worker: WorkerView | None


NO_WORKERS: Final[Mapping[str, WorkerView]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BrokenDocument:
    """A document in the jobs collection that no scheduler runs: it is not a job, or is pending and bears an owner.

    Attributes:
        document_id: Its `_id`, of whatever type.
        reason: What is wrong with it.
        document: What is in it, as far as it can be decoded. Of what is large there is only a note how large it is.
    """

    document_id: object
    reason: str
    document: Mapping[str, Any]
