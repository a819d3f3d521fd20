"""A proxy before a server that loses messages for real: the server has done its work, and nobody hears of it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import bson

Command = dict[str, Any]

_HEADER = struct.Struct("<iiii")  # Length, request id, the request that is answered, kind of message.
_OP_MSG = 2013


class Loss(Enum):
    """What becomes of a message: its connection breaks in each case."""

    ANSWER = "the server has applied it"
    REQUEST = "the server never saw it"


@dataclass(frozen=True)
class _Rule:
    matches: Callable[[Command], bool]
    loss: Loss
    after: Callable[[], object]


@dataclass
class LossyProxy:
    """Passes messages on, except those that it is told to lose.

    Attributes:
        port: Where it listens.
        lost: The commands that were lost so far.
    """

    port: int
    lost: list[Command] = field(default_factory=list)
    _rules: list[_Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lose(
        self,
        name: str,
        loss: Loss = Loss.ANSWER,
        times: int = 1,
        *,
        matches: Callable[[Command], bool] = lambda _: True,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        """Loses the next commands of that name, so many, that match; `after` runs before the sender hears of it."""
        rule = _Rule(lambda command: next(iter(command)) == name and matches(command), loss, after)
        with self._lock:
            self._rules.extend([rule] * times)

    def forget(self) -> None:
        """Loses nothing any more, and what was lost is forgotten."""
        with self._lock:
            self._rules.clear()
            self.lost.clear()

    def rule_for(self, command: Command) -> _Rule | None:
        with self._lock:
            for number, rule in enumerate(self._rules):
                if rule.matches(command):
                    self.lost.append(command)
                    return self._rules.pop(number)
        return None

    @property
    def uri(self) -> str:
        """Without the driver's own repetition, which would hide the loss."""
        return f"mongodb://127.0.0.1:{self.port}/?directConnection=true&retryWrites=false&retryReads=false"


@contextmanager
def lossy_proxy(server: tuple[str, int]) -> Iterator[LossyProxy]:
    """A proxy before that server, for as long as the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = LossyProxy(listener.getsockname()[1])
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                connections.append(client)
                upstream = socket.create_connection(server)
                connections.append(upstream)
                doomed: dict[int, _Rule] = {}
                for work in (_requests, _answers):
                    threads.append(threading.Thread(target=work, args=(proxy, client, upstream, doomed)))
                    threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield proxy
    finally:
        _break(listener)
        acceptor.join()
        for connection in connections:
            _break(connection)
        for thread in threads:
            thread.join()
        for connection in (listener, *connections):
            connection.close()


def _requests(proxy: LossyProxy, client: socket.socket, upstream: socket.socket, doomed: dict[int, _Rule]) -> None:
    with suppress(OSError):
        while message := _message(client):
            rule = proxy.rule_for(_command(message))
            if rule is not None and rule.loss is Loss.REQUEST:
                rule.after()
                break
            if rule is not None:
                doomed[_HEADER.unpack_from(message)[1]] = rule
            upstream.sendall(message)
    _break(client)
    _break(upstream)


def _answers(_: LossyProxy, client: socket.socket, upstream: socket.socket, doomed: dict[int, _Rule]) -> None:
    with suppress(OSError):
        while message := _message(upstream):
            rule = doomed.get(_HEADER.unpack_from(message)[2])
            if rule is not None:
                rule.after()
                break
            client.sendall(message)
    _break(client)
    _break(upstream)


def _break(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _message(connection: socket.socket) -> bytes:
    header = _exactly(connection, _HEADER.size)
    return header and header + _exactly(connection, _HEADER.unpack(header)[0] - _HEADER.size)


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        more = connection.recv(count - len(received))
        if not more:
            return b""
        received += more
    return received


def _command(message: bytes) -> Command:
    """The body of an OP_MSG, with its first document sequence, if there is one, under "documents"."""
    if _HEADER.unpack_from(message)[3] != _OP_MSG:
        return {"": None}
    at = _HEADER.size + 4
    body: Command = {}
    extra: Command = {}
    while at < len(message):
        kind, at = message[at], at + 1
        size = struct.unpack_from("<i", message, at)[0]
        if kind == 0:
            body = bson.decode(message[at : at + size])
        else:
            documents = message.index(b"\0", at + 4) + 1
            extra["documents"] = bson.decode_all(message[documents : at + size])
        at += size
    return {**body, **extra}
