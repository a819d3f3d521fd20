"""The changes of a worker process whose parent has the change stream: `change_relay.py` sends them.

The messages say whether the stream is open, and what has changed. A process that opens its changes reads until the
stream is open. What it has not read by then is reported, too: it costs a look at most.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Final

from ...error_types import MonqueConnectionError
from ...store.jobs.change_stream import LONGEST_AWAIT, JobChange, NoStreamError


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """Everything is reported that happens from now on."""


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The stream has ended in order, and is opened again."""


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The stream has failed. Unless `is_final`, it is opened again."""

    text: str
    is_final: bool = False
    is_of_user: bool = False


@dataclass(frozen=True, slots=True)
class StreamChanges:
    """What has changed."""

    changes: Sequence[JobChange]


Message = StreamOpened | StreamEnded | StreamFailed | StreamChanges
OPENED: Final = StreamOpened()
ENDED: Final = StreamEnded()


class RelayedChanges:
    """A `ChangeSource` for the one scheduler of this process, and its `OpenChanges`.

    Args:
        descriptor: The end of the pipe. Its other end is that of the parent.
        open_within: Seconds in which the parent must have opened the stream.
    """

    def __init__(self, descriptor: int, open_within: float) -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003  # Not for what handlers start.
        self._pipe = Connection(descriptor, writable=False)
        self._wakes, self._wake = multiprocessing.Pipe(duplex=False)
        self._open_within = open_within
        self.is_open = False

    def open(self) -> RelayedChanges:
        deadline = time.monotonic() + self._open_within
        while not self.is_open:
            left = deadline - time.monotonic()
            if left <= 0 or self._next(left) is None:
                raise MonqueConnectionError(
                    f"the parent process has not opened the change stream within {self._open_within:g} s",
                    transient=True,
                )
        return self

    def read(self, wait: float) -> Sequence[JobChange]:
        """Return what has changed; wait for this number of seconds at most."""
        found: list[JobChange] = []
        message = self._next(min(wait, LONGEST_AWAIT))
        while message is not None and self.is_open:
            if isinstance(message, StreamChanges):
                found += message.changes
            message = self._next(0.0)
        return found

    def close(self) -> None:
        """Nothing to do: the parent goes on sending, and the next `open` goes on from there."""

    def end_wait(self) -> None:
        """End the wait of `read` or `open` in another thread."""
        self._wake.send_bytes(b"end")

    def _next(self, seconds: float) -> Message | None:
        ready = wait([self._pipe, self._wakes], seconds)
        if self._pipe not in ready:
            return None
        try:
            message: Message = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise MonqueConnectionError("the parent process has ended", transient=True) from error
        match message:
            case StreamOpened():
                self.is_open = True
            case StreamEnded():
                self.is_open = False
            case StreamFailed(text, is_final, is_of_user):
                self.is_open = False
                if is_final:
                    raise NoStreamError(text, is_of_user=is_of_user)
                raise MonqueConnectionError(text, transient=True)
        return message
