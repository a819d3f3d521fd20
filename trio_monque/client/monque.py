"""Monque: the client. The blocking calls of this room, through the door, on any anyio backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar, Unpack

from ..jobs.events import Event
from ..jobs.job import Job, JobStatus
from ..jobs.selection import QueueStats
from ..options import ClientConfig, ClientOptions, client_config
from ..store.connection import JobCollection, check_database
from ..store.offload import Door
from ..store.types import Database, ObjectId
from .bulk import SyncBulk
from .bulk_managing import BulkManaging
from .bus import Bus
from .enqueuing import Enqueuing
from .fleet import Fleet, SyncFleet
from .ground import Ground
from .group_enqueue import GroupEnqueue
from .intake import Intake
from .managing import Managing
from .operator import Operator
from .producer import Producer
from .reader import Reader
from .recovering import Recovering, SyncRecovering
from .wake_board import Announcer, Nobody

logger = logging.getLogger("trio_monque")

T = TypeVar("T")


class SyncMonque(Producer, Reader, Operator, SyncBulk, SyncRecovering, SyncFleet):
    """The same calls as Monque's, blocking: for threads, scripts, Django and plain handlers."""

    def __init__(self, ground: Ground, tell: Callable[[Event], None]) -> None:
        announcer = Announcer(ground.jobs.collection.full_name)
        Producer.__init__(self, ground, announcer)
        Reader.__init__(self, ground)
        Operator.__init__(self, ground, tell, announcer)
        SyncBulk.__init__(self, ground, tell, announcer)
        SyncRecovering.__init__(self, ground, tell, announcer)
        SyncFleet.__init__(self, ground, announcer)


class Monque(Enqueuing, Managing, BulkManaging, Recovering, Fleet):
    """The client: enqueues and inspects jobs, and runs none.

    Made anywhere, a module's top level too: it holds nothing that belongs to an event loop, and works
    on trio, asyncio and uvloop alike, on several after each other too. It never closes your client.

    Cancellation: a call that is cancelled before anything was sent has sent nothing; one that was sent
    is awaited. What only reads is awaited no longer than its caller wants (on asyncio: until the answer).

    Args:
        db: A `pymongo.database.Database`. Its codec options hold for `data`; reads go to the primary.
        options: See ClientConfig: collection_name, max_payload_size, operation_timeout,
            skip_index_creation, write_concern.

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
        self._ground = Ground(jobs, config)
        self._bus = Bus()
        self._producer = Producer(self._ground, Nobody())
        self._sync = SyncMonque(self._ground, self._bus.tell_blocking)
        self._door = Door()
        self._intake = Intake(self._ground)
        self._group = GroupEnqueue(self._door, self._intake.send_all)
        self._announcer = Announcer(jobs.collection.full_name)

    @property
    def sync(self) -> SyncMonque:
        """The same calls, blocking."""
        return self._sync

    async def get_job(self, job_id: ObjectId | str) -> Job | None:
        """The job of that id, an ObjectId or its hex string; None where there is none, or the id cannot be one."""
        return await self._read(partial(self._sync.get_job, job_id))

    async def get_jobs(
        self,
        *,
        name: str | None = None,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
        limit: int = 100,
        skip: int = 0,
    ) -> Sequence[Job]:
        """Jobs of a name and of one or several statuses, earliest `next_run_at` first."""
        return await self._read(partial(self._sync.get_jobs, name=name, status=status, limit=limit, skip=skip))

    async def get_queue_stats(self, *, name: str | None = None) -> QueueStats:
        """How many jobs are in which status, of one name or of all."""
        return await self._read(partial(self._sync.get_queue_stats, name=name))

    async def _read(self, question: Callable[[], T]) -> T:
        # It changes nothing, so its answer is worth no wait to who is cancelled.
        return await self._door.call(question, abandon_on_cancel=True)
