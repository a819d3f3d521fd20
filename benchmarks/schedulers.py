"""Schedulers as users run them: opened by the public call, with every option that is not said at its default."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from trio_monque import RunningJob, Scheduler, open_scheduler
from trio_monque.events import ChangeStreamConnected, Event

from .measuring import Db

TIMEOUT = 60.0  # Seconds for the change stream to be up.


@asynccontextmanager
async def streaming_scheduler(database: Db, **options: Any) -> AsyncIterator[Scheduler]:
    """One without workers yet, whose change stream is up: what is measured is not the start."""
    connected = anyio.Event()

    async def hear(_: ChangeStreamConnected) -> None:
        connected.set()

    listeners: dict[type[Event], Any] = {ChangeStreamConnected: hear}
    async with open_scheduler(database, listeners=listeners, **options) as scheduler:
        with anyio.fail_after(TIMEOUT):
            await connected.wait()
        yield scheduler


async def noop(job: RunningJob[Any]) -> None:
    """What is run where the handler is not what is measured."""
