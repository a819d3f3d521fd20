"""Finds the command, runs it, and turns every error into an exit status and text on standard error.

The commands import trio, pymongo and rich, which takes a second of processor time. The help of the group and the
completion of command names need only the table here. So the module of a command is imported when the command runs.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final, cast

import click
from click.shell_completion import shell_complete

from ..error_types import EmbeddedServerError, MonqueError
from ..safe_text import without_secrets
from .exit_statuses import FAILED, INTERRUPTED, OUTPUT_CLOSED, SUCCEEDED
from .tracebacks import traceback_for_user

PROGRAM: Final = "trio-monque"
COMPLETION: Final = "_TRIO_MONQUE_COMPLETE"
"""The variable that shells set when they ask for completions; click derives the name from the program's."""


_LOADED: Final = f"{__name__}.loaded"

_EXAMPLES = """\b
Examples:
  trio-monque demo                  see it work, without a server
  trio-monque server                a MongoDB server for development
  trio-monque run jobs:workers --uri mongodb://localhost:27017/shop
  export MONQUE_URI=mongodb://localhost:27017/shop
  trio-monque jobs --status failed
  trio-monque doctor
"""


class CommandEntry(click.Command):
    """What the help of the group shows of a command.

    Attributes:
        module: Relative to this package; it has the command under its name.
    """

    def __init__(self, name: str, module: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self.module = module

    def loaded(self) -> click.Command:
        """Import the command."""
        return cast("click.Command", getattr(import_module(self.module, __package__), self.name or ""))


class LazyCommands(click.Group):
    """A group of such commands, in the order of the alphabet, as in any group of click."""

    def add_entries(self, entries: Iterable[CommandEntry]) -> None:
        for entry in entries:
            self.add_command(entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that runs, or whose arguments a shell completes."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found.loaded() if isinstance(found, CommandEntry) else found, rest


def _print_version(context: click.Context, _option: click.Parameter, given: bool) -> None:  # noqa: FBT001
    if not given or context.resilient_parsing:
        return
    from importlib import metadata  # Only here: it imports the parser of e-mails.

    try:
        version = metadata.version("trio-monque")
    except metadata.PackageNotFoundError:
        version = "(a source tree that is not installed)"
    click.echo(f"{PROGRAM} {version}")
    context.exit()


@click.group(
    cls=LazyCommands,
    invoke_without_command=True,
    epilog=_EXAMPLES,
    context_settings={"max_content_width": 100, "show_default": False},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def program(context: click.Context) -> None:
    """Durable background jobs on MongoDB."""
    context.meta[_LOADED]()  # click calls this after it has imported the command, and before it calls that.
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


program.add_entries(
    [
        CommandEntry("run", ".run.command", "Run the workers of your program."),
        CommandEntry("demo", ".demo.demo_command", "See it at work on your own machine, in under a minute."),
        CommandEntry("dashboard", ".dashboard.dashboard_command", "Show the jobs in a browser."),
        CommandEntry("doctor", ".doctor.doctor_command", "Report what is wrong, and what to do."),
        CommandEntry("jobs", ".jobs.jobs_and_stats", "List jobs."),
        CommandEntry("show", ".jobs.show_command", "Show one job, and why it is not running."),
        CommandEntry("stats", ".jobs.jobs_and_stats", "Count jobs by name and status."),
        CommandEntry("errors", ".jobs.errors_command", "Group failed jobs by their error."),
        CommandEntry("schedules", ".jobs.schedules_command", "List the recurring jobs."),
        CommandEntry("instances", ".jobs.instances_command", "List the scheduler instances."),
        CommandEntry("indexes", ".jobs.indexes_command", "List, create and drop indexes."),
        CommandEntry("claims", ".claims.claims_command", "Inspect documents that are claimed by a lock."),
        CommandEntry("enqueue", ".jobs.enqueue_schedule", "Enqueue a job."),
        CommandEntry("schedule", ".jobs.enqueue_schedule", "Enqueue a recurring job."),
        CommandEntry("preview", ".jobs.preview_command", "Explain a cron expression."),
        CommandEntry("cancel", ".jobs.cancel_retry_delete", "Cancel jobs."),
        CommandEntry("retry", ".jobs.cancel_retry_delete", "Requeue failed and cancelled jobs."),
        CommandEntry("reschedule", ".jobs.cancel_retry_delete", "Change when a pending job is due."),
        CommandEntry("delete", ".jobs.cancel_retry_delete", "Delete jobs."),
        CommandEntry("repair", ".jobs.repair_command", "Repair documents that are not valid jobs."),
        CommandEntry("pause", ".jobs.pause_resume", "Stop instances from starting jobs of a name."),
        CommandEntry("resume", ".jobs.pause_resume", "Let instances start jobs of a paused name."),
        CommandEntry("server", ".server_command", "Run a MongoDB server for development."),
    ]
)


def run_program(argv: Sequence[str] | None, loaded: Callable[[], None] = lambda: None) -> int:
    """Run one command and return its exit status. `loaded` is called before the command runs, once it is imported.

    An error of this library ends in one line on standard error, an invalid argument in the usage and one line. Any
    other error is a bug, here or in the user's code, and is shown with its traceback.
    """
    try:
        status = _run(argv, loaded)
        if sys.stdout is not None:  # It was closed before the start, by `>&-`.
            sys.stdout.flush()  # Here, where a reader that left is still expected.
    except BrokenPipeError:
        # The interpreter flushes once more at its end, and would complain about the same.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED
    return status


def _run(argv: Sequence[str] | None, loaded: Callable[[], None]) -> int:
    if instruction := os.environ.get(COMPLETION):
        return shell_complete(program, {}, PROGRAM, COMPLETION, instruction)
    try:
        # Not `program.main`: it ends the process with status 1 where the reader of the output has left, and prints
        # errors with their secrets.
        arguments = list(sys.argv[1:] if argv is None else argv)
        with program.make_context(PROGRAM, list(arguments), obj=arguments) as context:
            context.meta[_LOADED] = loaded
            return int(program.invoke(context) or SUCCEEDED)
    except click.exceptions.Exit as ended:  # After --help or --version.
        return ended.exit_code
    except click.Abort:  # A question that was not answered with yes, or Ctrl-C at it.
        print_error("Aborted: nothing was changed.\n")
        return INTERRUPTED
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        print_error(without_secrets(text.getvalue()))
        return FAILED
    except BaseException as error:  # noqa: BLE001  # All end in a status, also a sys.exit() of the user's code.
        return _status_of(error)


def _status_of(error: BaseException) -> int:
    """Print what the user needs of an error, and return the exit status."""
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, BrokenPipeError):
            raise leaf
    problems = [leaf for leaf in leaves if isinstance(leaf, MonqueError)]
    if any(not isinstance(leaf, MonqueError | KeyboardInterrupt) for leaf in leaves):
        print_error(traceback_for_user(error))
    elif problems:
        # Several parts of a program may fail for one cause, such as a lost server: the first error is enough.
        print_error(f"{PROGRAM}: {_in_one_line(problems[0])}\n")
    else:
        return INTERRUPTED
    return FAILED


def print_error(text: str) -> None:
    """Write to standard error, if there is one: it was closed before the start by `2>&-`, or its reader has left.

    Neither may change the exit status, nor send an error to standard output, as `print` and `click.echo` would.
    """
    if sys.stderr is not None:
        with suppress(BrokenPipeError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _in_one_line(error: MonqueError) -> str:
    if isinstance(error, EmbeddedServerError) and error.log_tail:
        return str(error)  # Only the last lines of the server's log say why it did not start.
    return without_secrets(" ".join(str(error).split()))
