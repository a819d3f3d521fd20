"""Monque: the client. The blocking calls of this room, through the door, on any anyio backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar, Unpack

import anyio.lowlevel

from ..call_context import async_calls, blocking_calls
from ..events import Event
from ..jobs.job import Job
from ..jobs.job_query import JobFilter, JobSort
from ..jobs.job_selector import Statuses, checked_name
from ..jobs.views import NO_WORKERS, CursorPage, QueueStats, QueueView, WorkerView
from ..log import logger_of
from ..options import ClientConfig, ClientOptions, client_config
from ..store.connection import check_database
from ..store.database_threads import DatabaseThreads
from ..store.job_collection import JobCollection
from ..store.types import Database, ObjectId
from .bulk import SyncBulk
from .bulk_managing import BulkManaging
from .bus import Bus
from .context import ClientContext
from .enqueuing import IN_A_THREAD, Enqueuing
from .fleet import Fleet, SyncFleet
from .group_enqueue import GroupEnqueue
from .intake import Intake
from .managing import Managing
from .operator import Operator
from .producer import Producer
from .reader import Reader
from .recovering import Recovering, SyncRecovering
from .stats_cache import StatsCache
from .wake_board import Announcer, Nobody

logger = logger_of()

T = TypeVar("T")


@blocking_calls
class SyncMonque(Producer, Reader, Operator, SyncBulk, SyncRecovering, SyncFleet):
    """The same calls as Monque's, blocking: for threads, scripts, Django and plain handlers.

    Raises:
        CallContextError: It is called in a task of an event loop, which would stand still; `sync_in_loop` allows it.
    """

    def __init__(
        self,
        context: ClientContext,
        tell: Callable[[Event], None],
        stats: StatsCache[QueueStats],
        workers: Callable[[], Mapping[str, WorkerView]],
        *,
        blocks_loops: bool = False,
    ) -> None:
        self.blocks_loops = blocks_loops
        announcer = Announcer(context.jobs.collection.full_name)
        Producer.__init__(self, context, announcer)
        Reader.__init__(self, context, stats, workers)
        Operator.__init__(self, context, tell, announcer)
        SyncBulk.__init__(self, context, tell, announcer)
        SyncRecovering.__init__(self, context, tell, announcer)
        SyncFleet.__init__(self, context, announcer)


@async_calls(IN_A_THREAD)
class Monque(Enqueuing, Managing, BulkManaging, Recovering, Fleet):
    """The client: enqueues and inspects jobs, and runs none.

    Made anywhere, a module's top level too: it holds nothing that belongs to an event loop, and works
    on trio, asyncio and uvloop alike, on several after each other too. It never closes your client.

    Cancellation: a call that is cancelled before anything was sent has sent nothing; one that was sent
    is awaited. What only reads is awaited no longer than its caller wants (on asyncio: until the answer).

    Args:
        db: A `pymongo.database.Database`. Its codec options hold for `data`; reads go to the primary.
        options: See ClientConfig: collection_name, max_payload_size, operation_timeout,
            skip_index_creation, stats_cache_ttl, write_concern.

    Raises:
        InvalidDatabaseError: `db` is something else; the message says what to pass.
        InvalidOptionError: An option cannot be; names it.
    """

    _sync: SyncMonque

    def __init__(self, db: Database, **options: Unpack[ClientOptions]) -> None:
        self._open(db, client_config(options))

    def _open(self, db: Database, config: ClientConfig) -> None:
        if config.write_concern != "majority":
            logger.warning(
                "write_concern=%r: a failover may undo claims, settlements and new jobs. "
                "Guarantees 1 to 4 hold only with 'majority'",
                config.write_concern,
            )
        jobs = JobCollection.of(
            check_database(db),
            config.collection_name,
            write_concern=config.write_concern,
            operation_timeout=config.operation_timeout,
        )
        self._context = ClientContext(jobs, config)
        self._bus = Bus()
        self._producer = Producer(self._context, Nobody())
        self._stats: StatsCache[QueueStats] = StatsCache(config.stats_cache_ttl)
        self._sync = self._blocking(blocks_loops=False)
        self._door = DatabaseThreads()
        self._intake = Intake(self._context)
        self._group = GroupEnqueue(self._door, self._intake.send_all)
        self._announcer = Announcer(jobs.collection.full_name)

    def _blocking(self, *, blocks_loops: bool) -> SyncMonque:
        return SyncMonque(
            self._context,
            self._bus.tell_blocking,
            self._stats,
            lambda: self._workers_here(),
            blocks_loops=blocks_loops,
        )

    @property
    def sync(self) -> SyncMonque:
        """The same calls, blocking; refused in a task of an event loop."""
        return self._sync

    @property
    def sync_in_loop(self) -> SyncMonque:
        """The same as `sync`, allowed in a task of an event loop too: all its tasks wait for the database."""
        return self._blocking(blocks_loops=True)

    async def get_job(self, job_id: ObjectId | str) -> Job | None:
        """The job of that id, an ObjectId or its hex string; None where there is none, or the id cannot be one."""
        return await self._read(partial(self._sync.get_job, job_id))

    async def get_jobs(
        self,
        *,
        name: str | None = None,
        status: Statuses | None = None,
        limit: int = 100,
        skip: int = 0,
    ) -> Sequence[Job]:
        """Jobs of a name and of one or several statuses, earliest `next_run_at` first.

        What is passed over by `skip` is read, too: to go far, use `get_jobs_with_cursor`. Documents that are no
        jobs are left out, and not counted.

        Raises:
            InvalidOptionError: An argument cannot be; names it.
            MonqueConnectionError: The database did not answer within `operation_timeout`.
        """
        return await self._read(partial(self._sync.get_jobs, name=name, status=status, limit=limit, skip=skip))

    async def get_jobs_with_cursor(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        direction: Literal["forward", "backward"] = "forward",
        filter: JobFilter | None = None,  # noqa: A002
        sort: JobSort | str | None = None,
    ) -> CursorPage:
        """A page of jobs, and a cursor with which the next call goes on behind it.

        Whoever goes on until there is nothing more has seen each job exactly once that was there all the time and
        did not change. Documents that are not jobs are left out, and not counted.

        Args:
            cursor: What a page has as its `cursor`; also one that Monque for Node made. None for the first page.
            limit: How many jobs the page has, at most.
            direction: "forward", or "backward" towards the beginning of the order; without a cursor that is the
                last page. A page's jobs are in the order that was asked for all the same.
            filter: Which jobs. It may be another than that of the page before.
            sort: A JobSort, or a string such as "created_at", and "-created_at" for the latest first. By default by
                id. It must be that of the cursor.

        Raises:
            InvalidCursorError: The cursor is none, or of another order.
            InvalidOptionError: Another argument cannot be; names it.
            MonqueConnectionError: The database did not answer within `operation_timeout`.
        """
        page = partial(
            self._sync.get_jobs_with_cursor, cursor=cursor, limit=limit, direction=direction, filter=filter, sort=sort
        )
        return await self._read(page)

    async def get_queue_stats(self, *, name: str | None = None) -> QueueStats:
        """How many jobs are in which status, of one name or of all.

        An answer is kept for `stats_cache_ttl` seconds, and given again whatever happens meanwhile. Who asks while it
        is asked for already waits for the same answer.

        Raises:
            AggregationTimeoutError: The server did not manage within `operation_timeout`.
            MonqueConnectionError: The database did not answer.
        """
        known = self._stats.known(checked_name(name))
        if known is not None:
            await anyio.lowlevel.checkpoint()
            return known
        return await self._read(partial(self._sync.get_queue_stats, name=name))

    async def get_queue_view_summaries(self) -> Sequence[QueueView]:
        """The names that there are jobs of, or a worker of this scheduler, sorted.

        A client that runs nothing has no workers, and does not know those of others: see `instances`.

        Raises:
            AggregationTimeoutError: The server did not manage within `operation_timeout`.
            MonqueConnectionError: The database did not answer.
        """
        return await self._read(self._sync.get_queue_view_summaries)

    def _workers_here(self) -> Mapping[str, WorkerView]:
        return NO_WORKERS

    async def _read(self, question: Callable[[], T]) -> T:
        # It changes nothing, so its answer is worth no wait to who is cancelled.
        return await self._door.call(question, abandon_on_cancel=True)
