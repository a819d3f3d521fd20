"""The server's time, as a client of that server measures it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from ..clock import ClockReadings, ServerClock, virtual_time
from ..store.connection import Reaching, known_primary, measure_clock_offset
from ..store.database_threads import Channel, DatabaseThreads

MOST_DRIFT = 0.05
"""Seconds by which the offset to the server's clock may change before timers are set anew."""


class ServerTime:
    """Measured again before it is used where it may be wrong: see `is_clock_stale`.

    Its calls block, but for `clock`'s and `refreshed`.
    """

    def __init__(self, reaching: Reaching) -> None:
        self.clock = ServerClock()
        self._when_clock_moves: list[Callable[[], None]] = []
        self._reaching = reaching
        self._timekeeper: tuple[str, int] | None = None

    def when_clock_moves(self, listener: Callable[[], None]) -> None:
        """The listener has timers, which were set by the old time. It is called in any thread, and must not block."""
        self._when_clock_moves.append(listener)

    def now(self) -> datetime:
        """The server's time; asks the server first where `is_clock_stale`."""
        if self.is_clock_stale():
            self.measure_clock_offset()
        return self.clock.now()

    async def refreshed(self, db_threads: DatabaseThreads, channel: Channel) -> datetime:
        """The same, from async code. It waits only where the server must be asked."""
        if self.is_clock_stale():
            await db_threads.call(self.measure_clock_offset, channel=channel, abandon_on_cancel=True)
        return self.clock.now()

    def is_clock_stale(self) -> bool:
        """Whether the offset should be measured before the time is used. Never in virtual time.

        It should where it is unknown, old or another server's, and where this machine's clocks show that the wall
        clock was stepped or the machine was suspended.
        """
        if self.clock.is_stale():
            return True
        primary = known_primary(self._reaching)
        return primary is not None and primary != self._timekeeper and virtual_time() is None

    def measure_clock_offset(self) -> None:
        # Asked before: where the primary changes meanwhile, it is measured once more.
        primary, before = known_primary(self._reaching), ClockReadings.now()
        offset = measure_clock_offset(self._reaching)
        if offset is not None:
            self._timekeeper = primary or known_primary(self._reaching)
            if self.clock.set_offset(offset, before) > MOST_DRIFT:
                for listener in self._when_clock_moves:
                    listener()
