"""The server's time, as whoever talks to that server takes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from ..clock import ServerClock, virtual_time
from ..store.connection import Reaching, known_primary, measure_clock_offset

MOST_DRIFT = 0.05
"""Seconds by which the offset to the server's clock may change without anybody being told."""


class ServerTime:
    """Measured where it is unknown, old, or another server's. Its calls block, but for `clock`'s."""

    def __init__(self, reaching: Reaching) -> None:
        self.clock = ServerClock()
        # Set by whoever has timers: they were set by the time that was taken for the server's.
        self.clock_moved: Callable[[], None] = lambda: None
        self._reaching = reaching
        self._timekeeper: tuple[str, int] | None = None

    def now(self) -> datetime:
        """The server's time; measures the offset to it first where that is unknown, old, or another server's."""
        if self.is_clock_stale():
            self.measure_clock_offset()
        return self.clock.now()

    def is_clock_stale(self) -> bool:
        """Whether the offset should be measured before the time is used. Never in virtual time."""
        if self.clock.is_stale():
            return True
        primary = known_primary(self._reaching)
        return primary is not None and primary != self._timekeeper and virtual_time() is None

    def measure_clock_offset(self) -> None:
        # Asked before: where the primary changes meanwhile, it is measured once more.
        primary = known_primary(self._reaching)
        offset = measure_clock_offset(self._reaching)
        if offset is not None:
            self._timekeeper = primary or known_primary(self._reaching)
            if self.clock.set_offset(offset) > MOST_DRIFT:
                self.clock_moved()
