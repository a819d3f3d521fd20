"""Serves a few read-only pages over HTTP from threads, so that they answer while the event loop is blocked."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import click

from ...error_types import MonqueError
from ...log import logger_of

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logger_of("cli")

_LOOPBACK: Final = "127.0.0.1"
_END_WITHIN: Final = 0.25
"""Seconds between two looks of the server at whether it should end, and at which connections are over their time."""

MOST_CONNECTIONS: Final = 32
"""At a time; each has a thread. Kubernetes and Prometheus need two or three."""

_WAITING_CONNECTIONS: Final = 1024
"""The backlog: connections that the kernel holds until they are accepted. Linux caps it with `net.core.somaxconn`."""

RECEIVED_WITHIN: Final = 5.0
"""Seconds for the whole request of a client: a byte now and then does not extend it."""

ANSWERED_WITHIN: Final = 30.0
"""Seconds from the connection to the end of the answer. Collectors of the targets may be slow, and so may clients."""

ROOM_WITHIN: Final = 1.0
"""Seconds in which the thread of a connection that was closed ends."""

_BUSY: Final = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n\r\ntoo many connections\n"
)


@dataclass(frozen=True)
class Address:
    """Where to listen. Port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class AddressType(click.ParamType[Address]):
    """`HOST:PORT`; `:PORT` and `PORT` mean the loopback address."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        host, _, port = str(value).rpartition(":")
        if not (port.isascii() and port.isdecimal() and int(port) < 65_536):
            self.fail(f"{value!r} has no port from 0 to 65535: write HOST:PORT, or PORT for {_LOOPBACK}", param, ctx)
        return Address(host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port))


@dataclass(frozen=True)
class Page:
    """What a path answers."""

    status: str
    content_type: str
    body: str

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        body = self.body.encode()
        start_response(self.status, [("Content-Type", self.content_type), ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def page_of(make: Callable[[], Page]) -> WSGIApplication:
    """Return the application that makes a page for each request."""
    return lambda environ, start_response: make()(environ, start_response)


@contextmanager
def served(pages: Mapping[str, WSGIApplication], address: Address, option: str) -> Iterator[None]:
    """Serve these pages, by their paths, for as long as the block.

    Raises:
        MonqueError: It cannot listen at the address; names the option.
    """
    try:
        server = PagesServer(pages, address)
    except OSError as error:
        reason = error.strerror or error
        raise MonqueError(f"cannot listen at {address} for {option}: {reason}; choose another address") from None
    thread = threading.Thread(
        target=server.serve_forever, args=(_END_WITHIN,), name=f"trio_monque {option}", daemon=True
    )
    with server:
        thread.start()
        logger.info("serving %s at http://%s", " ".join(pages), Address(address.host, server.server_port))
        try:
            yield
        finally:
            server.shutdown()  # It returns when the loop of the thread has ended.


class Connections:
    """The connections of a server, in the order of their beginning. Any of its threads may use them."""

    def __init__(self) -> None:
        # Writers: the thread that accepts adds and closes; the thread of a connection marks and removes its own.
        self._began_at: dict[socket, float] = {}
        self._receiving: set[socket] = set()
        self._changed = threading.Condition()

    def add(self, connection: socket) -> bool:
        """Count a connection; for room, close the oldest one whose request has not come. False if there is no room."""
        with self._changed:
            if len(self._began_at) >= MOST_CONNECTIONS:
                silent = next((one for one in self._began_at if one in self._receiving), None)
                if silent is None:
                    return False
                _wake(silent)
                if not self._changed.wait_for(lambda: len(self._began_at) < MOST_CONNECTIONS, ROOM_WITHIN):
                    return False
            self._began_at[connection] = time.monotonic()
            self._receiving.add(connection)
            return True

    def received(self, connection: socket) -> None:
        """Its request has come."""
        with self._changed:
            self._receiving.discard(connection)

    def remove(self, connection: socket) -> None:
        """It ends."""
        with self._changed:
            self._began_at.pop(connection, None)
            self._receiving.discard(connection)
            self._changed.notify_all()

    def close_late_ones(self) -> None:
        """End the connections that are over their time."""
        now = time.monotonic()
        with self._changed:
            for connection, began_at in self._began_at.items():
                if now - began_at >= (RECEIVED_WITHIN if connection in self._receiving else ANSWERED_WITHIN):
                    _wake(connection)


def _wake(connection: socket) -> None:
    """Let its thread meet the end of the connection. Only that thread closes it: file descriptors are used again."""
    with suppress(OSError):  # The client has left.
        connection.shutdown(SHUT_RDWR)


class PagesServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = _WAITING_CONNECTIONS

    def __init__(self, pages: Mapping[str, WSGIApplication], address: Address) -> None:
        self.address_family = AF_INET6 if ":" in address.host else AF_INET
        self._pages = pages
        self.connections = Connections()
        super().__init__((address.host, address.port), _RequestHandler)
        self.set_app(self._answer)

    def server_bind(self) -> None:
        # Not that of HTTPServer: it asks the name service for the name of the host, which may take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.connections.add(request):
            super().process_request(request, client_address)
        else:
            # If the client has left, this raises: the base class logs it and closes the connection.
            request.send(_BUSY)
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self.connections.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self.connections.close_late_ones()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that left, or sent nothing in time.
        logger.debug("a request from %s failed: %s", client_address, sys.exc_info()[1])

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return Page("405 Method Not Allowed", "text/plain", "only GET and HEAD\n")(environ, start_response)
        page = self._pages.get(environ["PATH_INFO"])
        if page is None:
            there = f"there is {', '.join(self._pages)}\n"
            return Page("404 Not Found", "text/plain", there)(environ, start_response)
        return page(environ, start_response)


class _RequestHandler(WSGIRequestHandler):
    def parse_request(self) -> bool:
        is_request = super().parse_request()
        cast("PagesServer", self.server).connections.received(self.connection)
        return is_request

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # The name is that of the base class.
        logger.debug("%s asked: %s", self.address_string(), format % args)
