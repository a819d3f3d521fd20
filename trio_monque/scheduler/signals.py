"""run_until_signalled: a worker process that shuts down gracefully at SIGTERM or SIGINT."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from typing import Unpack

import trio

from ..engine.exceptions import raise_unwrapped
from ..errors import CallContextError
from ..options import SchedulerOptions, scheduler_config
from ..store.types import Database
from .reporting import SchedulerReport
from .running_job import Resources
from .scheduler import Listeners, Scheduler
from .workers import Workers


async def run_until_signalled(
    db: Database,
    workers: Workers[Resources],
    *,
    resources: Resources | None = None,
    listeners: Listeners | None = None,
    task_status: trio.TaskStatus[Scheduler] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[SchedulerOptions],
) -> SchedulerReport:
    """Run a scheduler until SIGTERM or SIGINT: the first signal drains it, the second one cuts it short.

    `trio.run(partial(run_until_signalled, db, workers))` is a worker process. Call it in the main thread, as Python
    delivers signals only there. A signal during the start ends the start: `nursery.start` then returns a scheduler that
    has ended. Arguments, options and errors are those of `open_scheduler`.
    """
    if not trio.lowlevel.in_trio_task():
        raise CallContextError(
            "run_until_signalled runs in trio: write trio.run(partial(run_until_signalled, db, workers)). From "
            "asyncio, enqueue with Monque(db), and let a process of its own run the jobs"
        )
    scheduler = Scheduler(db, workers, resources=resources, listeners=listeners, config=scheduler_config(options))
    started = trio.Event()
    scope = trio.CancelScope()

    async def run() -> None:
        def begin() -> None:
            started.set()
            task_status.started(scheduler)

        await scheduler._host.run(begin)  # noqa: SLF001

    try:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_obey, signals, scheduler, started, scope)
                with scope:
                    await run()
                nursery.cancel_scope.cancel(reason="the scheduler has ended")
    except BaseExceptionGroup as group:
        raise_unwrapped(group)
    if not started.is_set():
        # A signal ended the start. `nursery.start` needs an answer all the same: a scheduler that has ended.
        task_status.started(scheduler)
    return scheduler.report or SchedulerReport()


async def _obey(
    signals: AsyncIterator[int], scheduler: Scheduler, started: trio.Event, scope: trio.CancelScope
) -> None:
    received = signal.Signals(await anext(signals)).name
    if started.is_set():
        scheduler._engine.stop.drain(f"{received} was received")  # noqa: SLF001
        await anext(signals)
    # A second signal, or one while there is nothing to drain yet.
    scope.cancel(reason="signalled")
