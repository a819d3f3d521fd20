"""A worker process: runs until it is told to stop."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Unpack

import trio

from ..options import SchedulerOptions
from ..store.types import Database
from .scheduler import Listeners, Scheduler, run_scheduler
from .telling import SchedulerReport
from .workers import Workers


async def run_until_signalled(
    db: Database,
    workers: Workers,
    *,
    resources: Any = None,
    listeners: Listeners | None = None,
    task_status: trio.TaskStatus[Scheduler] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[SchedulerOptions],
) -> SchedulerReport:
    """Runs a scheduler until SIGTERM or SIGINT: the first one drains it, the second cuts it short.

    `trio.run(partial(run_until_signalled, db, workers))` is a worker process. Only in the main thread, as
    Python delivers signals there. Arguments, options and errors are those of `open_scheduler`.
    """
    reports: list[SchedulerReport] = []

    async def run(*, task_status: trio.TaskStatus[Scheduler]) -> None:
        start = partial(run_scheduler, resources=resources, listeners=listeners, task_status=task_status, **options)
        with trio.CancelScope() as scope:
            cut.append(scope)
            reports.append(await start(db, workers))
        nursery.cancel_scope.cancel(reason="the scheduler has ended")

    cut: list[trio.CancelScope] = []
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            scheduler = await nursery.start(run)
            nursery.start_soon(_obey, signals, scheduler, cut[0])
            task_status.started(scheduler)
    return reports[0] if reports else scheduler.report


async def _obey(signals: AsyncIterator[int], scheduler: Scheduler, scope: trio.CancelScope) -> None:
    await anext(signals)
    scheduler.drain()
    await anext(signals)
    scope.cancel(reason="a second signal")
