"""Events of a scheduler with a change stream, and the jobs that it started."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from trio_monque import RunningJob, Scheduler, Workers, open_scheduler
from trio_monque.events import (
    ChangeStreamClosed,
    ChangeStreamConnected,
    ChangeStreamFailed,
    ChangeStreamFallback,
    Event,
    SchedulerErrorOccurred,
)
from trio_monque.store.driver.types import Database

RARELY = 3600.0
"""Seconds between polls: a test that needs one never ends, and fails by its time limit."""

STREAM = (ChangeStreamConnected, ChangeStreamFailed, ChangeStreamClosed, ChangeStreamFallback)


class Heard:
    """What a scheduler reported and ran."""

    def __init__(self, *names: str) -> None:
        self.workers = Workers()
        self.events: list[Event] = []
        self.started: dict[Any, float] = {}
        self._changed = trio.Event()
        for name in names or ("greet",):
            self.workers.register(name, self.run, concurrency=20)

    async def run(self, job: RunningJob[Any]) -> None:
        self.started[job.id] = trio.current_time()
        self._change()

    async def tell(self, event: Event) -> None:
        self.events.append(event)
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    async def wait_started(self, *jobs: Any) -> None:
        await self.wait(lambda: {*jobs} <= self.started.keys())

    @property
    def errors(self) -> list[SchedulerErrorOccurred]:
        return [event for event in self.events if isinstance(event, SchedulerErrorOccurred)]

    @property
    def stream(self) -> list[str]:
        return [type(event).__name__ for event in self.events if isinstance(event, STREAM)]

    async def wait_connected(self, times: int = 1) -> None:
        await self.wait(lambda: self.stream.count("ChangeStreamConnected") == times)

    @asynccontextmanager
    async def open(self, db: Database, **options: Any) -> AsyncIterator[Scheduler]:
        chosen = {"poll_interval": RARELY, "safety_poll_interval": RARELY, **options}
        async with open_scheduler(db, self.workers, listeners={Event: self.tell}, **chosen) as scheduler:
            yield scheduler
