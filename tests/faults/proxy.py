"""A proxy before a server with the faults of a real network: delays, cuts, half-open connections, lost replies.

It understands the protocol: a reply is lost after the server has applied what it answers, and only the replies that a
test chose. Half-open connections stay so until their client gives them up, as in a network
that has forgotten them; new ones work again after the block.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from random import Random
from typing import Final

from tests.support import wire
from tests.support.open_resources import RELAY
from tests.support.wire import Command, break_off

HOST: Final = "127.0.0.1"

Chooses = Callable[[Command], bool]


class Way(Enum):
    """Which way nothing passes on a half-open connection."""

    REQUESTS = "the server sees nothing"
    REPLIES = "the server works, and nobody hears of it"


class _Link:
    """One connection of a client, and the one to the server behind it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.silent: set[Way] = set()
        self.doomed: set[int] = set()
        self._left = 2
        self._lock = threading.Lock()

    def cut(self) -> None:
        break_off(self.client)
        break_off(self.server)

    def leave(self) -> bool:
        """One of its two threads has ended. Whether both have: then the sockets are free."""
        self.cut()
        with self._lock:
            self._left -= 1
            if not self._left:
                self.client.close()
                self.server.close()
            return not self._left


class FaultyProxy:
    """Passes messages on, except those that a test chose.

    Attributes:
        lost: How many replies were lost.
        accepted: How many connections there have been.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._links: set[_Link] = set()
        self._silent: set[Way] = set()
        self._delays: Callable[[], float] | None = None
        self._chooses: Chooses | None = None
        self._lock = threading.Lock()
        self.lost = 0
        self.accepted = 0

    def uri(self, *options: str) -> str:
        """With these in it, such as "retryWrites=false"."""
        return f"mongodb://{HOST}:{self._port}/?" + "&".join(("directConnection=true", *options))

    # --- Faults ---

    def lose_replies(self, chooses: Chooses) -> None:
        """From now on: the connection breaks where the reply to a chosen command would come."""
        with self._lock:
            self._chooses = chooses

    def lose_nothing(self) -> None:
        with self._lock:
            self._chooses = None

    @contextmanager
    def delayed(self, random: Random, most: float) -> Iterator[None]:
        """Each message takes up to `most` seconds longer, either way; a connection keeps their order."""
        self._delays = lambda: random.uniform(0, most)
        try:
            yield
        finally:
            self._delays = None

    def cut(self, chooses: Callable[[], bool] = lambda: True) -> None:
        """Breaks connections, all of them or those that are chosen."""
        with self._lock:
            chosen = [link for link in self._links if chooses()]
        for link in chosen:
            link.cut()

    @contextmanager
    def half_open(self, *ways: Way) -> Iterator[None]:
        """Connections stay, and new ones are accepted, and nothing passes on them these ways, for ever."""
        with self._lock:
            self._silent.update(ways)
            for link in self._links:
                link.silent.update(ways)
        try:
            yield
        finally:
            with self._lock:
                self._silent.difference_update(ways)

    # --- At work ---

    def connect(self, client: socket.socket, server: socket.socket) -> list[threading.Thread]:
        link = _Link(client, server)
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            link.silent.update(self._silent)
            self._links.add(link)
            self.accepted += 1
        return [threading.Thread(target=self._pass_on, args=(link, way), name=RELAY, daemon=True) for way in Way]

    def _pass_on(self, link: _Link, way: Way) -> None:
        source, target = (link.client, link.server) if way is Way.REQUESTS else (link.server, link.client)
        with suppress(OSError):
            while message := wire.message(source):
                if way is Way.REQUESTS:
                    self._choose(link, message)
                elif wire.answers(message) in link.doomed:
                    self.lost += 1
                    break
                if (delays := self._delays) is not None:
                    time.sleep(delays())
                if way not in link.silent:
                    target.sendall(message)
        if link.leave():
            with self._lock:
                self._links.discard(link)

    def _choose(self, link: _Link, message: bytes) -> None:
        with self._lock:
            if self._chooses is not None and self._chooses(wire.command(message)):
                link.doomed.add(wire.request_id(message))


@contextmanager
def faulty_proxy(server: tuple[str, int | None]) -> Iterator[FaultyProxy]:
    """A proxy before that server, for as long as the block."""
    host, server_port = server
    assert server_port is not None
    listener = socket.create_server((HOST, 0), backlog=128)
    proxy = FaultyProxy(listener.getsockname()[1])
    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                for thread in proxy.connect(client, socket.create_connection((host, server_port))):
                    threads.append(thread)
                    thread.start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield proxy
    finally:
        break_off(listener)
        acceptor.join()
        listener.close()
        proxy.cut()
        for thread in threads:
            thread.join()
