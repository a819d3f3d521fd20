"""`trio-monque run`: worker processes for the workers of a program."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import click
import trio

from ...error_types import MonqueError
from ...options_and_defaults import SchedulerOptions, scheduler_config
from ..connection_options import Connection, connection_options
from ..log_output import log_options
from .change_relay import ChangeRelay, StreamOfParent
from .children import Children
from .dashboard_flags import DashboardFlags
from .endpoints import Endpoints
from .http_server import Address, AddressType
from .parent_link import NO_CHANGES, SUPERVISED, ParentLink
from .relayed_changes import RelayedChanges
from .scheduler_options import scheduler_options
from .supervisor import Supervisor
from .target import SelectedNames
from .worker_process import Work, run_worker
from .worker_state import WorkerState

if TYPE_CHECKING:
    from .reloader import Reloader

LOOPS: Final = ("trio", "asyncio", "uvloop")

_EXAMPLES = """\b
Examples:
  trio-monque run shop.jobs:workers --uri mongodb://localhost:27017/shop
  trio-monque run shop.jobs:workers --uri-file /run/secrets/mongodb --only send
  trio-monque run shop.jobs:open_workers shop.mail:workers --loop asyncio
  trio-monque run shop.jobs:workers --processes 4 --health 9000 --metrics 9000
"""


@click.command(short_help="Run the workers of your program.", epilog=_EXAMPLES)
@click.argument("targets", metavar="MODULE:ATTRIBUTE...", nargs=-1, required=True)
@connection_options
@click.option("--only", multiple=True, metavar="NAME", help="Run only jobs of this name. May be repeated.")
@click.option("--except", "without", multiple=True, metavar="NAME", help="Do not run jobs of this name.")
@click.option(
    "--loop", type=click.Choice(LOOPS), help="The event loop of async handlers. (default: that of the workers, or trio)"
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    help="Run this number of worker processes, and restart those that die. They share one change stream.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: restart the worker process when a Python file of the program changes.",
)
@click.option(
    "--health",
    type=AddressType(),
    metavar="HOST:PORT",
    help="Serve /livez, /readyz and /healthz at this address over HTTP. Without HOST, only on 127.0.0.1.",
)
@click.option(
    "--metrics",
    type=AddressType(),
    metavar="HOST:PORT",
    help="Serve /metrics for Prometheus at this address, which may be that of --health.",
)
@click.option(
    "--dashboard",
    type=AddressType(),
    metavar="HOST:PORT",
    help="Serve a dashboard at this address, as `trio-monque dashboard` does, and print its link. With --processes, "
    "the parent serves it.",
)
@click.option("--dashboard-read-only", is_flag=True, help="Refuse all changes made in the dashboard.")
@click.option(
    "--dashboard-no-token",
    is_flag=True,
    help="Let in anyone who can reach the dashboard; only with --dashboard-read-only.",
)
@click.option(
    "--i-know-who-can-reach-it", is_flag=True, help="Serve the dashboard on an address that other machines can reach."
)
@click.option(
    "--no-memory-tuning",
    is_flag=True,
    help="Leave the allocator and Python's garbage collector as they are. By default, all threads share one pool of "
    "memory (glibc; unless MALLOC_ARENA_MAX is set), and once the program is loaded, the collector skips what is "
    "there, and looks at new objects less often (unless the program has set its thresholds).",
)
@click.option(SUPERVISED, type=(int, int, str), hidden=True)
@log_options
@scheduler_options
def run(
    options: SchedulerOptions,
    connection: Connection,
    *,
    targets: tuple[str, ...],
    only: tuple[str, ...],
    without: tuple[str, ...],
    loop: str | None,
    processes: int | None,
    reload: bool,
    health: Address | None,
    metrics: Address | None,
    dashboard: Address | None,
    dashboard_read_only: bool,
    dashboard_no_token: bool,
    i_know_who_can_reach_it: bool,
    no_memory_tuning: bool,
    supervised: tuple[int, int, str] | None,
) -> int:
    """Run jobs until SIGTERM or Ctrl-C, with the workers that each MODULE:ATTRIBUTE names.

    The attribute is a Workers; or a function, plain or async, or an async context manager function, that provides
    Workers or (Workers, resources). It is called without arguments, inside the event loop. Modules are imported from
    the current directory too.

    The first signal lets running jobs finish (drain), the second cuts them short: their jobs are pending again.

    \b
    Exit status:
      0    ended by a signal
      1    ended by a signal, and left jobs to their leases: the database did
           not answer in time
      2    could not start, or crashed; standard error has the reason
      130  interrupted before the scheduler started, or after it ended
    With --processes, it is the worst one of all: 0, 130, 1, 2 from good to bad.
    """
    if loop == "uvloop" and find_spec("uvloop") is None:
        raise MonqueError("--loop uvloop needs uvloop: python -m pip install uvloop")
    names = SelectedNames(only, without)
    work = Work(targets, names, connection, loop, options, tunes_memory=not no_memory_tuning)
    endpoints = Endpoints(health, metrics)
    flags = DashboardFlags(dashboard, dashboard_read_only, dashboard_no_token, i_know_who_can_reach_it)
    flags.check()
    if supervised is not None:
        return _run_child(work, endpoints, *supervised)
    if processes is None and not reload:
        state = WorkerState()
        with endpoints.of_worker(state), flags.served(connection, options):
            return run_worker(work, state)
    if processes is not None and reload:
        raise click.UsageError("give --processes or --reload, not both")
    if os.name != "posix":
        raise MonqueError("--processes and --reload need Linux, macOS or another Unix")
    config = scheduler_config(options)
    # One process has a stream of its own.
    is_shared = processes is not None and processes > 1 and config.change_stream
    relay = ChangeRelay(StreamOfParent(connection, config)) if is_shared else None
    children = Children(click.get_current_context().find_root().obj, processes or 1, relay)
    with endpoints.of_children(children), flags.served(connection, options):
        if processes is not None:
            return trio.run(Supervisor(children, processes).run)
        return trio.run(_reloader(children, targets).run)


def _run_child(work: Work, endpoints: Endpoints, descriptor: int, changes: int, name: str) -> int:
    """Run a worker process whose parent serves the endpoints."""
    if "instance_id" in work.options:
        work.options["instance_id"] = f"{work.options['instance_id']}-{name}"
    if changes != NO_CHANGES:
        within = scheduler_config(work.options).operation_timeout
        work = replace(work, changes=RelayedChanges(changes, within))
    state = WorkerState()
    link = ParentLink(descriptor, work.options, state)
    with endpoints.asked_for(state, int(name.partition("-")[0])) as answers:
        link.serve(answers)
        return run_worker(work, state)


def _reloader(children: Children, targets: tuple[str, ...]) -> Reloader:
    try:
        from .reloader import Reloader, folders_of  # Only here: watchfiles is not needed otherwise, and takes time.
    except ModuleNotFoundError as error:
        if error.name != "watchfiles":
            raise
        raise MonqueError("--reload needs watchfiles: python -m pip install watchfiles") from None
    return Reloader(children, folders_of(targets))
