"""The server of the endpoints: which connections it ends, and when, and what clients read."""

from __future__ import annotations

import logging
import math
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.waiting import becomes_readable, wait_until
from trio_monque.cli.run import http_server
from trio_monque.cli.run.http_server import Address, Connections, Page, PagesServer, page_of, served


class Client:
    """A client, and its connection at the server."""

    def __init__(self) -> None:
        self.connection, self._own_end = socket.socketpair()

    def close(self) -> None:
        self.connection.close()
        self._own_end.close()

    def has_lost_its_connection(self, within: float = 0.0) -> bool:
        return becomes_readable(self._own_end.fileno(), within)


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    several = [Client() for _ in range(2)]
    yield several
    for one in several:
        one.close()


def test_connection_is_refused_if_the_one_that_was_closed_for_it_does_not_end(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 1)
    monkeypatch.setattr(http_server, "ROOM_WITHIN", 0.0)
    connections, (silent, other) = Connections(), clients
    assert connections.add(silent.connection)
    assert not connections.add(other.connection)
    assert silent.has_lost_its_connection()


def test_connection_is_accepted_as_soon_as_the_one_that_was_closed_for_it_ends(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 1)
    monkeypatch.setattr(http_server, "ROOM_WITHIN", 45.0)
    connections, (silent, other) = Connections(), clients
    assert connections.add(silent.connection)
    accepted: list[bool] = []
    thread = threading.Thread(target=lambda: accepted.append(connections.add(other.connection)), daemon=True)
    thread.start()
    assert silent.has_lost_its_connection(30.0)
    connections.remove(silent.connection)
    thread.join(15.0)
    assert accepted == [True]


def test_connections_have_one_time_for_their_request_and_one_for_their_answer(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "RECEIVED_WITHIN", 0.0)
    monkeypatch.setattr(http_server, "ANSWERED_WITHIN", math.inf)
    connections, (_, slow) = Connections(), clients
    for client in clients:
        assert connections.add(client.connection)
    connections.received(slow.connection)
    connections.close_late_ones()
    assert [client.has_lost_its_connection() for client in clients] == [True, False]
    monkeypatch.setattr(http_server, "ANSWERED_WITHIN", 0.0)
    connections.close_late_ones()
    assert slow.has_lost_its_connection()


def reset_a_connection_to(address: Any) -> None:
    with socket.create_connection(address) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_late_client_that_has_reset_its_connection_does_not_end_the_server(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that accepts connections also ends late ones."""
    monkeypatch.setattr(http_server, "RECEIVED_WITHIN", 0.0)
    connections, (other, _) = Connections(), clients
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reset_a_connection_to(listener.getsockname())
        connection, _ = listener.accept()
        with connection:
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
            assert connections.add(connection)
            assert connections.add(other.connection)
            connections.close_late_ones()
    assert other.has_lost_its_connection()


def test_client_without_a_place_that_has_reset_its_connection_neither_ends_the_server_nor_prints_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 0)
    with PagesServer({}, Address("127.0.0.1", 0)) as server:
        reset_a_connection_to(server.server_address)
        server.handle_request()
    assert capfd.readouterr() == ("", "")


@contextmanager
def port_of_server(
    caplog: pytest.LogCaptureFixture, make: Callable[[], Page] = lambda: Page("200 OK", "text/plain", "text")
) -> Iterator[int]:
    caplog.set_level(logging.INFO, "trio_monque.cli")
    pages = {"/page": page_of(make)}
    with served(pages, Address("127.0.0.1", 0), "--health"):
        (port,) = re.findall(r"http://127.0.0.1:(\d+)", caplog.messages[-1])
        yield int(port)


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        yield client


def all_from(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(1000), b""))


def test_oldest_connection_without_a_request_is_closed_for_a_further_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the newest one: its request may be on its way."""
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(http_server, "RECEIVED_WITHIN", math.inf)
    with port_of_server(caplog) as port, connected(port) as oldest, connected(port) as newer, connected(port) as newest:
        assert oldest.recv(1) == b""
        for client in (newer, newest):
            client.sendall(b"GET /page HTTP/1.0\r\n\r\n")
            assert all_from(client).endswith(b"\r\n\r\ntext")


def test_client_that_does_not_read_its_answer_keeps_no_thread(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the buffers between them hold: the thread is in the middle of a write."""
    monkeypatch.setattr(http_server, "ANSWERED_WITHIN", 0.0)
    began = threading.Event()

    def make() -> Page:
        began.set()
        return Page("200 OK", "text/plain", "text" * 10_000_000)

    with port_of_server(caplog, make) as port, connected(port) as client:
        client.sendall(b"GET /page HTTP/1.0\r\n\r\n")
        assert began.wait(30)
        wait_until(lambda: not any("process_request" in one.name for one in threading.enumerate()), "its thread ends")


def test_answer_to_head_has_the_headers_of_the_page_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    with port_of_server(caplog) as port, connected(port) as client:
        client.sendall(b"HEAD /page HTTP/1.0\r\n\r\n")
        answer = all_from(client)
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert answer.endswith(b"\r\nContent-Length: 4\r\n\r\n")


def test_server_starts_without_the_name_service(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker process would wait for it, at its start, for as long as the name service does not answer."""
    asked: list[str] = []
    monkeypatch.setattr(socket, "getfqdn", asked.append)
    with port_of_server(caplog):
        assert asked == []
