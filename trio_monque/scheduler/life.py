"""The life of a scheduler: it gets ready, runs while somebody listens, and says what it did."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Self

import trio

from ..client.bus import GRACE, Bus
from ..client.ground import Ground
from ..client.monque import SyncMonque
from ..client.stats_cache import StatsCache
from ..client.wake_board import on_the_board
from ..engine.nursery import Engine
from ..engine.start import start_within
from ..jobs.answers import QueueStats
from ..options import SchedulerConfig
from ..store.offload import Channel, Door
from .neighbour import EngineOnTheBoard
from .presence import Presence
from .telling import SchedulerReport, Teller
from .workers import Workers

LAST_WORDS: Final = 0.5 - GRACE
"""Seconds that listeners have, when all else has ended, to hear of it. With the engine's hard bound two in all."""


class Living:
    """Runs, once. A base of Scheduler, which makes the attributes."""

    report: SchedulerReport | None
    _ground: Ground
    _door: Door
    _bus: Bus
    _stats: StatsCache[QueueStats]
    _sync: SyncMonque
    _config: SchedulerConfig
    _workers: Workers
    _teller: Teller
    _engine: Engine[Any, Any]
    _presence: Presence
    _on_the_board: EngineOnTheBoard
    _ended: trio.Event
    _has_begun = False

    async def _run(self, *, task_status: trio.TaskStatus[Self] = trio.TASK_STATUS_IGNORED) -> None:
        """The whole life of the scheduler: returns when it has ended, raises what crashed of it."""
        try:
            await start_within(self._config.start_timeout, self._try_to_get_ready)
            with on_the_board(self._ground.jobs.collection.full_name, self._on_the_board):
                await self._run_listened_to(task_status)
        except BaseException as error:
            self._end()
            if crashes := self._engine.stop.crashes:
                raise BaseExceptionGroup("the scheduler crashed and was cancelled", [*crashes, error]) from None
            raise
        self._end()
        if crashes := self._engine.stop.crashes:
            raise BaseExceptionGroup("the scheduler crashed", crashes)

    def _begin(self, task_status: trio.TaskStatus[Self]) -> None:
        limits = {name: self._engine.slots.limit_of(name) for name in self._workers.names}
        collection = self._ground.jobs.collection.full_name
        self._teller.tell_started(collection, limits, self._config.instance_concurrency)
        self._has_begun = True
        task_status.started(self)

    def _end(self) -> None:
        engine = self._engine
        report = self._teller.report(tuple(engine.unfinished), tuple(engine.stop.crashes), engine.watchdog.blocked)
        self._teller.tell_unfinished(report.unfinished)
        if self._has_begun:
            self._teller.tell_ended(report, engine.stop.cause)
        self.report = report
        self._stats.clear()
        self._ended.set()

    async def _try_to_get_ready(self) -> None:
        # Nothing is held yet, so this wait may be cut short at any time.
        await self._door.hand_over(self._get_ready, orphan=lambda _: self._presence.leave(), channel=Channel.COMMANDS)

    def _get_ready(self) -> None:
        """In a thread: the server's time, the indexes, and with them whether the database can be used at all.

        Then the entry of this instance, whose id must not be another's, and the declared schedules. However many
        instances declare one at once, one job of it exists.
        """
        self._ground.measure_clock_offset()
        self._ground.ensure_indexes()
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

    async def _run_listened_to(self, task_status: trio.TaskStatus[Self]) -> None:
        async with trio.open_nursery() as listening:
            hearing = await listening.start(self._deliver_events)
            try:
                await self._engine.run(started=partial(self._begin, task_status))
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_WORDS):
                    async with trio.open_nursery() as last_words:
                        last_words.start_soon(self._leave)
                        await self._bus.wait_caught_up()
                self._bus.lose_patience()
                hearing.cancel(reason="the scheduler has ended")

    async def _leave(self) -> None:
        """Where the engine ended out of order."""
        if self._presence.is_there:
            await self._door.call(self._presence.leave, channel=Channel.RENEWALS, abandon_on_cancel=True)

    async def _lose_patience(self, in_body: trio.CancelScope) -> None:
        """When all is cut, calls of the body are awaited no longer than clean-ups are."""
        with in_body:
            await self._engine.stop.cutting.wait()
            await trio.sleep(self._config.cleanup_timeout)
            self._door.patience.end()

    async def _deliver_events(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        # Shielded: what happens while everything else is being cancelled is what listeners want to hear of.
        with trio.CancelScope(shield=True) as scope:
            task_status.started(scope)
            await self._bus.run()
