"""`trio-monque server`: a MongoDB for development, in the foreground, at the address that programs expect."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Final

import click

from ..embedded import EmbeddedMongod
from ..embedded.scope import check_replica_set
from ..embedded.server_start import LaunchOptions
from ..error_types import InvalidOptionError
from .exit_statuses import SUCCEEDED

PORT: Final = 27017
REPLICA_SET: Final = "rs0"

# Seconds between two looks at whether the server still runs.
LOOK_EVERY: Final = 0.5

_EXAMPLES = """\b
Examples:
  trio-monque server
  trio-monque server --port 27018 --folder ./data
"""


def _replica_set(_context: click.Context, _option: click.Parameter, given: str) -> str:
    try:
        return check_replica_set(given)
    except InvalidOptionError as error:
        raise click.BadParameter(str(error)) from None


@click.command(short_help="Run a MongoDB server for development.", epilog=_EXAMPLES)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    default=PORT,
    metavar="N",
    help=f"The port on 127.0.0.1 (default: {PORT}).",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    metavar="DIR",
    help="Keep the data in this folder between runs.",
)
@click.option(
    "--replica-set",
    default=REPLICA_SET,
    callback=_replica_set,
    metavar="NAME",
    help=f"The name of the replica set (default: {REPLICA_SET}).",
)
def server(port: int, folder: Path | None, replica_set: str) -> int:
    """Run a MongoDB server for development until Ctrl-C or SIGTERM, and print the URI to connect with.

    It listens on 127.0.0.1 only, has no access control, and starts even where MONQUE_MONGODB_URI names a server.

    Exit status: 0 after Ctrl-C or SIGTERM, 2 if the server cannot start or ends by itself.
    """
    options = LaunchOptions(1, port, folder, replica_set, always_start=True)
    stop = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    # Handle signals during the start too, so that a server that has been started is stopped in order.
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with EmbeddedMongod(options) as mongod:
            # One address for both: a driver may leave the database out, and the commands may not.
            address = mongod.uri.replace("/?", "/shop?")
            # Flush: the reader may be a script that waits for the address.
            print(f"MongoDB is ready. Connect with\n  {address}", flush=True)
            print("Replace shop by the name of your database. For the other commands:")
            print(f'  export MONQUE_URI="{address}"')
            what_remains = "The data is removed at the end." if folder is None else f"The data is kept in {folder}."
            print(f"{what_remains} Press Ctrl-C to stop the server.", flush=True)
            while not stop.wait(LOOK_EVERY):
                mongod.check()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return SUCCEEDED
