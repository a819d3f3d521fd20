"""Monque: the client. The blocking calls of this room, through the door, on any anyio backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from ..jobs.events import Event
from ..jobs.job import Job, JobStatus
from ..jobs.new_job import Named
from ..jobs.selection import QueueStats
from ..options import ClientConfig, ClientOptions, client_config
from ..store.connection import JobCollection, check_database
from ..store.offload import Door
from ..store.types import Database, ObjectId
from .bus import Bus
from .managing import Managing
from .operator import Operator
from .producer import Ground, Producer
from .reader import Reader
from .wake_board import wake_neighbours

logger = logging.getLogger("trio_monque")


class SyncMonque(Producer, Reader, Operator):
    """The same calls as Monque's, blocking: for threads, scripts, Django and plain handlers."""

    def __init__(self, ground: Ground, tell: Callable[[Event], None]) -> None:
        Producer.__init__(self, ground)
        Reader.__init__(self, ground)
        Operator.__init__(self, ground, tell)


class Monque(Managing):
    """The client: enqueues and inspects jobs, and runs none.

    Made anywhere, a module's top level too: it holds nothing that belongs to an event loop, and works
    on trio, asyncio and uvloop alike, on several after each other too. It never closes your client.

    Cancellation: a call that is cancelled before anything was sent has sent nothing; one that was sent
    is awaited.

    Args:
        db: A `pymongo.database.Database`. Its codec options hold for `data`; reads go to the primary.
        options: See ClientConfig: collection_name, max_payload_size, operation_timeout,
            skip_index_creation, write_concern.

    Raises:
        InvalidDatabaseError: `db` is something else; the message says what to pass.
        InvalidOptionError: An option cannot be; names it.
    """

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
        self._ground = Ground(jobs, config)
        self._bus = Bus()
        self._sync = SyncMonque(self._ground, self._bus.tell_blocking)
        self._door = Door()
        self._namespace = jobs.collection.full_name

    @property
    def sync(self) -> SyncMonque:
        """The same calls, blocking."""
        return self._sync

    async def enqueue(
        self,
        worker: str | Named,
        data: Any = None,
        *,
        run_at: datetime | None = None,
        delay: float | None = None,
        unique_key: str | None = None,
        max_retries: int | None = None,
        max_rescues: int | None = None,
        timeout: float | None = None,
    ) -> Job:
        """Stores a job, acknowledged by a majority; from then on it runs until it has ended.

        Args:
            worker: The name of a worker, or the worker.
            data: Any BSON value.
            run_at: When it is due, timezone-aware; by default now. A moment that has passed is due at once.
            delay: Seconds from now, instead of `run_at`.
            unique_key: At most one pending or processing job of this name has this key: where there is
                one already, that one is returned as it is.
            max_retries: After how many failures this job is `failed`, instead of its worker's.
            max_rescues: How many deaths in a row it may cause, instead of the scheduler's.
            timeout: Seconds that one run may take, instead of its worker's.

        Raises:
            InvalidJobIdentifierError, InvalidPayloadError, PayloadTooLargeError, InvalidOptionError:
                Something about the job cannot be; nothing was sent.
            MonqueConnectionError: The database did not take it.
        """
        job = await self._door.call(
            partial(
                self._sync.enqueue,
                worker,
                data,
                run_at=run_at,
                delay=delay,
                unique_key=unique_key,
                max_retries=max_retries,
                max_rescues=max_rescues,
                timeout=timeout,
            )
        )
        wake_neighbours(self._namespace)
        return job

    async def now(self, worker: str | Named, data: Any = None) -> Job:
        """`enqueue` for a job that is due at once."""
        return await self.enqueue(worker, data)

    async def get_job(self, job_id: ObjectId | str) -> Job | None:
        """The job of that id, an ObjectId or its hex string; None where there is none, or the id cannot be one."""
        return await self._door.call(partial(self._sync.get_job, job_id))

    async def get_jobs(
        self,
        *,
        name: str | None = None,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
        limit: int = 100,
        skip: int = 0,
    ) -> Sequence[Job]:
        """Jobs of a name and of one or several statuses, earliest `next_run_at` first."""
        return await self._door.call(partial(self._sync.get_jobs, name=name, status=status, limit=limit, skip=skip))

    async def get_queue_stats(self, *, name: str | None = None) -> QueueStats:
        """How many jobs are in which status, of one name or of all."""
        return await self._door.call(partial(self._sync.get_queue_stats, name=name))
