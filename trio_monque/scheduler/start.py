"""SchedulerStart: gets a scheduler ready (indexes, its entry in the fleet, its schedules), and undoes that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ..client.client_context import ClientContext
from ..client.local_wakeups import receiving_wakeups
from ..client.sync_monque import SyncMonque
from ..log import logger_of
from ..store.driver.database_threads import Channel, DatabaseThreads
from ..store.jobs.collection_options import check_options
from .engine_wakeups import EngineWakeups
from .presence import Presence
from .workers import Workers

logger = logger_of()


class SchedulerStart:
    """The steps that the host calls at the start and at the end of a scheduler."""

    def __init__(
        self,
        context: ClientContext,
        db_threads: DatabaseThreads,
        workers: Workers,
        presence: Presence,
        sync: SyncMonque,
        instance_id: str,
    ) -> None:
        self._context = context
        self._db_threads = db_threads
        self._workers = workers
        self._presence = presence
        self._sync = sync
        self._instance_id = instance_id

    async def get_ready(self) -> None:
        # No job is held yet, so this call may be cancelled at any time; `orphan` then removes the entry.
        await self._db_threads.hand_over(
            self._get_ready, orphan=lambda _: self._presence.leave(), channel=Channel.COMMANDS
        )

    def _get_ready(self) -> None:
        """Measure the server's clock, create the indexes, write the entry, declare the schedules. In a database thread.

        The indexes come first: they show whether the database can be used at all. Several instances may declare a
        schedule at once; its unique key keeps it at one job.
        """
        if not self._workers.names:
            logger.warning(
                "scheduler %s has no workers: it runs no jobs until one is registered. Pass the Workers of your "
                "handlers to open_scheduler or run_scheduler",
                self._instance_id,
                extra={"instance": self._instance_id},
            )
        self._context.measure_clock_offset()
        self._context.ensure_indexes()
        if self._context.config.skip_index_creation:
            check_options(self._context.jobs)  # Otherwise, it comes with the indexes.
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
        """Remove the entry if the engine crashed or was cut before `Presence.end` could."""
        if self._presence.is_there:
            await self._db_threads.call(self._presence.leave, channel=Channel.RENEWALS, abandon_on_cancel=True)

    @contextmanager
    def reachable(self, wakeups: EngineWakeups) -> Iterator[None]:
        """For as long as the block, clients of this trio run wake the scheduler."""
        try:
            with receiving_wakeups(self._context.jobs.collection.full_name, wakeups):
                yield
        finally:
            # The client keeps counts of jobs for a while. Those that it has are of the time of this scheduler.
            self._context.forget_statistics()

    async def bound_calls_of_body(self, cutting: trio.Event, cleanup_timeout: float, in_body: trio.CancelScope) -> None:
        """After a cut, cancelled calls of the body wait for answers no longer than clean-ups of handlers may take.

        Without a cut they wait as long as their commands may take, because the server may apply what was sent.
        """
        with in_body:
            await cutting.wait()
            await trio.sleep(cleanup_timeout)
            self._db_threads.grace.end()
