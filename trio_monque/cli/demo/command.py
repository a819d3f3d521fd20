"""The command's arguments, and which view it gets."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import trio

from ...safe_text import uri_without_secrets
from .files import standard_library
from .place import DemoOptions
from .program import run_demo
from .views import PlainView, View

_DESCRIPTION = """
Starts a private MongoDB server (or uses --uri) and two schedulers, and enqueues one job for each file of a
folder. Each job reads its file and stores a digest and a line count; one in fifty fails once and is tried
again, a few are delayed. At the end it checks, from what is stored, that every file has exactly one settled
run and the right digest. Exit status: 0 if so, 1 if not, 2 if it could not run, 130 if interrupted.
The first Ctrl-C lets running jobs finish, the second cuts them short.
"""


def add_to(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo", help="see it at work on your own machine, in under a minute", description=_DESCRIPTION
    )
    parser.add_argument(
        "folder", nargs="?", type=_folder, help="whose files to read; by default Python's standard library"
    )
    parser.add_argument("--pattern", default="*.py", help="which files of the folder (default: %(default)s)")
    parser.add_argument("--files", type=_count, metavar="N", help="process at most N files")
    parser.add_argument("--uri", help="a MongoDB server to use instead of starting one")
    parser.add_argument("--keep", action="store_true", help="leave the demo's collections on that server")
    parser.add_argument("--plain", action="store_true", help="log lines instead of the live view")
    parser.add_argument(
        "--job-seconds",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="let every job take so much longer, to have time to look, or to press Ctrl-C",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    options = DemoOptions(
        folder=arguments.folder or standard_library(),
        pattern=arguments.pattern,
        most_files=arguments.files,
        uri=arguments.uri,
        keep=arguments.keep,
        job_seconds=arguments.job_seconds,
    )
    return trio.run(run_demo, options, _view(plain=arguments.plain), started)


def _view(*, plain: bool) -> View:
    if plain or not sys.stdout.isatty():
        return PlainView()
    if find_spec("rich") is None:
        view = PlainView()
        view.say('for a live view: pip install "trio-monque[embedded]", which brings rich')
        return view
    from .live_view import LiveView  # Only here: rich is an extra.

    return LiveView()


def _folder(given: str) -> Path:
    folder = Path(given)
    if not folder.is_dir():
        # It may be a connection string that lacks its `--uri`.
        raise argparse.ArgumentTypeError(f"{uri_without_secrets(given)!r} is not a folder")
    return folder.resolve()


def _count(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"{given!r} is not a number of files: give 1 or more")
    return int(given)


def _seconds(given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{given!r} is not a number of seconds from 0 to 3600")
    return seconds
