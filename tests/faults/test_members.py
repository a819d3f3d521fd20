"""The network between the members of a replica set: who is cut off, and what is left of connections."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.waiting import wait_until

from .members import HOST, MemberRelay, Network


@pytest.fixture
def target() -> Iterator[socket.socket]:
    """Where a member would listen. Connections are accepted by the kernel."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener


def test_connections_from_one_port_to_two_others_are_distinguished() -> None:
    """One may be a client's, and the other a member's: only that one is cut off."""
    with ExitStack() as stack:
        opened: list[tuple[socket.socket, int]] = []
        own = 0
        for _ in range(2):
            port = stack.enter_context(socket.create_server((HOST, 0))).getsockname()[1]
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind((HOST, own))
            own = one.getsockname()[1]
            one.connect((HOST, port))
            opened.append((one, port))
        network = Network()
        assert [network.member_of(own, port) for _, port in opened] == [None, None]
        network.pids = [os.getppid(), os.getpid()]
        assert [network.member_of(own, port) for _, port in opened] == [1, 1]
        opened[0][0].close()
        assert [network.member_of(own, port) for _, port in opened] == [None, 1]


def test_relay_keeps_nothing_of_connections_that_have_ended(target: socket.socket) -> None:
    relay = MemberRelay(Network(), 0, target.getsockname()[1])
    with ExitStack() as stack:
        stack.callback(relay.end)
        for _ in range(5):
            with socket.create_connection((HOST, relay.port)) as client:
                upstream, _ = target.accept()
                with upstream:
                    client.sendall(b"x")
                    assert upstream.recv(1) == b"x"
        wait_until(lambda: not relay._connections, "the connections are closed")
