"""Answers to queries about jobs: pages, counts, views, and documents that are not jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from .cursors import Anchor, anchor_of, encode
from .job import Job, JobStatus
from .job_query import JobQuery


@dataclass(frozen=True, kw_only=True)
class CursorPage:
    """A page of jobs.

    Attributes:
        jobs: The jobs in the requested order, also if the page was read backward.
        cursor: Where the next page in the same direction begins; None for an empty page.
        has_next_page: Whether jobs follow. For a page that was read backward: whether a cursor was given.
        has_previous_page: Whether jobs precede. For a page that was read forward: whether a cursor was given.
        is_capped: The search stopped before the page was full: few jobs match the filter, or the jobs are large.
            Continue at `cursor`.
        examined: How many jobs the search looked through, if it is capped and that is known; otherwise None.
    """

    jobs: Sequence[Job]
    cursor: str | None
    has_next_page: bool
    has_previous_page: bool
    is_capped: bool = False
    examined: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobList:
    """The first jobs of an order.

    Attributes:
        jobs: The jobs.
        is_capped: There may be more.
        is_without_index: Only of `get_schedules`: the index of schedules does not exist, so the answer has no recurring
            jobs that have ended, and none without a unique key.
    """

    jobs: Sequence[Job]
    is_capped: bool = False
    is_without_index: bool = False


@dataclass(frozen=True, kw_only=True)
class ScheduleBrief:
    """A recurring job, in brief.

    Attributes:
        id, name, unique_key, status: Of the job.
        at: When it is due next; of a job that has ended, when it was due last.
    """

    id: Any
    name: str
    unique_key: str | None
    status: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Found:
    """The jobs that a query found.

    Attributes:
        jobs: In the order of reading.
        frontier: The place up to which all matching jobs were found; None for the end of the order.
        is_capped: The search stopped at `frontier`, at the limit of documents that are examined, or of bytes.
        examined: How many documents the search that stopped looked through; None if none stopped, or if it is unknown.
    """

    jobs: Sequence[Job]
    frontier: Anchor | None = None
    is_capped: bool = False
    examined: int | None = None


def page_of(query: JobQuery, found: Found) -> CursorPage:
    """Makes the page. `found` may have one job more than the page shows, which proves that another page follows."""
    shown = list(found.jobs[: query.limit])
    has_more = len(found.jobs) > query.limit or found.frontier is not None
    is_capped = found.is_capped and len(found.jobs) <= query.limit
    end: Anchor | None = None
    if len(found.jobs) <= query.limit and found.frontier is not None:
        end = found.frontier  # The search got that far, although it may have found no job.
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
        examined=found.examined if is_capped else None,
    )


@dataclass(frozen=True, kw_only=True)
class QueueStats:
    """The number of jobs in each status, at one moment of the last few seconds.

    Attributes:
        pending, processing, completed, failed, cancelled: Numbers of jobs. For a status in `capped`: a lower bound.
        average_lifetime: Mean seconds from enqueuing to completion; None if no job is completed.
        averaged: The number of completed jobs in that mean: the latest ones.
        capped: The statuses whose jobs were not counted to the end.
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
        """The number of jobs in all statuses; a lower bound if `capped` is not empty."""
        return self.pending + self.processing + self.completed + self.failed + self.cancelled


@dataclass(frozen=True, kw_only=True)
class QueueDepth:
    """The jobs of one name at one moment, as a monitor wants them.

    Attributes:
        pending, processing, completed, failed, cancelled: Numbers of jobs, each up to its cap: see
            `get_queue_depths`.
        due: How many of the pending ones were due by then. Those that are due first are counted first.
        capped: The statuses that have more jobs than were counted.
        oldest_due_age: Seconds for which the oldest due pending job has waited by then; None if none is due.
        longest_run: Seconds for which the job that runs longest was claimed by then; None if none runs.
        stuck: How many of the processing jobs had no heartbeat for three of their heartbeat intervals, by the server's
            clock. Their holders are dead, frozen or cut off. Schedulers rescue such jobs by themselves, soon after.
    """

    pending: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    due: int = 0
    capped: frozenset[JobStatus] = field(default_factory=frozenset)
    oldest_due_age: float | None = None
    longest_run: float | None = None
    stuck: int = 0


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """The worker for a name in a scheduler.

    Attributes:
        concurrency: How many jobs of this name may run at once in the scheduler.
        active: How many are running.
    """

    concurrency: int
    active: int


@dataclass(frozen=True, kw_only=True)
class QueueView:
    """The jobs and the worker of one name.

    Attributes:
        name: The name.
        has_jobs: Whether the collection has jobs of this name.
        stats: Their numbers by status.
        worker: The worker in this scheduler; None if it has none for the name, and for a client, which runs no jobs.
    """

    name: str
    has_jobs: bool
    stats: QueueStats
    worker: WorkerView | None


NO_WORKERS: Final[Mapping[str, WorkerView]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BrokenDocument:
    """A document in the jobs collection that no scheduler runs: it is not a job, or is pending but has an owner.

    Attributes:
        document_id: Its `_id`, of any type.
        reason: What is wrong with the document.
        document: Its content, as far as it can be decoded. Large values are replaced by a note of their size.
    """

    document_id: object
    reason: str
    document: Mapping[str, Any]
