"""A worker process as its parent sees it: started, signalled, awaited, and asked over a socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, Final

import trio

from .parent_link import HEALTH, NO_CHANGES, STARTED, SUPERVISED

_MOST_UNANSWERED: Final = 100
"""Questions of one kind. More would fill the buffer of the socket, and block the thread that asks."""

_REST_WITHIN: Final = 1.0
"""Seconds in which the last messages of a process that has ended are read."""


class Question:
    """Something that a worker process was asked. The answer is None if it does not come in time."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.asked_at = time.monotonic()
        self._answers: SimpleQueue[Any] = SimpleQueue()

    def settle(self, answer: Any) -> None:
        self._answers.put(answer)

    def answer_by(self, deadline: float) -> Any:
        """Wait for the answer until this moment of `time.monotonic()`. It blocks."""
        try:
            return self._answers.get(timeout=max(deadline - time.monotonic(), 0.0))
        except Empty:
            return None


class ChildProcess:
    """A worker process that runs. Only `start_child` makes it.

    Attributes:
        pid: Its process id.
        began_at: When it was started, by `trio.current_time()`.
        started: Set when its scheduler has started.
        changes: Where its parent sends it what has changed; None if it has a change stream of its own.
    """

    def __init__(self, process: trio.Process, own_end: socket.socket, changes: Connection | None = None) -> None:
        self.pid = process.pid
        self.began_at = trio.current_time()
        self.started = trio.Event()
        self.changes = changes
        self._process = process
        self._socket = own_end
        self._connection = Connection(os.dup(own_end.fileno()))
        self._numbers = count()
        self._lock = threading.Lock()
        self._unanswered: dict[int, Question] = {}
        self._has_answered = False

    async def wait(self) -> int:
        """Return the return code when it has ended; negative if a signal killed it. Call it once."""
        has_left = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive, has_left)
                try:
                    returncode = await self._process.wait()
                    with trio.move_on_after(_REST_WITHIN):  # A process that it has forked may hold its end open.
                        await has_left.wait()
                finally:
                    # If the wait was cancelled, this process crashes: its child sees the end of the connection.
                    with suppress(OSError):
                        self._socket.shutdown(socket.SHUT_RDWR)
        finally:
            with self._lock:
                self._connection.close()
            self._socket.close()
            if self.changes is not None:
                self.changes.close()
        return returncode

    def send(self, number: signal.Signals) -> None:
        """Send a signal. It has no effect on a process that has ended."""
        self._process.send_signal(number)

    def ask(self, what: str) -> Question:
        """Ask for what `parent_link.py` answers. From any thread; the answer is awaited separately."""
        question = Question(what)
        with self._lock:
            if len(self._unanswered_about(what)) < _MOST_UNANSWERED:
                number = next(self._numbers)
                self._unanswered[number] = question
                with suppress(OSError):  # It has ended: there is no answer.
                    self._connection.send((number, what))
        return question

    def silent_for(self) -> float | None:
        """Seconds for which a question about its health waits; None if it has never answered. From any thread.

        Metrics may take long: targets may have collectors of their own.
        """
        with self._lock:
            if not self._has_answered:
                return None
            oldest = min((one.asked_at for one in self._unanswered_about(HEALTH)), default=None)
        return 0.0 if oldest is None else time.monotonic() - oldest

    def _unanswered_about(self, what: str) -> list[Question]:
        return [one for one in self._unanswered.values() if one.what == what]

    async def _receive(self, has_left: trio.Event) -> None:
        own_thread = trio.CapacityLimiter(1)
        while True:
            try:
                # A cancellation waits for it too: `wait` ends it by the end of the connection.
                number, answer = await trio.to_thread.run_sync(self._connection.recv, limiter=own_thread)
            except (EOFError, OSError):
                has_left.set()
                return
            if number == STARTED:
                self.started.set()
                continue
            with self._lock:
                self._has_answered = True
                question = self._unanswered.pop(number)
            question.settle(answer)


async def start_child(arguments: Sequence[str], name: str, *, sends_changes: bool = False) -> ChildProcess:
    """Start a worker process with the arguments of this one.

    Args:
        arguments: Those of this command, from "run" on.
        name: Its place, and for a later process in this place its number: `1`, `1-2`.
        sends_changes: Whether its parent follows the change stream for it.

    Raises:
        OSError: The system cannot start a process.
    """
    own_end, its_end = socket.socketpair()
    with ExitStack() as ends:
        ends.enter_context(its_end)
        passed, changes = [its_end.fileno()], None
        if sends_changes:
            its_changes, changes = Pipe(duplex=False)
            passed.append(ends.enter_context(its_changes).fileno())
        described = [*map(str, passed), *([] if sends_changes else [str(NO_CHANGES)])]
        supervised = [arguments[0], SUPERVISED, *described, name, *arguments[1:]]
        try:
            process = await trio.lowlevel.open_process(
                [sys.executable, *_program(arguments), *supervised],
                pass_fds=passed,
                # A Ctrl-C in the terminal must not reach it directly as well: it would count twice.
                process_group=0,
                # The group is not that of the terminal's foreground: a read would stop the process.
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            own_end.close()
            if changes is not None:
                changes.close()
            raise
    return ChildProcess(process, own_end, changes)


def _program(arguments: Sequence[str]) -> Sequence[str]:
    """What stands between the interpreter and the arguments: its options, and how it found this command."""
    split = len(sys.orig_argv) - len(arguments)
    if sys.orig_argv[split:] == list(arguments):
        return sys.orig_argv[1:split]
    return ["-m", "trio_monque"]  # Called as a function.
