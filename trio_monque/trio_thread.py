"""TrioThread: calls functions on the thread of one trio run, from any thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio


class TrioThread:
    """The thread of the run in which this is made.

    The objects of a run may be touched there only. Any thread may call the methods.
    """

    __slots__ = ("_token",)

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this thread, inside this run."""
        return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self._token

    def call(self, function: Callable[[], None]) -> None:
        """Calls the function on this thread: at once if the caller is on it, otherwise soon.

        After the end of the run it is not called: the objects of a run need no change any more.
        """
        if self.is_current:
            function()
        else:
            self.call_soon(function)

    def call_soon(self, function: Callable[[], None], *, idempotent: bool = False) -> None:
        """Call it in one of the next turns of the event loop. Several idempotent calls may become one."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function, idempotent=idempotent)
