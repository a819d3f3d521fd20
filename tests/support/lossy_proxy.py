"""A proxy before a server that loses messages for real: the server has done its work, and its answer is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum

from . import wire
from .fast_driver import FAST_URI, fast_driver
from .wire import Command, break_off


class Loss(Enum):
    """What becomes of a message: its connection breaks in each case."""

    ANSWER = "the server has applied it"
    REQUEST = "the server never saw it"


@dataclass(frozen=True)
class _Rule:
    matches: Callable[[Command], bool]
    loss: Loss
    after: Callable[[], object]
    reply: Command | None = None


@dataclass
class LossyProxy:
    """Passes messages on, except those that a test chose to lose.

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
        """Loses the next commands of that name that match; `after` runs before the sender notices."""
        rule = _Rule(lambda command: next(iter(command)) == name and matches(command), loss, after)
        with self._lock:
            self._rules.extend([rule] * times)

    def answer(self, name: str, reply: Command) -> None:
        """Answers the next command of that name itself: as a router does, whose shard was interrupted."""
        with self._lock:
            self._rules.append(_Rule(lambda command: next(iter(command)) == name, Loss.REQUEST, lambda: None, reply))

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
        options = f"directConnection=true&retryWrites=false&retryReads=false&{FAST_URI}"
        return f"mongodb://127.0.0.1:{self.port}/?{options}"


@contextmanager
def lossy_proxy(server: tuple[str, int]) -> Iterator[LossyProxy]:
    """A proxy before that server, for as long as the block.

    The clients that are made meanwhile find it again at once where it broke their connection.
    """
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
        with fast_driver():
            yield proxy
    finally:
        break_off(listener)
        acceptor.join()
        for connection in connections:
            break_off(connection)
        for thread in threads:
            thread.join()
        for connection in (listener, *connections):
            connection.close()


def _requests(proxy: LossyProxy, client: socket.socket, upstream: socket.socket, doomed: dict[int, _Rule]) -> None:
    with suppress(OSError):
        while message := wire.message(client):
            rule = proxy.rule_for(wire.command(message))
            if rule is not None and rule.reply is not None:
                client.sendall(wire.reply_to(message, rule.reply))
                continue
            if rule is not None and rule.loss is Loss.REQUEST:
                rule.after()
                break
            if rule is not None:
                doomed[wire.request_id(message)] = rule
            upstream.sendall(message)
    break_off(client)
    break_off(upstream)


def _answers(_: LossyProxy, client: socket.socket, upstream: socket.socket, doomed: dict[int, _Rule]) -> None:
    with suppress(OSError):
        while message := wire.message(upstream):
            rule = doomed.get(wire.answers(message))
            if rule is not None:
                rule.after()
                break
            client.sendall(message)
    break_off(client)
    break_off(upstream)
