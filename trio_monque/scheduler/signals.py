"""run_until_signalled: a worker process that shuts down gracefully at SIGTERM or SIGINT."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Unpack

import anyio
import trio

from ..bridge.handler_loop import ON_TRIO, HandlerLoop
from ..bridge.host_for_asyncio import Opened, is_on_trio, run
from ..engine.exceptions import raise_unwrapped
from ..options_and_defaults import SchedulerOptions, scheduler_config
from ..process_signals import WithoutRepeats, default_signals_in_children
from ..store.driver.types import Database
from .assembly import Listeners
from .events_and_report import SchedulerReport
from .running_job import Resources
from .scheduler import Scheduler, opened_scheduler
from .workers import Workers

Make = Callable[[HandlerLoop], Opened[Scheduler, SchedulerReport]]


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
    make = partial(opened_scheduler, db, workers, resources, listeners, scheduler_config(options))
    return await run_made_until_signalled(make, task_status)


async def run_made_until_signalled(make: Make, task_status: trio.TaskStatus[Scheduler]) -> SchedulerReport:
    """Do the same with the scheduler that `make` makes."""
    started = _Started(task_status)
    with default_signals_in_children():
        if is_on_trio("run_until_signalled"):
            return await _run_on_trio(make, started)
        return await _run_on_asyncio(make, started)


async def _run_on_trio(make: Make, started: _Started) -> SchedulerReport:
    made = make(ON_TRIO)
    scope = trio.CancelScope()
    try:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_obey, signals, [made], started, partial(scope.cancel, reason="signalled"))
                with scope:
                    await made.host.run(partial(started.started, made.public))
                nursery.cancel_scope.cancel(reason="the scheduler has ended")
    except BaseExceptionGroup as group:
        raise_unwrapped(group)
    return started.end(made.public)


async def _run_on_asyncio(make: Make, started: _Started) -> SchedulerReport:
    made: list[Opened[Scheduler, SchedulerReport]] = []
    scope = anyio.CancelScope()

    def make_on(loop: HandlerLoop) -> Opened[Scheduler, SchedulerReport]:
        made.append(make(loop))
        return made[0]

    try:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_obey, signals, made, started, scope.cancel)
                with scope:
                    await run("run_until_signalled", "scheduler", make_on, started)
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_unwrapped(group)
    # A signal may have come even before the runtime made the scheduler.
    return started.end(made[0].public) if made else SchedulerReport()


class _Started(trio.TaskStatus[Scheduler]):
    """The task status of the caller, which notes that the scheduler has started."""

    def __init__(self, task_status: trio.TaskStatus[Scheduler]) -> None:
        self.has_started = False
        self._task_status = task_status

    def started(self, value: Scheduler | None = None) -> None:
        assert value is not None
        self.has_started = True
        self._task_status.started(value)

    def end(self, scheduler: Scheduler) -> SchedulerReport:
        """Return the report of the scheduler, which has ended."""
        if not self.has_started:
            # A signal ended the start. `nursery.start` needs an answer all the same: a scheduler that has ended.
            self._task_status.started(scheduler)
        return scheduler.report or SchedulerReport()


async def _obey(
    signals: AsyncIterator[int],
    made: Sequence[Opened[Scheduler, SchedulerReport]],
    started: _Started,
    cut: Callable[[], None],
) -> None:
    """Let the first signal drain the scheduler, and the second one cut it; or the first, before it has started."""
    distinct = WithoutRepeats(signals)
    received = signal.Signals(await anext(distinct)).name
    if started.has_started:
        engine = made[0].host.engine
        engine.post(partial(engine.stop.drain, f"{received} was received"))
        await anext(distinct)
    cut()
