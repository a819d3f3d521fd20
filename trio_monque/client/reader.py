"""What inspects: blocking calls, for threads, scripts and the async client behind the door."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..jobs.broken_document import BrokenDocument
from ..jobs.job import Job, JobStatus
from ..jobs.selection import QueueStats, job_query, object_id
from ..store import queries, statistics
from ..store.types import ObjectId
from .broken import Sifting
from .ground import Ground


class Reader:
    """Inspects jobs; every call blocks until the database has answered."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def get_job(self, job_id: ObjectId | str) -> Job | None:
        """See `Monque.get_job`."""
        known = object_id(job_id)
        return None if known is None else queries.get_job(self._ground.jobs, known)

    def get_jobs(
        self,
        *,
        name: str | None = None,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
        limit: int = 100,
        skip: int = 0,
    ) -> Sequence[Job]:
        """See `Monque.get_jobs`."""
        return queries.get_jobs(self._ground.jobs, job_query(name, status, limit, skip))

    def get_queue_stats(self, *, name: str | None = None) -> QueueStats:
        """See `Monque.get_queue_stats`."""
        return statistics.queue_stats(self._ground.jobs, name)

    def get_broken_documents(self, *, limit: int = 100) -> Sequence[BrokenDocument]:
        """See `Monque.get_broken_documents`."""
        return Sifting(self._ground.jobs, limit).run()
