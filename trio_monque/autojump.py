"""ClockHold: holds the virtual clock of a run while something for the run takes real time.

trio's autojump does not see a thread (python-trio/trio#456), or a pause in real time after a fault. It only sees that
all tasks wait, and would jump to the next deadline: a call to the database that takes a millisecond would meet every
timeout.
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
    """Counts what takes real time in a run, and keeps its virtual clock from jumping meanwhile.

    A larger autojump threshold would not do: a slow call would still exceed it. Touch it only on the trio thread,
    because trio's setter for the threshold needs the current run.
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
                # Infinity switches the autojump off. The test's own threshold comes back at the release.
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
        """Return when the clock is no longer held, before it can jump."""
        await self._free.wait()

    @contextmanager
    def jumping(self) -> Iterator[None]:
        """Inside, the clock jumps as soon as all tasks wait, also a clock that the test moves by hand."""
        # Several tasks may be inside at once: the first changes the threshold, and the last restores it.
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
            # While the clock is held, only note the threshold: the release sets it.
            before, self._threshold = self._threshold, threshold
        else:
            before, self._clock.autojump_threshold = self._clock.autojump_threshold, threshold
        return before


_hold_of_run: trio.lowlevel.RunVar[ClockHold] = trio.lowlevel.RunVar("monque_clock_hold")


def clock_hold() -> ClockHold:
    """Return the hold of the current run. Under a real clock it counts, and holds nothing."""
    try:
        return _hold_of_run.get()
    except LookupError:
        clock = trio.lowlevel.current_clock()
        hold = ClockHold(cast("_Autojumper", clock) if is_virtual(clock) else None)
        _hold_of_run.set(hold)
        return hold


@contextmanager
def real_timeout(seconds: float) -> Iterator[None]:
    """End the body after `seconds` real seconds, in which virtual time stands still.

    For pauses after a fault of the real world: otherwise an outage of a third of a second would use up a virtual hour
    of retries.
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
        except RuntimeError:  # No thread can be started. Virtual time passes instead, so that the pause ends.
            scope.deadline = trio.current_time() + seconds
            yield
            return
        hold.acquire()  # Only with the timer: without it, the clock could never be released.
        try:
            yield
        finally:
            hold.release()
            timer.cancel()


async def real_pause(seconds: float) -> None:
    """Sleep for `seconds` real seconds; see `real_timeout`."""
    with real_timeout(seconds):
        await trio.Event().wait()
