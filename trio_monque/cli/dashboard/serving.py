"""Serves the dashboard by hypercorn on trio, until a signal."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_by_hypercorn
from starlette.types import ASGIApp

from ...client.monque import Monque, collection_of
from ...error_types import MonqueError
from ...options_and_defaults import ClientOptions
from ...store.driver.types import Database
from ...web import allow_all, create_app
from ...web.guard.gate import Gate
from ...web.guard.one_time_link import OneTimeLink
from ...web.pages.sign_in import SignIn
from ..current_user import user_name
from ..run.http_server import Address

GRACE: Final = 1.0
"""Seconds after which the server cuts open connections at the end: streams of live pages never end by themselves."""
WAITING_CONNECTIONS: Final = 100


@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """How the dashboard is served.

    Attributes:
        collection: Of the jobs; None for the usual one.
        operation_timeout: Seconds; None for the usual ones.
        read_only: Nothing can be changed.
        has_link: Only the browser is let in that opens the link.
        is_local: The address is one that this machine alone can reach.
        filters: The fields that lists can be filtered by.
        environment: Shown on every page.
    """

    collection: str | None = None
    operation_timeout: float | None = None
    read_only: bool = False
    has_link: bool = True
    is_local: bool = True
    filters: Sequence[str] = ()
    environment: str | None = None


@dataclass(frozen=True, slots=True)
class _Caller:
    """Who acts: the user who runs the command. The log and `by` of a pause have the name."""

    user: str | None


async def serve(database: Database, address: Address, options: DashboardOptions) -> None:
    """Serve it, and print the link, until SIGINT or SIGTERM.

    Raises:
        MonqueError: It cannot listen at the address, or the database does not answer.
        InvalidOptionError: An option is invalid.
    """
    monque = client_of(database, options)
    await monque.paused()  # A wrong address is an error here, and not a page later.
    ending = trio.Event()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            url = await nursery.start(partial(serve_until, ending, monque, address, options))
            print(f"{collection_of(monque)} is shown at\n  {url}", flush=True)
            if options.has_link:
                print("The link works for one browser, within ten minutes.", flush=True)
            print("Press Ctrl-C to stop it.", flush=True)
            async for _ in signals:
                ending.set()
                return


def client_of(database: Database, options: DashboardOptions) -> Monque:
    """Return the client whose jobs are shown."""
    chosen: ClientOptions = {"skip_index_creation": True}
    if options.collection is not None:
        chosen["collection_name"] = options.collection
    if options.operation_timeout is not None:
        chosen["operation_timeout"] = options.operation_timeout
    return Monque(database, **chosen)


async def serve_until(
    ending: trio.Event,
    monque: Monque,
    address: Address,
    options: DashboardOptions,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the dashboard until the event is set; the task has started with its URL.

    If cancelled, it ends at once.

    Raises:
        MonqueError: It cannot listen at the address.
        InvalidOptionError: An option is invalid.
    """
    link = OneTimeLink() if options.has_link else None
    inner = _application(monque, options)
    listener = _listener(address)
    port = listener.getsockname()[1]
    app = _guarded(inner, port, link, is_local=options.is_local)
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.accesslog = None  # It would have the token.
    config.errorlog = None
    config.graceful_timeout = GRACE
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_by_hypercorn, app, config, shutdown_trigger=ending.wait))  # type: ignore[arg-type]
        query = "" if link is None else f"?token={link.token}"
        task_status.started(f"http://{Address(address.host, port)}/{query}")


def _application(monque: Monque, options: DashboardOptions) -> ASGIApp:
    caller = _Caller(user_name())
    context: Callable[[Any], _Caller] = lambda _request: caller  # noqa: E731
    return create_app(
        monque,
        authorize=allow_all,
        context=context,
        read_only=options.read_only,
        filters=options.filters,
        environment=options.environment,
    )


def _guarded(app: ASGIApp, port: int, link: OneTimeLink | None, *, is_local: bool) -> ASGIApp:
    door = app if link is None else SignIn(app, link, f"monque_{port}")
    # A page of another site may point a name of its own at this address: such a request names another host.
    return Gate(door, [f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")] if is_local else None)


def _listener(address: Address) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family, backlog=WAITING_CONNECTIONS)
    except OSError as error:
        reason = error.strerror or error
        raise MonqueError(f"cannot listen at {address} for the dashboard: {reason}; choose another address") from None
