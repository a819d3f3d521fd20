"""The operator's part of Monque, and what it tells: through the door, on any anyio backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TypeVar

from ..call_context import async_calls
from ..events import Event
from ..jobs.job import Job
from ..store.database_threads import DatabaseThreads
from ..store.types import ObjectId
from .bus import Bus, EventT, Listener
from .context import ClientContext
from .enqueuing import IN_A_THREAD
from .event_stream import EventStream
from .operator import Operator
from .wake_board import Announcer, Nobody

R = TypeVar("R")


@async_calls(IN_A_THREAD)
class Managing:
    """Manages single jobs. A base of Monque, which makes the attributes."""

    _context: ClientContext
    _door: DatabaseThreads
    _bus: Bus
    _announcer: Announcer

    async def cancel_job(self, job_id: ObjectId | str) -> Job | None:
        """Cancels a job; a pending one at once, a processing one by asking the scheduler that runs it.

        A run that is asked hears of it at once by its scheduler's change stream, or else with its next
        heartbeat: it is cancelled, and its job is then `cancelled` however the run ends, but for a one-off
        job whose handler succeeded all the same.

        Returns:
            The job as it is now; None where there is none of that id, or the id cannot be one. A job that
            is cancelled already is returned as it is.

        Raises:
            JobStateError: It has ended, or is held by another library, which would not hear.
            BrokenDocumentError: The document is not a job; it stays as it is.
        """
        return await self._manage(lambda operator: operator.cancel_job(job_id))

    async def retry_job(self, job_id: ObjectId | str) -> Job | None:
        """Makes a failed or cancelled job pending again, due now and with all its tries.

        Returns:
            The job as it is now; None where there is none of that id.

        Raises:
            JobStateError: It is neither failed nor cancelled, or another live job has its unique key.
            BrokenDocumentError: The document is not a job; it stays as it is.
        """
        return await self._manage_again(lambda operator: operator.retry_job(job_id))

    async def reschedule_job(self, job_id: ObjectId | str, run_at: datetime) -> Job | None:
        """Changes when a pending job is due.

        Args:
            job_id: Which job.
            run_at: The moment, timezone-aware; one that has passed is due at once.

        Returns:
            The job as it is now; None where there is none of that id.

        Raises:
            JobStateError: It is not pending.
            BrokenDocumentError: The document is not a job; it stays as it is.
            InvalidOptionError: `run_at` cannot be.
        """
        return await self._manage_again(lambda operator: operator.reschedule_job(job_id, run_at))

    async def delete_job(self, job_id: ObjectId | str) -> bool:
        """Deletes a job, whatever its status; whether there was one. A run of it loses its claim with that."""
        return await self._manage(lambda operator: operator.delete_job(job_id))

    def on(self, event_type: type[EventT], listener: Listener[EventT]) -> Callable[[], None]:
        """Calls `listener` with every event of the type; returns what removes it again.

        A scheduler tells of all that it does: an async listener runs as a task there, a plain one in a
        thread, and neither a slow nor a raising one slows or breaks a job (one that is too slow misses
        events, which is logged). A client that runs no jobs tells of what its own calls did, before they
        return.
        """
        return self._bus.on(event_type, listener)

    def events(self, *types: type[EventT]) -> AbstractAsyncContextManager[EventStream[EventT]]:
        """`async with monque.events(JobFailed, ...) as stream: async for event in stream: ...`.

        Events of these types, in the order in which they happened, from entering until leaving the block;
        a scheduler's stream ends when the scheduler has ended. A slow reader misses events, which
        `stream.dropped` counts.
        """
        return self._bus.events(*types)

    async def _manage_again(self, action: Callable[[Operator], Job | None]) -> Job | None:
        """For what makes a job due: the schedulers of the run hear of it."""
        with self._announcer.also_if_lost():
            job = await self._manage(action)
        self._announcer.announce([] if job is None else [job])
        return job

    async def _manage(self, action: Callable[[Operator], R]) -> R:
        told: list[Event] = []
        operator = Operator(self._context, told.append, Nobody())
        try:
            result = await self._door.call(lambda: action(operator))
        except BaseException:
            # Cancelled while it waited for a thread that did it all the same: that has to be told, and cannot wait.
            for event in told:
                self._bus.tell_blocking(event)
            raise
        await self._bus.tell_all(told)
        return result
