"""`trio-monque server`: a MongoDB for development, in the foreground, at the address that programs expect."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ..embedded import EmbeddedMongod
from ..embedded.launcher import LaunchOptions
from ..embedded.scope import check_replica_set
from ..errors import InvalidOptionError
from .exit_statuses import SUCCEEDED

PORT: Final = 27017
REPLICA_SET: Final = "rs0"

# Seconds between two looks at whether the server still runs.
LOOK_EVERY: Final = 0.5

_DESCRIPTION = """
Runs a MongoDB server for development until Ctrl-C or SIGTERM, and prints the URI to connect with. It listens on
127.0.0.1 only, has no access control, and starts even where MONQUE_MONGODB_URI names a server. Exit status: 0 after
Ctrl-C or SIGTERM, 2 if the server cannot start or ends by itself.
"""


def add_to(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "server", help="run a MongoDB server for development", description=_DESCRIPTION
    )
    parser.add_argument("--port", type=_port, default=PORT, help="where to listen on 127.0.0.1 (default: %(default)s)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep the data there between runs")
    parser.add_argument(
        "--replica-set", type=_replica_set, default=REPLICA_SET, metavar="NAME", help="its name (default: %(default)s)"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    folder: Path | None = arguments.folder
    kept = None if folder is None else folder.resolve()
    options = LaunchOptions(1, arguments.port, kept, arguments.replica_set, always_start=True)
    stop = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    # During the start, too: a server that has been started is stopped in order.
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with EmbeddedMongod(options) as server:
            # Flushed: the reader may be a script that waits for the address.
            print(f"MongoDB is ready. Connect with\n  {server.uri}", flush=True)
            what_remains = "The data is removed at the end." if kept is None else f"The data is kept in {kept}."
            print(f"{what_remains} Press Ctrl-C to stop the server.", flush=True)
            while not stop.wait(LOOK_EVERY):
                server.check()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return SUCCEEDED


def _port(given: str) -> int:
    if not (given.isdecimal() and 1 <= int(given) <= 65_535):
        raise argparse.ArgumentTypeError(f"{given!r} is not a port: give a number from 1 to 65535")
    return int(given)


def _replica_set(given: str) -> str:
    try:
        return check_replica_set(given)
    except InvalidOptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
