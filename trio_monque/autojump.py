"""What holds virtual time still: whatever of a run goes on in real time.

That is invisible to trio's autojump, a thread (python-trio/trio#456) as well as a pause after a fault:
the clock would jump over every deadline meanwhile.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol, cast

import trio

from .clock import is_run_virtual, is_virtual


class _Autojumper(Protocol):
    autojump_threshold: float


class ClockHold:
    """Holds the autojump clock of a run while something for it goes on in real time.

    A larger autojump threshold would only hide the fault: it still fires on a slow call. Only touched on
    the run's own thread: trio's setter for the threshold looks the run up there.
    """

    def __init__(self, clock: _Autojumper | None) -> None:
        self._clock = clock
        self._holders = 0
        self._threshold = math.inf
        self._jumpers = 0
        self._before = math.inf
        self._free = trio.Event()
        self._free.set()

    @property
    def holders(self) -> int:
        return self._holders

    def acquire(self) -> None:
        self._holders += 1
        if self._holders == 1:
            self._free = trio.Event()
            if self._clock is not None:
                self._threshold = self._clock.autojump_threshold
                self._clock.autojump_threshold = math.inf

    def release(self) -> None:
        assert self._holders > 0, "released without having been acquired"
        self._holders -= 1
        if self._holders == 0:
            self._free.set()
            if self._clock is not None:
                self._clock.autojump_threshold = self._threshold

    async def wait_free(self) -> None:
        """Returns when the clock is not held any more, before it can jump."""
        await self._free.wait()

    @contextmanager
    def jumping(self) -> Iterator[None]:
        """While anybody is inside, the clock jumps when nothing else is left to do, also one that is moved by hand."""
        self._jumpers += 1
        if self._jumpers == 1:
            self._before = self._set_threshold(0)
        try:
            yield
        finally:
            self._jumpers -= 1
            if self._jumpers == 0:
                self._set_threshold(self._before)

    def _set_threshold(self, threshold: float) -> float:
        if self._clock is None:
            return math.inf
        if self._holders:
            before, self._threshold = self._threshold, threshold
        else:
            before, self._clock.autojump_threshold = self._clock.autojump_threshold, threshold
        return before


_hold_of_run: trio.lowlevel.RunVar[ClockHold] = trio.lowlevel.RunVar("monque_clock_hold")


def clock_hold() -> ClockHold:
    """The hold of the current run; one that moves no clock under a real one."""
    try:
        return _hold_of_run.get()
    except LookupError:
        clock = trio.lowlevel.current_clock()
        hold = ClockHold(cast("_Autojumper", clock) if is_virtual(clock) else None)
        _hold_of_run.set(hold)
        return hold


@contextmanager
def real_timeout(seconds: float) -> Iterator[None]:
    """Ends its body after `seconds` real seconds, in which virtual time stands still.

    For what waits until a fault of the real world has passed: an outage of a third of a second must not
    burn a virtual hour of retries.
    """
    if not is_run_virtual():
        with trio.move_on_after(seconds):
            yield
        return
    hold = clock_hold()
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:

        def ring() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(partial(scope.cancel, reason="the real time is over"))

        timer = threading.Timer(seconds, ring)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # No thread can be started: virtual time passes instead.
            scope.deadline = trio.current_time() + seconds
            yield
            return
        hold.acquire()
        try:
            yield
        finally:
            hold.release()
            timer.cancel()


async def real_pause(seconds: float) -> None:
    """Sleeps for `seconds` real seconds; see `real_timeout`."""
    with real_timeout(seconds):
        await trio.Event().wait()
