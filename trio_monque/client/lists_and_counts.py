"""Many jobs as they are: lists, pages, counts, and documents that cannot be run. Blocking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from ..checks import check_count
from ..jobs.job import Job
from ..jobs.job_query import JobFilter, JobSort, job_query, page_query
from ..jobs.job_selector import Statuses, checked_name
from ..jobs.views import BrokenDocument, CursorPage, QueueDepth, QueueStats, QueueView, page_of
from ..store.broken import broken_documents
from ..store.reads import job_counts, queries
from ..store.reads.counts_by_name import counts_by_name
from ..store.reads.queue_depths import DepthCaps, queue_depths
from .client_context import ClientContext
from .operation import Known, Operation, Read


def get_jobs(
    context: ClientContext,
    *,
    name: str | None = None,
    status: Statuses | None = None,
    limit: int = 100,
    skip: int = 0,
) -> Operation[Sequence[Job]]:
    """Return jobs of a name and of one or several statuses, earliest `next_run_at` first.

    The server reads also what `skip` passes over: to go far, use `get_jobs_with_cursor`. Documents that are not jobs
    are left out, and not counted.

    Raises:
        InvalidOptionError: An argument is invalid; the message names it.
        MonqueConnectionError: The database did not answer within `operation_timeout`.
    """
    query = job_query(name, status, limit, skip)
    return Read(lambda: queries.get_jobs(context.jobs, query))


def get_jobs_with_cursor(
    context: ClientContext,
    *,
    cursor: str | None = None,
    limit: int = 50,
    direction: Literal["forward", "backward"] = "forward",
    filter: JobFilter | None = None,  # noqa: A002
    sort: JobSort | str | None = None,
) -> Operation[CursorPage]:
    """Return a page of jobs, and a cursor with which the next call continues behind it.

    From the first page to the last, each job is returned exactly once that exists all the time and does not change.
    Documents that are not jobs are left out, and not counted.

    Args:
        cursor: The `cursor` of a page; also one that Monque for Node made. None for the first page.
        limit: How many jobs the page has, at most.
        direction: "forward", or "backward" towards the beginning of the order; without a cursor that is the
            last page. The jobs of a page are in the order of `sort` in both directions.
        filter: Which jobs. It may differ from that of the page before.
        sort: A JobSort, or a string such as "created_at", and "-created_at" for the latest first. By default by
            id. It must be that of the cursor.

    Raises:
        InvalidCursorError: The cursor cannot be read, or is of another order.
        InvalidOptionError: Another argument is invalid; the message names it.
        MonqueConnectionError: The database did not answer within `operation_timeout`.
    """
    query = page_query(cursor, limit, direction, filter, sort)

    def read() -> CursorPage:
        wanted = query.filter.as_of(context.now).within_scope(partial(queries.scope_of_children, context.jobs))
        asked = replace(query, filter=wanted)
        return page_of(asked, queries.get_page(context.jobs, asked))

    return Read(read)


def get_queue_stats(context: ClientContext, *, name: str | None = None) -> Operation[QueueStats]:
    """Count the jobs in each status, of one name or of all.

    An answer is kept for `stats_cache_ttl` seconds, and returned again whatever happens meanwhile. Concurrent callers
    share one query.

    Raises:
        AggregationTimeoutError: The server needed longer than `operation_timeout`.
        MonqueConnectionError: The database did not answer.
    """
    checked = checked_name(name)
    known = context.stats.known(checked)
    if known is not None:
        return Known(known)
    return Read(partial(context.stats.get, checked, partial(job_counts.queue_stats, context.jobs, checked)))


def get_queue_view_summaries(context: ClientContext) -> Operation[Sequence[QueueView]]:
    """Return a view of each name that has jobs, or a worker of this scheduler, sorted by name.

    A client that runs nothing has no workers, and does not know those of others: see `instances`.

    The statistics have no lifetimes. The server counts at most 400,000 jobs for one answer; where there are more, it
    counts each status of a name up to 10,000, with more than ten names to less, and beyond 200 names it leaves the last
    names uncounted. `stats.capped` says which numbers are lower bounds. An answer is kept for `stats_cache_ttl`
    seconds, and concurrent callers share one query.

    Raises:
        AggregationTimeoutError: The server needed longer than `operation_timeout`.
        MonqueConnectionError: The database did not answer.
    """
    return Read(partial(_queue_views, context))


def _queue_views(context: ClientContext) -> Sequence[QueueView]:
    workers = context.workers_here()
    stats = context.stats_by_name.get(None, lambda: counts_by_name(context.jobs))
    return tuple(
        QueueView(name=name, has_jobs=name in stats, stats=stats.get(name, QueueStats()), worker=workers.get(name))
        for name in sorted(stats.keys() | workers.keys())
    )


def get_queue_depths(
    context: ClientContext, *, most_pending: int = 100_000, most_failed: int = 10_000, most_ended: int = 1_000
) -> Operation[Mapping[str, QueueDepth]]:
    """Count the jobs of each name by status, with the oldest that is due and those that are stuck, in one command.

    It is meant for a look every few seconds; `trio_monque.metrics` shows Prometheus the answer. Each name costs the
    server about a millisecond, and two microseconds for each job that is counted. Names without jobs are not in the
    answer.

    An answer is kept for `stats_cache_ttl` seconds, and returned again whatever happens meanwhile. Concurrent callers
    share one query.

    Args:
        most_pending: Up to which number the pending jobs of each name are counted; 0 to leave them out.
        most_failed: The same for failed jobs.
        most_ended: The same for completed jobs, and for cancelled ones.

    Raises:
        InvalidOptionError: A number is negative.
        AggregationTimeoutError: The server needed longer than `operation_timeout`.
        MonqueConnectionError: The database cannot be reached or used.
    """
    caps = DepthCaps(most_pending, most_failed, most_ended)
    for option, most in (("most_pending", most_pending), ("most_failed", most_failed), ("most_ended", most_ended)):
        check_count(option, most, at_least=0)
    key = str(caps)
    if (known := context.depths.known(key)) is not None:
        return Known(known)
    return Read(lambda: context.depths.get(key, lambda: queue_depths(context.jobs, context.now(), caps)))


def get_broken_documents(context: ClientContext, *, limit: int = 100) -> Operation[Sequence[BrokenDocument]]:
    """Find documents of the collection that no scheduler runs, and why; at most `limit` of them.

    Those are documents that are not jobs (a field is missing or of the wrong type, the status is unknown, the data
    cannot be decoded), and pending jobs that still bear an owner. The call reads the collection in batches until it
    has found `limit` documents, or has read all.

    A scheduler reads the broken documents that it met again once a minute: a document that was mended runs without a
    restart.

    Raises:
        InvalidOptionError: `limit` is not a whole number of at least 1.
        MonqueConnectionError: The database cannot be reached or used.
    """
    return _BrokenDocuments(context, limit)


class _BrokenDocuments(Operation[Sequence[BrokenDocument]]):
    """One look through the collection, a batch a step."""

    only_reads = True

    def __init__(self, context: ClientContext, limit: int) -> None:
        check_count("limit", limit, at_least=1)
        super().__init__()
        self._jobs = context.jobs
        self._limit = limit
        self._look = broken_documents.BrokenLook()
        self._found: list[BrokenDocument] = []

    def step(self) -> None:
        self._found += broken_documents.sift(self._jobs, self._look, self._limit - len(self._found))
        if self._look.is_over:
            self.finish(self._found)
