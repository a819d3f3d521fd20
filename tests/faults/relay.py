"""A relay before a server, which can be made to hold back everything: its clients are cut off, and nothing breaks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """Passes bytes on while it is open.

    Attributes:
        uri: Where clients find it.
    """

    def __init__(self, port: int) -> None:
        self.uri = f"mongodb://127.0.0.1:{port}/?directConnection=true"
        self._open = threading.Event()
        self._open.set()

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """What is sent meanwhile, either way, arrives afterwards."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while received := source.recv(65536):
                self._open.wait()
                target.sendall(received)
        self._open.wait()  # The end of a connection is a message, too.
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay(server: tuple[str, int | None]) -> Iterator[Relay]:
    """A relay before that server, for as long as the block."""
    host, server_port = server
    assert server_port is not None
    listener = socket.create_server(("127.0.0.1", 0))
    passing = Relay(listener.getsockname()[1])
    connections = [listener]
    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                upstream = socket.create_connection((host, server_port))
                connections.extend((client, upstream))
                for ends in ((client, upstream), (upstream, client)):
                    for one in ends:
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threads.append(threading.Thread(target=passing.pass_on, args=ends))
                    threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield passing
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for connection in connections:
            connection.close()
