"""`trio-monque demo`: its arguments."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Unpack

import click
import trio

from ...safe_text import uri_without_secrets
from .demonstration import DemoOptions, demonstrate

_EXAMPLES = """\b
Examples:
  trio-monque demo
  trio-monque demo --job-seconds 1
  trio-monque demo ~/notes --pattern '*.txt'
  trio-monque demo --uri mongodb://localhost/test --keep
"""


def _folder(_context: click.Context, _option: click.Parameter, given: str | None) -> Path:
    if given is None:
        return Path(sysconfig.get_path("stdlib"))
    folder = Path(given)
    if not folder.is_dir():
        # It may be a connection string that lacks its `--uri`.
        raise click.BadParameter(f"{uri_without_secrets(given)!r} is not a folder")
    return folder.resolve()


def _seconds(_context: click.Context, _option: click.Parameter, given: float) -> float:
    if not 0 <= given <= 3600:  # click.FloatRange would take NaN.
        raise click.BadParameter(f"{given!r} is not a number of seconds from 0 to 3600")
    return given


@click.command(short_help="See it at work on your own machine, in under a minute.", epilog=_EXAMPLES)
@click.argument("folder", required=False, callback=_folder)
@click.option("--pattern", default="*.py", metavar="GLOB", help="Which files of the folder to process (default: *.py).")
@click.option("--files", "most_files", type=click.IntRange(min=1), metavar="N", help="Process at most N files.")
@click.option("--uri", help="A MongoDB server to use instead of starting one.")
@click.option("--keep", is_flag=True, help="Leave the demo's collections on that server.")
@click.option(
    "--job-seconds",
    type=float,
    default=0.0,
    callback=_seconds,
    metavar="SECONDS",
    help="Make each job take longer, so that you have time to look, or to press Ctrl-C.",
)
@click.option("--dashboard/--no-dashboard", default=True, help="Also show the jobs in a browser (default: yes).")
@click.option(
    "--stay/--no-stay",
    default=None,
    help="Keep the dashboard open after all jobs have ended, until Ctrl-C (default: at a terminal).",
)
def demo(**options: Unpack[DemoOptions]) -> int:
    """See two schedulers at work on the files of FOLDER; by default those of Python's standard library.

    Starts a private MongoDB server (or uses --uri) and two schedulers, and enqueues one job for each file. Each job
    reads its file and stores a digest and a line count as its result; some fail once and are retried, some are
    delayed. Prints the link of a dashboard, the progress each second, and at the end a summary of the stored jobs.

    The first Ctrl-C lets running jobs finish, the second cuts them short. Exit status: 0 if all jobs are completed, 1
    if not, 2 if the demo could not run, 130 if interrupted.
    """
    return trio.run(demonstrate, options)
