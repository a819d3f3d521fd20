"""`trio-monque run`: a worker process for the workers of a program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from types import FrameType
from typing import Final

import anyio
import click

from ...errors import MonqueError
from ...options import SchedulerOptions
from ...scheduler.reporting import SchedulerReport
from ...scheduler.signals import run_until_signalled
from ...store.types import Database
from ..connection import Connection, connection_options
from ..exit_statuses import CHECK_FAILED, SUCCEEDED
from ..log_output import log_options
from .scheduler_options import scheduler_options
from .target import Selection, Target, load_target, workers_of

LOOPS: Final = ("trio", "asyncio", "uvloop")

_EXAMPLES = """\b
Examples:
  trio-monque run shop.jobs:workers --uri mongodb://localhost:27017/shop
  trio-monque run shop.jobs:workers --uri-file /run/secrets/mongodb --only send
  trio-monque run shop.jobs:open_workers --loop asyncio --log-format json
"""


@click.command(short_help="Run the workers of your program.", epilog=_EXAMPLES)
@click.argument("target", metavar="MODULE:ATTRIBUTE")
@connection_options
@click.option("--only", multiple=True, metavar="NAME", help="Run jobs of this name only. May be repeated.")
@click.option("--except", "without", multiple=True, metavar="NAME", help="Do not run jobs of this name.")
@click.option("--loop", type=click.Choice(LOOPS), default="trio", help="The event loop of async handlers.")
@log_options
@scheduler_options
def run(
    options: SchedulerOptions,
    connection: Connection,
    *,
    target: str,
    only: tuple[str, ...],
    without: tuple[str, ...],
    loop: str,
) -> int:
    """Run jobs until SIGTERM or Ctrl-C, with the workers that MODULE:ATTRIBUTE names.

    The attribute is a Workers; or a function, plain or async, or an async context manager function, that gives Workers
    or (Workers, resources). It is called without arguments, inside the event loop. Modules are imported from the
    current directory too.

    The first signal lets running jobs finish (drain), the second cuts them short: their jobs are pending again.

    \b
    Exit status:
      0    ended by a signal
      1    ended by a signal, and left jobs to their leases: the database did
           not answer in time
      2    could not start, or crashed; standard error has the reason
      130  interrupted before the scheduler started, or after it ended
    """
    if loop == "uvloop" and find_spec("uvloop") is None:
        raise MonqueError("--loop uvloop needs uvloop: python -m pip install uvloop")
    with _sigterm_as_ctrl_c(), connection.open() as db:
        work = partial(_work, load_target(target), Selection(only, without), db, options)
        backend = "trio" if loop == "trio" else "asyncio"
        report = anyio.run(work, backend=backend, backend_options={"use_uvloop": True} if loop == "uvloop" else {})
    return CHECK_FAILED if report.unfinished else SUCCEEDED


async def _work(target: Target, selection: Selection, db: Database, options: SchedulerOptions) -> SchedulerReport:
    report: SchedulerReport | None = None
    async with AsyncExitStack() as stack:
        workers, resources = await workers_of(target, stack)
        selected = selection.of(workers, target.name)
        report = await run_until_signalled(db, selected, resources=resources, **options)
        # On asyncio, run_until_signalled leaves the default behind: the process would end without closing resources.
        _make_sigterm_ctrl_c()
    if report is None:
        raise MonqueError(f"the scheduler did not run: {target.name} suppressed the error, where it has a yield")
    return report


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the imports and the resources of the target as Ctrl-C does, so that they are cleaned up."""
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
