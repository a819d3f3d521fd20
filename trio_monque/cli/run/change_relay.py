"""ChangeRelay: the change stream of a parent, which sends its worker processes what has changed.

Each stream makes the server read all that is written. So eight processes on a machine share one.

Nothing depends on a message that is lost: a worker process that misses one learns that, opens its changes anew, and
looks for what it has missed, as after a broken stream of its own (`engine/watcher.py`).
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Final, TypeVar

import trio

from ...error_types import MonqueConnectionError
from ...log import logger_of
from ...options_and_defaults import SchedulerConfig
from ...scheduler.changes import ChangesOfDatabase, OpenChanges
from ...store.job_collection import JobCollection
from ...store.jobs.change_stream import LONGEST_AWAIT, JobChange, NoStreamError
from ..connection_options import Connection
from .relayed_changes import ENDED, OPENED, Message, StreamChanges, StreamFailed

logger = logger_of("cli")

T = TypeVar("T")

PACE: Final = 0.01
"""Seconds from an answer of the server to the next question: the changes of that time are one message."""

FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 30.0
"""Seconds between two attempts to open a broken stream: doubled from the first to the longest, without an end."""

MOST_UNREAD: Final = 100
"""Messages that wait for one worker process. One that is stopped must not fill the memory of its parent."""


class ChangeRelay:
    """Follows the changes of one collection for several processes.

    Args:
        stream: The stream. It is opened in a thread.
    """

    def __init__(self, stream: StreamOfParent) -> None:
        self._stream = stream
        self._state: Message | None = None
        self._followers: set[_Follower] = set()

    async def run(self) -> None:
        """Until cancelled, or if there is no stream."""
        with closing(self._stream):
            await self._run()

    async def _run(self) -> None:
        delay = FIRST_DELAY
        while True:
            try:
                changes = await _in_thread(self._stream.open)
                self._enter(OPENED)
                delay = FIRST_DELAY
                with closing(changes):
                    await self._follow(changes)
                self._enter(ENDED)
            except NoStreamError as error:
                self._enter(StreamFailed(str(error), is_final=True, is_of_user=error.is_of_user))
                return
            except MonqueConnectionError as error:
                logger.debug("the change stream of the parent failed: %s", error)
                self._enter(StreamFailed(str(error)))
            await trio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    async def _follow(self, changes: OpenChanges) -> None:
        while changes.is_open:
            found = await _in_thread(partial(changes.read, LONGEST_AWAIT))
            if found:
                self.send_changes(found)
            await trio.sleep(PACE)

    async def serve(self, pipe: Pipe) -> None:
        """Send one process all messages, until it has ended."""
        follower = _Follower(pipe)
        if self._state is not None:
            follower.put(self._state)
        self._followers.add(follower)
        try:
            await follower.send_all(lambda: self._state)
        finally:
            self._followers.remove(follower)

    def send_changes(self, changes: Sequence[JobChange]) -> None:
        """Send all of them what has changed."""
        self._send(StreamChanges(changes))

    def _enter(self, state: Message) -> None:
        self._state = state
        self._send(state)

    def _send(self, message: Message) -> None:
        for follower in self._followers:
            follower.put(message)


class _Follower:
    """A process that follows. Its messages are sent in threads, since it may be stopped, and the pipe full."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._unread, self._next = trio.open_memory_channel[Message](MOST_UNREAD)
        self._has_missed = False

    def put(self, message: Message) -> None:
        if self._has_missed:
            return
        try:
            self._unread.send_nowait(message)
        except trio.WouldBlock:
            self._has_missed = True

    async def send_all(self, state: Callable[[], Message | None]) -> None:
        own_thread = trio.CapacityLimiter(1)
        with self._unread, self._next:
            async for message in self._next:
                payload = pickle.dumps(message)
                try:
                    # Abandoned when the process has ended: one that it has forked may hold its end open.
                    await trio.to_thread.run_sync(
                        self._pipe.send_bytes, payload, limiter=own_thread, abandon_on_cancel=True
                    )
                except OSError:
                    return
                if self._has_missed and not self._next.statistics().current_buffer_used:
                    self._has_missed = False
                    self.put(StreamFailed("more has changed than this process could read in time"))
                    if (now := state()) is not None:
                        self.put(now)


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


async def _in_thread(function: Callable[[], T]) -> T:
    # Abandoned at the end of this process: the server answers a read only after seconds, if nothing changes.
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True)
