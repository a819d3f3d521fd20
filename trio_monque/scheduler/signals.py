"""run_until_signalled: a worker process that shuts down gracefully at SIGTERM or SIGINT."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Unpack

import anyio
import trio

from ..bridge.application_loop import Opened, is_on_trio, run
from ..bridge.handler_loop import HandlerLoop
from ..engine.exceptions import raise_unwrapped
from ..options_and_defaults import SchedulerOptions, scheduler_config
from ..process_signals import WithoutRepeats, default_signals_in_children
from ..store.types import Database
from .events_and_report import SchedulerReport
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

    `trio.run(partial(run_until_signalled, db, workers))` is a worker process. So is
    `asyncio.run(run_until_signalled(db, workers))`: there, handlers are tasks of that loop. Call it in the main thread,
    as Python delivers signals only there. A signal during the start ends the start: `nursery.start` then returns a
    scheduler that has ended. The same signal again within 0.1 s counts as one: `timeout` sends SIGTERM twice.
    Arguments, options and errors are those of `open_scheduler`.

    Meanwhile, child processes that handlers fork begin with the default handling of both signals.
    """
    make = partial(Scheduler, db, workers, resources=resources, listeners=listeners, config=scheduler_config(options))
    started = _Started(task_status)
    with default_signals_in_children():
        if is_on_trio("run_until_signalled"):
            return await _run_on_trio(make, started)
        return await _run_on_asyncio(make, started)


async def _run_on_trio(make: Callable[..., Scheduler], started: _Started) -> SchedulerReport:
    scheduler = make()
    scope = trio.CancelScope()
    try:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_obey, signals, started, partial(scope.cancel, reason="signalled"))
                with scope:
                    await scheduler._host.run(partial(started.started, scheduler))  # noqa: SLF001
                nursery.cancel_scope.cancel(reason="the scheduler has ended")
    except BaseExceptionGroup as group:
        raise_unwrapped(group)
    return started.end(scheduler)


async def _run_on_asyncio(make: Callable[..., Scheduler], started: _Started) -> SchedulerReport:
    made: list[Scheduler] = []
    scope = anyio.CancelScope()

    def make_on(loop: HandlerLoop) -> Opened[Scheduler, SchedulerReport]:
        made.append(make(loop=loop))
        return made[0]._opened  # noqa: SLF001

    try:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_obey, signals, started, scope.cancel)
                with scope:
                    await run("run_until_signalled", "scheduler", make_on, started)
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_unwrapped(group)
    # A signal may have come even before the runtime made the scheduler.
    return started.end(made[0]) if made else SchedulerReport()


class _Started(trio.TaskStatus[Scheduler]):
    """The task status of the caller, which keeps the scheduler that has started.

    Attributes:
        scheduler: None until it has started.
    """

    def __init__(self, task_status: trio.TaskStatus[Scheduler]) -> None:
        self.scheduler: Scheduler | None = None
        self._task_status = task_status

    def started(self, value: Scheduler | None = None) -> None:
        assert value is not None
        self.scheduler = value
        self._task_status.started(value)

    def end(self, scheduler: Scheduler) -> SchedulerReport:
        """Return the report of the scheduler, which has ended."""
        if self.scheduler is None:
            # A signal ended the start. `nursery.start` needs an answer all the same: a scheduler that has ended.
            self._task_status.started(scheduler)
        return scheduler.report or SchedulerReport()


async def _obey(signals: AsyncIterator[int], started: _Started, cut: Callable[[], None]) -> None:
    """Let the first signal drain the scheduler, and the second one cut it; or the first, before it has started."""
    distinct = WithoutRepeats(signals)
    received = signal.Signals(await anext(distinct)).name
    if started.scheduler is not None:
        engine = started.scheduler._engine  # noqa: SLF001
        engine.post(partial(engine.stop.drain, f"{received} was received"))
        await anext(distinct)
    cut()
