"""The command's arguments, and which view it gets."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict, Unpack

import click
import trio

from ...safe_text import uri_without_secrets
from .files import standard_library
from .place import DemoOptions
from .program import run_demo
from .views import PlainView, View


class DemoArguments(TypedDict):
    """The arguments that click passes, named as in DemoOptions."""

    folder: Path
    pattern: str
    most_files: int | None
    uri: str | None
    keep: bool
    job_seconds: float


_EXAMPLES = """\b
Examples:
  trio-monque demo
  trio-monque demo --job-seconds 1
  trio-monque demo ~/notes --pattern '*.txt'
  trio-monque demo --uri mongodb://localhost/test --keep
"""


def _folder(_context: click.Context, _option: click.Parameter, given: str | None) -> Path:
    if given is None:
        return standard_library()
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
@click.option("--pattern", default="*.py", metavar="GLOB", help="Which files of the folder (default: *.py).")
@click.option("--files", "most_files", type=click.IntRange(min=1), metavar="N", help="Process at most N files.")
@click.option("--uri", help="A MongoDB server to use instead of starting one.")
@click.option("--keep", is_flag=True, help="Leave the demo's collections on that server.")
@click.option("--plain", is_flag=True, help="Print log lines instead of the live view.")
@click.option(
    "--job-seconds",
    type=float,
    default=0.0,
    callback=_seconds,
    metavar="SECONDS",
    help="Let each job take longer, to have time to look, or to press Ctrl-C.",
)
def demo(*, plain: bool, **options: Unpack[DemoArguments]) -> int:
    """See two schedulers at work on the files of FOLDER; by default those of Python's standard library.

    Starts a private MongoDB server (or uses --uri) and two schedulers, and enqueues one job for each file. Each job
    reads its file and stores a digest and a line count; one in fifty fails once and is retried, a few are delayed. At
    the end it checks, from what is stored, that every file has exactly one settled run and the right digest.

    The first Ctrl-C lets running jobs finish, the second cuts them short. Exit status: 0 if the check passed, 1 if
    not, 2 if the demo could not run, 130 if interrupted.
    """
    started = time.monotonic()
    return trio.run(run_demo, DemoOptions(**options), _view(plain=plain), started)


def _view(*, plain: bool) -> View:
    if plain or not sys.stdout.isatty():
        return PlainView()
    if find_spec("rich") is None:
        view = PlainView()
        view.say("for a live view: python -m pip install rich")
        return view
    from .live_view import LiveView  # Only here: rich is an extra.

    return LiveView()
