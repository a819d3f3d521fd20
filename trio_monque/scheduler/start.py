"""How a scheduler gets ready, and how it undoes that: the indexes, its entry among the instances, its schedules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ..client.context import ClientContext
from ..client.local_wakeups import receiving_wakeups
from ..client.sync_monque import SyncMonque
from ..store.database_threads import Channel, DatabaseThreads
from .engine_wakeups import EngineWakeups
from .presence import Presence
from .workers import Workers


class SchedulerStart:
    """What the host asks for at the start and at the end of a scheduler."""

    def __init__(
        self, context: ClientContext, door: DatabaseThreads, workers: Workers, presence: Presence, sync: SyncMonque
    ) -> None:
        self._context = context
        self._door = door
        self._workers = workers
        self._presence = presence
        self._sync = sync

    async def get_ready(self) -> None:
        # Nothing is held yet, so this wait may be cut short at any time.
        await self._door.hand_over(self._get_ready, orphan=lambda _: self._presence.leave(), channel=Channel.COMMANDS)

    def _get_ready(self) -> None:
        """In a thread: the server's time, the indexes, and with them whether the database can be used at all.

        Then the entry of this instance, whose id must not be another's, and the declared schedules. However many
        instances declare one at once, one job of it exists.
        """
        self._context.measure_clock_offset()
        self._context.ensure_indexes()
        self._presence.enter()
        try:
            self._declare_schedules()
        except BaseException:
            self._presence.leave()
            raise

    def _declare_schedules(self) -> None:
        for name, cron in self._workers.crons.items():
            self._sync.schedule(
                cron.expression,
                name,
                cron.data,
                unique_key=f"cron:{name}",
                timezone=cron.timezone,
                on_exhausted=cron.on_exhausted,
                version=cron.version,
                on_conflict="update",
            )

    async def leave(self) -> None:
        """Removes the entry where the engine ended out of order, and could not."""
        if self._presence.is_there:
            await self._door.call(self._presence.leave, channel=Channel.RENEWALS, abandon_on_cancel=True)

    @contextmanager
    def reachable(self, wakeups: EngineWakeups) -> Iterator[None]:
        """While it runs, the clients of this trio run wake it."""
        try:
            with receiving_wakeups(self._context.jobs.collection.full_name, wakeups):
                yield
        finally:
            self._context.forget_statistics()

    async def bound_calls_of_body(self, cutting: trio.Event, cleanup_timeout: float, in_body: trio.CancelScope) -> None:
        """When all is cut, calls of the body are awaited no longer than clean-ups are."""
        with in_body:
            await cutting.wait()
            await trio.sleep(cleanup_timeout)
            self._door.patience.end()
