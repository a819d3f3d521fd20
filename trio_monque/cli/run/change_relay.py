"""ChangeRelay: the change stream of a parent, which sends its worker processes what has changed.

Each stream makes the server read all that is written. So eight processes on a machine share one.

A process may be stopped, or too busy to read. Too much for it is replaced by one change that says: anything may have
happened. Then it looks once, as after a broken stream of its own (`engine/watcher.py`).
"""

from __future__ import annotations

import logging
import pickle
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Final, TypeVar

import trio

from ...error_types import MonqueError
from ...log import logger_of
from ...options_and_defaults import SchedulerConfig
from ...safe_text import text_of
from ...scheduler.changes import ChangesOfDatabase, OpenChanges
from ...store.job_collection import JobCollection
from ...store.jobs.change_stream import ANYTHING, LONGEST_AWAIT, JobChange, NoStreamError
from ..connection_options import Connection
from .condensed_changes import condensed
from .relayed_changes import ENDED, OPENED, Message, StreamChanges, StreamFailed

logger = logger_of("cli")

T = TypeVar("T")

PACE: Final = 0.01
"""Seconds from an answer of the server to the next question: the changes of that time are one message."""

FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 30.0
"""Seconds between two attempts to open a broken stream: doubled from the first to the longest, without an end."""

MOST_UNREAD: Final = 10_000
"""Changes that wait for one worker process. One that is stopped must not fill the memory of its parent."""

CLOSING_TIMEOUT: Final = 1.0
"""Seconds that the end of the relay takes at most."""


class ChangeRelay:
    """Follows the changes of one collection for several processes.

    Args:
        stream: The stream. It is opened in a thread.
    """

    def __init__(self, stream: StreamOfParent) -> None:
        self._stream = stream
        self._state: Message = ENDED  # It is opened soon.
        self._followers: set[_Follower] = set()
        self._was_open = False

    async def run(self) -> None:
        """Return if the server offers no stream; otherwise go on until cancelled."""
        try:
            await self._run()
        finally:
            # To close a client takes long if the server is gone. This process ends then, and the connection with it.
            with trio.move_on_after(CLOSING_TIMEOUT, shield=True):
                await _in_thread(self._stream.close)

    async def _run(self) -> None:
        delay = FIRST_DELAY
        while True:
            try:
                changes = await _in_thread(self._stream.open)
                self._enter(OPENED)
                delay = FIRST_DELAY
                await self._follow(changes)
                self._enter(ENDED)
            except NoStreamError as error:
                self._enter(StreamFailed(str(error), is_final=True, is_of_user=error.is_of_user))
                # As in `JobStream`: a right that the user had may come back.
                if not (error.is_of_user and self._was_open):
                    return
            except Exception as error:
                # Whatever it is: the worker processes look for jobs without a stream, and must not end by this.
                level = logging.DEBUG if isinstance(error, MonqueError) else logging.ERROR
                logger.log(level, "the change stream of the parent failed", exc_info=True)
                self._enter(StreamFailed(str(error) if isinstance(error, MonqueError) else text_of(error)))
            await trio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    async def _follow(self, changes: OpenChanges) -> None:
        try:
            while changes.is_open:
                found = await _in_thread(partial(_read, changes))
                if found:
                    self.send_changes(found)
                await trio.sleep(PACE)
        finally:
            # Not at the end of this process, where it is cancelled: the client closes its cursors itself.
            await _in_thread(changes.close)

    async def serve(self, pipe: Pipe) -> None:
        """Send one process all messages, until it has ended."""
        follower = _Follower(pipe)
        follower.put(_Encoded.of(self._state), self._state)
        self._followers.add(follower)
        try:
            await follower.send_all()
        finally:
            self._followers.remove(follower)

    def send_changes(self, changes: Sequence[JobChange]) -> None:
        """Send all of them what has changed."""
        self._send(StreamChanges(changes))

    def _enter(self, state: Message) -> None:
        self._was_open |= state is OPENED
        self._state = state
        self._send(state)

    def _send(self, message: Message) -> None:
        encoded = _Encoded.of(message)
        for follower in self._followers:
            follower.put(encoded, self._state)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A message as it is sent: encoded once for all processes."""

    data: bytes
    changes: int

    @classmethod
    def of(cls, message: Message) -> _Encoded:
        return cls(pickle.dumps(message), len(message.changes) if isinstance(message, StreamChanges) else 1)


class _Follower:
    """A process that follows. Its messages are sent in threads, since it may be stopped, and the pipe full."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._unread: deque[_Encoded] = deque()
        self._unread_changes = 0
        self._there_is_more = trio.Event()

    def put(self, message: _Encoded, state: Message) -> None:
        """Send this message later; `state` is that of the stream."""
        if self._unread_changes + message.changes > MOST_UNREAD and self._unread:
            self._unread.clear()
            self._unread_changes = 0
            self._add(_Encoded.of(state))
            message = _Encoded.of(StreamChanges([ANYTHING]))
        self._add(message)
        self._there_is_more.set()

    def _add(self, message: _Encoded) -> None:
        self._unread.append(message)
        self._unread_changes += message.changes

    async def send_all(self) -> None:
        own_thread = trio.CapacityLimiter(1)
        while True:
            while not self._unread:
                self._there_is_more = trio.Event()
                await self._there_is_more.wait()
            message = self._unread.popleft()
            self._unread_changes -= message.changes
            try:
                # Abandoned when the process has ended: one that it has forked may hold its end open.
                await trio.to_thread.run_sync(
                    self._pipe.send_bytes, message.data, limiter=own_thread, abandon_on_cancel=True
                )
            except OSError:
                return


class StreamOfParent:
    """The change stream of a parent, for the collection of its worker processes."""

    def __init__(self, connection: Connection, config: SchedulerConfig) -> None:
        self._connection = connection
        self._config = config
        self._client = ExitStack()
        self._source: ChangesOfDatabase | None = None

    def open(self) -> OpenChanges:
        if self._source is None:
            # Not before: the first worker process says what is wrong with the connection string.
            database = self._client.enter_context(self._connection.open())
            jobs = JobCollection.of(
                database,
                self._config.collection_name,
                write_concern=self._config.write_concern,
                operation_timeout=self._config.operation_timeout,
            )
            self._source = ChangesOfDatabase(lambda: jobs, f"parent-{secrets.token_hex(6)}")
        return self._source.open()

    def close(self) -> None:
        self._client.close()


def _read(changes: OpenChanges) -> Sequence[JobChange]:
    return condensed(changes.read(LONGEST_AWAIT))


async def _in_thread(function: Callable[[], T]) -> T:
    # Abandoned at the end of this process: the server answers a read only after seconds, if nothing changes.
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True)
