"""What inspects: blocking calls, for threads, scripts and the async client behind the door."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Final, Literal

from ..jobs.job import Job
from ..jobs.job_query import JobFilter, JobSort, job_query, object_id, page_query
from ..jobs.job_selector import Statuses, checked_name
from ..jobs.views import BrokenDocument, CursorPage, QueueStats, QueueView, WorkerView, page_of
from ..store import queries, statistics
from ..store.types import ObjectId
from .broken import Sifting
from .context import ClientContext
from .stats_cache import StatsCache

MOST_ASKED_ONE_BY_ONE: Final = 20
"""Names whose statistics are asked for one by one: a millisecond each."""


class Reader:
    """Inspects jobs; every call blocks until the database has answered."""

    def __init__(
        self, context: ClientContext, stats: StatsCache[QueueStats], workers: Callable[[], Mapping[str, WorkerView]]
    ) -> None:
        self._context = context
        self._stats = stats
        self._all_stats: StatsCache[Mapping[str, QueueStats]] = StatsCache(context.config.stats_cache_ttl)
        self._workers_here = workers

    def get_job(self, job_id: ObjectId | str) -> Job | None:
        """See `Monque.get_job`."""
        known = object_id(job_id)
        return None if known is None else queries.get_job(self._context.jobs, known)

    def get_jobs(
        self, *, name: str | None = None, status: Statuses | None = None, limit: int = 100, skip: int = 0
    ) -> Sequence[Job]:
        """See `Monque.get_jobs`."""
        return queries.get_jobs(self._context.jobs, job_query(name, status, limit, skip))

    def get_jobs_with_cursor(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        direction: Literal["forward", "backward"] = "forward",
        filter: JobFilter | None = None,  # noqa: A002
        sort: JobSort | str | None = None,
    ) -> CursorPage:
        """See `Monque.get_jobs_with_cursor`."""
        query = page_query(cursor, limit, direction, filter, sort)
        return page_of(query, queries.get_page(self._context.jobs, query))

    def get_queue_stats(self, *, name: str | None = None) -> QueueStats:
        """See `Monque.get_queue_stats`."""
        checked = checked_name(name)
        return self._stats.get(checked, partial(statistics.queue_stats, self._context.jobs, checked))

    def get_queue_view_summaries(self) -> Sequence[QueueView]:
        """See `Monque.get_queue_view_summaries`."""
        workers = self._workers_here()
        stored = queries.names(self._context.jobs)
        stats = self._stats_of(stored)
        return tuple(
            QueueView(
                name=name,
                has_jobs=name in stored,
                stats=stats.get(name, QueueStats()),
                worker=workers.get(name),
            )
            for name in sorted(stored | workers.keys())
        )

    def _stats_of(self, stored: Set[str]) -> Mapping[str, QueueStats]:
        """Of many names in one question, of few in one each: those are read no further than is counted."""
        jobs = self._context.jobs
        known: Mapping[str, QueueStats] = {}
        if len(stored) > MOST_ASKED_ONE_BY_ONE and statistics.are_few(jobs):
            known = self._all_stats.get(None, partial(statistics.queue_stats_by_name, jobs))
        # Not `get_queue_stats`: another program may have stored a name that this library would refuse.
        return {
            name: known.get(name) or self._stats.get(name, partial(statistics.queue_stats, jobs, name))
            for name in stored
        }

    def get_broken_documents(self, *, limit: int = 100) -> Sequence[BrokenDocument]:
        """See `Monque.get_broken_documents`."""
        return Sifting(self._context.jobs, limit).run()
