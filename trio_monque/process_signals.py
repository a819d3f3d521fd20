"""What every part that handles signals shares: repeats count once, and forked children do not inherit the handling."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Final

REPEAT_WITHIN: Final = 0.1
"""Seconds. `timeout` sends SIGTERM to the process, and in the same millisecond to its group; systemd and some init
programs signal a parent and its children alike, and the parent passes the signal on. A person types more slowly."""


class Repeats:
    """Finds signals that a process manager has sent twice for one purpose.

    Only the same signal counts as a repeat: a parent of worker processes sends SIGTERM and then SIGINT when it means
    two signals.

    Args:
        clock: Seconds. It goes on in virtual time, where signals come from the real world.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counted_at: dict[int, float] = {}

    def is_repeat(self, number: int) -> bool:
        """Whether this signal, which has come now, repeats one that counted less than `REPEAT_WITHIN` ago."""
        now = self._clock()
        counted_at = self._counted_at.get(number)
        if counted_at is not None and now - counted_at < REPEAT_WITHIN:
            return True
        self._counted_at[number] = now
        return False


class WithoutRepeats:
    """The signals of a receiver of trio or anyio, without repeats.

    Not an async generator: one that is left before its end would have to be closed, on the loop that has just ended.
    """

    def __init__(self, signals: AsyncIterator[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._signals = signals
        self._repeats = Repeats(clock)

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        while self._repeats.is_repeat(number := await anext(self._signals)):
            pass
        return number


@contextmanager
def default_signals_in_children() -> Iterator[None]:
    """Let child processes that are forked during the block begin with the default handling of SIGTERM and SIGINT.

    A forked child inherits the handlers of its parent, and the descriptor by which signals wake the event loop of the
    parent. So `multiprocessing.Process.terminate()` would not end the child. On asyncio, which reads the signal from
    that descriptor, it would shut down the parent instead.

    Children that run another program (`subprocess`, start methods "spawn" and "forkserver") inherit neither.
    """
    global _blocks, _is_registered  # The signals, too, belong to the whole process.
    if not _is_registered and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_use_defaults)
        _is_registered = True
    _blocks += 1
    try:
        yield
    finally:
        # Also in a child that leaves the block, where it counts from 0.
        _blocks = max(0, _blocks - 1)


_blocks = 0
_is_registered = False


def _use_defaults() -> None:
    """Called in each forked child. There, the thread that called fork is the main thread, which may set handlers."""
    global _blocks
    if _blocks == 0:
        return
    _blocks = 0  # The handlers that the child sets itself are those of its own children, too.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
