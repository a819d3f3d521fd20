"""What may be asked of the jobs, and what the answers look like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bson import ObjectId
from bson.errors import InvalidId

from ..errors import InvalidOptionError
from ..options import check_count
from .job import JobStatus


@dataclass(frozen=True, kw_only=True)
class JobQuery:
    """A page of jobs, earliest `next_run_at` first."""

    name: str | None = None
    statuses: tuple[JobStatus, ...] | None = None
    limit: int = 100
    skip: int = 0


def job_query(
    name: str | None, status: JobStatus | str | Iterable[JobStatus | str] | None, limit: int, skip: int
) -> JobQuery:
    """The query that a call asks for; raises InvalidOptionError naming what is wrong with it."""
    if name is not None and not isinstance(name, str):
        raise InvalidOptionError("name", name, "must be a string")
    check_count("limit", limit, at_least=1)
    check_count("skip", skip, at_least=0)
    return JobQuery(name=name, statuses=_statuses(status), limit=limit, skip=skip)


def _statuses(status: JobStatus | str | Iterable[JobStatus | str] | None) -> tuple[JobStatus, ...] | None:
    if status is None:
        return None
    given: Iterable[Any] = [status] if isinstance(status, str) else status
    try:
        return tuple(JobStatus(one) for one in given)
    except (ValueError, TypeError) as error:
        raise InvalidOptionError("status", status, f"must be among {', '.join(JobStatus)}") from error


def object_id(job_id: ObjectId | str) -> ObjectId | None:
    """The id that was given, as an ObjectId or its hex string; None for what cannot be one."""
    if isinstance(job_id, ObjectId):
        return job_id
    try:
        return ObjectId(job_id)
    except (InvalidId, TypeError):
        return None


@dataclass(frozen=True, kw_only=True)
class QueueStats:
    """How many jobs are in which status."""

    pending: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        return self.pending + self.processing + self.completed + self.failed + self.cancelled
