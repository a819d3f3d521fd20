"""The state of this worker process, for threads that serve its health: they must not wait for its event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import trio

from ...scheduler.scheduler import Scheduler
from .health_answers import HealthReport, report_of_worker

_BEAT: Final = 0.5
"""Seconds between two signs of life of the event loop."""


class WorkerState(trio.TaskStatus[Scheduler]):
    """Knows the scheduler of this process, and when its event loop answered last. Any thread may ask for the report.

    Attributes:
        scheduler: None until it has started.
        on_start: Called with the scheduler when it has started, in the event loop of the handlers.
    """

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None
        self.on_start: list[Callable[[Scheduler], None]] = []
        self._answered_at = 0.0

    def started(self, value: Scheduler | None = None) -> None:
        """Called in the event loop of the handlers when the scheduler has started."""
        assert value is not None
        self._answered_at = time.monotonic()
        # Not in a nursery: an error of the scheduler would be raised in a group.
        if trio.lowlevel.in_trio_task():
            trio.lowlevel.spawn_system_task(self._beat_on_trio)
        else:
            self._beat_on_asyncio()
        self.scheduler = value
        for call in self.on_start:
            call(value)

    def report(self) -> HealthReport:
        """Return the health of this process at this moment."""
        scheduler = self.scheduler
        if scheduler is None:
            return report_of_worker(None, None, 0.0)
        # What the target does after the end of the scheduler does not concern its jobs.
        silent_for = time.monotonic() - self._answered_at if scheduler.report is None else 0.0
        return report_of_worker(scheduler.id, scheduler.health(), silent_for)

    async def _beat_on_trio(self) -> None:
        while True:
            self._answered_at = time.monotonic()
            await trio.sleep(_BEAT)

    def _beat_on_asyncio(self) -> None:
        self._answered_at = time.monotonic()
        asyncio.get_running_loop().call_later(_BEAT, self._beat_on_asyncio)
