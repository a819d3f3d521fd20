"""A worker process: runs until it is told to stop."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Unpack

import trio

from ..engine.groups import raise_unwrapped
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
    start = partial(run_scheduler, resources=resources, listeners=listeners, **options)
    reports: list[SchedulerReport] = []
    started: list[Scheduler] = []
    scope = trio.CancelScope()

    async def run() -> None:
        async with trio.open_nursery() as running:
            started.append(await running.start(partial(_reporting, start, reports.append), db, workers))
            task_status.started(started[0])

    try:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_obey, signals, started, scope)
                with scope:
                    await run()
                nursery.cancel_scope.cancel(reason="the scheduler has ended")
    except BaseExceptionGroup as group:
        raise_unwrapped(group)
    if reports:
        return reports[0]
    # Cut: what it had done by then is in the scheduler; cut while it started, it has done nothing.
    return (started[0].report if started else None) or SchedulerReport()


async def _reporting(
    start: Callable[..., Awaitable[SchedulerReport]],
    report: Callable[[SchedulerReport], None],
    *arguments: Any,
    task_status: trio.TaskStatus[Scheduler],
) -> None:
    report(await start(*arguments, task_status=task_status))


async def _obey(signals: AsyncIterator[int], started: list[Scheduler], scope: trio.CancelScope) -> None:
    received = signal.Signals(await anext(signals)).name
    if started:
        started[0]._engine.stop.drain(f"{received} was received")  # noqa: SLF001
        await anext(signals)
    # A second signal, or one while there is nothing to drain yet.
    scope.cancel(reason="signalled")
