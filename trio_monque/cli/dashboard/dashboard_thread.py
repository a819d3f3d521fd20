"""A dashboard beside a worker, in a thread with an event loop and a database client of its own.

It shares nothing with the worker: a handler that blocks its loop does not stop the pages, and a dashboard that fails
stops no job.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import click
import trio

from ...client.monque import collection_of
from ...log import logger_of
from ...store.driver.types import Database
from ..connection_options import Connection
from ..run.http_server import Address
from .serving import GRACE, DashboardOptions, client_of, serve_until

logger = logger_of("cli")

END_WITHIN: Final = GRACE + 2.0
"""Seconds that the end of the command waits for it. The thread ends with the process anyway."""


@contextmanager
def dashboard_beside(connection: Connection, address: Address, options: DashboardOptions) -> Iterator[None]:
    """Serve a dashboard for as long as the block, and print its link.

    Raises:
        MonqueError: It cannot listen at the address, or the connection string is invalid.
    """
    served = _Served(connection, address, options)
    thread = threading.Thread(target=served.run, name="trio_monque --dashboard", daemon=True)
    thread.start()
    collection, url = served.started.result()
    # Not in the log: its readers could use the token.
    lasts = "\nThe link works for one browser, within ten minutes." if options.has_link else ""
    click.echo(f"{collection} is shown at\n  {url}{lasts}")
    try:
        yield
    finally:
        served.end()
        thread.join(END_WITHIN)


class _Served:
    def __init__(self, connection: Connection, address: Address, options: DashboardOptions) -> None:
        self.started: Future[tuple[str, str]] = Future()
        self._connection, self._address, self._options = connection, address, options
        self._token: trio.lowlevel.TrioToken | None = None
        self._ending: trio.Event | None = None

    def run(self) -> None:
        """Serve it to its end, in this thread."""
        try:
            with self._connection.open() as database:
                trio.run(self._serve, database)
        except BaseException as error:  # Nothing of it may reach the worker.
            if self.started.done():
                logger.error("the dashboard failed; the worker continues without it", exc_info=error)
            else:
                self.started.set_exception(error)

    async def _serve(self, database: Database) -> None:
        self._token, self._ending = trio.lowlevel.current_trio_token(), trio.Event()
        monque = client_of(database, self._options)
        async with trio.open_nursery() as nursery:
            serve = partial(serve_until, self._ending, monque, self._address, self._options)
            url = await nursery.start(serve)
            self.started.set_result((collection_of(monque), url))

    def end(self) -> None:
        """Let it end. From another thread."""
        assert self._token is not None
        assert self._ending is not None
        with suppress(trio.RunFinishedError):  # It has failed before.
            self._token.run_sync_soon(self._ending.set)
