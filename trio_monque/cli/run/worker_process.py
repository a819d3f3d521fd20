"""One worker process: imports the targets, opens their resources, and runs a scheduler until a signal ends it."""

from __future__ import annotations

import gc
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType

import anyio

from ...error_types import MonqueError
from ...options_and_defaults import SchedulerOptions, scheduler_config
from ...process_signals import default_signals_in_children
from ...scheduler.changes import ChangeSource
from ...scheduler.events_and_report import SchedulerReport
from ...scheduler.scheduler import opened_scheduler
from ...scheduler.signals import run_made_until_signalled
from ...store.driver.types import Database
from ..connection_options import Connection
from ..exit_statuses import CHECK_FAILED, SUCCEEDED
from .memory_tuning import tune_allocator, tune_garbage_collector
from .target import SelectedNames, WorkerTarget, declared_loop, load_target, workers_of_all
from .worker_state import WorkerState


@dataclass(frozen=True)
class Work:
    """What a worker process runs.

    Attributes:
        targets: As they were given: `package.module:attribute`.
        selection: Which of their workers.
        connection: The database.
        loop: The event loop of async handlers: trio, asyncio or uvloop; None for the one that the workers declare.
        options: The options of the scheduler that were given.
        tunes_memory: Whether to set Python's garbage collector and the allocator: see `memory_tuning`.
        changes: Where its scheduler learns what has changed; None for a change stream of its own.
    """

    targets: tuple[str, ...]
    selection: SelectedNames
    connection: Connection
    loop: str | None
    options: SchedulerOptions
    tunes_memory: bool = True
    changes: ChangeSource | None = None


def run_worker(work: Work, state: WorkerState) -> int:
    """Run the worker process, and return its exit status. The state shows its health meanwhile.

    Raises:
        MonqueError: It could not start, or its scheduler crashed.
        UserCodeError: A target raised.
        KeyboardInterrupt: A signal came before the scheduler had started, or after it had ended.
    """
    thresholds = gc.get_threshold()
    if work.tunes_memory:
        tune_allocator()
    with default_signals_in_children(), _sigterm_as_ctrl_c(), work.connection.open() as db:
        targets = [load_target(name) for name in work.targets]
        loop = work.loop or declared_loop(targets) or "trio"
        backend = "trio" if loop == "trio" else "asyncio"
        options = {"use_uvloop": True} if loop == "uvloop" else {}
        main = partial(_run, work, targets, db, state, thresholds)
        report = anyio.run(main, backend=backend, backend_options=options)
    return CHECK_FAILED if report.unfinished else SUCCEEDED


async def _run(
    work: Work, targets: list[WorkerTarget], db: Database, state: WorkerState, thresholds: tuple[int, int, int]
) -> SchedulerReport:
    report: SchedulerReport | None = None
    first = FirstError()
    async with first.raised_at_last(), AsyncExitStack() as stack, first.noted():
        given = await workers_of_all(targets, stack, work.connection.uri, db.name)
        workers = work.selection.of(given, ", ".join(work.targets))
        # Not if the program has set the collector itself.
        if work.tunes_memory and gc.isenabled() and gc.get_threshold() == thresholds:
            tune_garbage_collector()
        make = partial(opened_scheduler, db, workers, None, None, scheduler_config(work.options), changes=work.changes)
        report = await run_made_until_signalled(make, state)
        # On asyncio, that leaves the default behind: the process would end without closing resources.
        _make_sigterm_ctrl_c()
    # A signal now would find nothing to end, and would only change the exit status.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if report is None:
        raise MonqueError(
            "the scheduler did not run: a target suppressed the error at its yield: " + ", ".join(work.targets)
        )
    return report


class FirstError:
    """Raises an error of ours that ended the block although a target raises another one as it is left.

    That one mostly follows from it: a client that belongs to asyncio cannot be closed on trio.
    """

    def __init__(self) -> None:
        self._error: MonqueError | None = None

    @asynccontextmanager
    async def noted(self) -> AsyncIterator[None]:
        try:
            yield
        except MonqueError as error:
            self._error = error
            raise

    @asynccontextmanager
    async def raised_at_last(self) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            if self._error is None or error is self._error:
                raise
            raise self._error from None


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the imports and the resources of the targets as Ctrl-C does, so that they are cleaned up."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    # A shell without job control starts background processes so that they ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _make_sigterm_ctrl_c()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _make_sigterm_ctrl_c() -> None:
    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        # Not `raise KeyboardInterrupt`: the event loops know at which moments it would break them.
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, interrupt)
