"""Streams of events on real servers: what they cost, and that they end with their connections."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.support.thoroughly import FULL
from tests.support.waiting import wait_until
from tests.support.web_servers import WebServer
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

SERVED: Final = Path(__file__).parent / "served_app.py"
KINDS: Final = ["uvicorn", "hypercorn, trio"]
MANY: Final = 1000 if FULL else 150
DROPPED: Final = 10_000 if FULL else 400
AT_ONCE: Final = 50
SECONDS: Final = 30.0


class Stream:
    """A connection that has asked for events."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        self._socket = socket.create_connection((where.hostname, where.port or 80), timeout=SECONDS)
        self._socket.sendall(b"GET /admin/api/v1/events HTTP/1.1\r\nHost: jobs.test\r\n\r\n")

    def read_until(self, text: bytes) -> bytes:
        found = b""
        while text not in found:
            piece = self._socket.recv(4096)
            assert piece, found
            found += piece
        return found

    @property
    def status(self) -> int:
        return int(self.read_until(b"\r\n\r\n").split()[1])

    def close(self) -> None:
        self._socket.close()


@contextmanager
def serving(kind: str, mongod: EmbeddedServer, db: Database, viewers: int) -> Iterator[WebServer]:
    order = {"ORDER": json.dumps({"uri": mongod.uri, "database": db.name, "viewers": viewers})}
    with WebServer(kind, SERVED, order) as server:
        server.wait_until_it_serves()
        yield server


def resident(server: WebServer) -> int:
    """Bytes of the server's processes in memory."""
    group, pages = server.process.pid, 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group:
                pages += int((process / "statm").read_text(encoding="ascii").split()[1])
        except OSError:  # It has ended.
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def opened(stack: ExitStack, server: WebServer, number: int) -> list[Stream]:
    found = []
    for _ in range(number):
        stream = Stream(server.url)
        stack.callback(stream.close)
        found.append(stream)
    return found


def is_served(server: WebServer) -> bool:
    stream = Stream(server.url)
    try:
        return stream.status == 200
    finally:
        stream.close()


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_closed_connections_end_their_streams(mongod: EmbeddedServer, db: Database, kind: str) -> None:
    with serving(kind, mongod, db, viewers=10) as server:
        with ExitStack() as stack:
            for stream in opened(stack, server, 10):
                assert b"event: stale" in stream.read_until(b"event: stale")
            assert not is_served(server)
        wait_until(lambda: is_served(server), "a place is free again", SECONDS)


@pytest.mark.full
@pytest.mark.larger_in_full
@pytest.mark.parametrize("kind", KINDS)
def test_streams_that_never_read_cost_little_and_let_others_pass(
    mongod: EmbeddedServer, db: Database, kind: str
) -> None:
    with serving(kind, mongod, db, viewers=MANY + 1) as server:
        assert server.ask("GET", "/admin/api/v1/jobs")[0] == 200
        before = resident(server)
        with ExitStack() as stack:
            opened(stack, server, MANY)
            last = Stream(server.url)
            stack.callback(last.close)
            assert last.status == 200  # The others were before it.
            assert (resident(server) - before) / MANY < 100_000
            assert server.ask("GET", "/admin/api/v1/jobs")[0] == 200
            assert not is_served(server)
        wait_until(lambda: is_served(server), "a place is free again", SECONDS)


@pytest.mark.full
@pytest.mark.larger_in_full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_streams_that_are_opened_and_dropped_leave_nothing(mongod: EmbeddedServer, db: Database, kind: str) -> None:
    with serving(kind, mongod, db, viewers=2 * AT_ONCE) as server:

        def open_and_drop(number: int) -> None:
            for _ in range(number // AT_ONCE):
                with ExitStack() as stack:
                    streams = opened(stack, server, AT_ONCE)
                    streams[-1].read_until(b"\r\n\r\n")

        open_and_drop(DROPPED // 4)  # What the server needs once: it grows by some megabytes at first.
        wait_until(lambda: is_served(server), "a place is free again", SECONDS)
        before = resident(server)
        open_and_drop(DROPPED)
        wait_until(lambda: is_served(server), "a place is free again", SECONDS)
        assert resident(server) - before < 20_000_000
