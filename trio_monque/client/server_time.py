"""ServerTime: the server's time, as one client measures it.

Only the offset between the server's clock and this machine's steady clock is measured, about once a minute. It is
measured again before it is used if it may be wrong: after a failover (another server has another clock), and after this
machine was suspended or its clock was set. A job that is due would otherwise wait, or run early.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from ..clock import ClockReadings, ServerClock, virtual_time
from ..store.driver.commands import Reaching, known_primary
from ..store.driver.connection import measure_clock_offset
from ..store.driver.database_threads import Channel, DatabaseThreads

MOST_DRIFT = 0.05
"""Seconds by which the offset to the server's clock may change before timers are set anew."""


class ServerTime:
    """The server's time for all operations of one client.

    The calls block, except those of `clock`, and `refreshed`.

    Attributes:
        clock: The server's time by the last measurement.
    """

    def __init__(self, reaching: Reaching) -> None:
        self.clock = ServerClock()
        self._when_clock_moves: list[Callable[[], None]] = []  # Only added to, so any thread may go through it.
        self._reaching = reaching
        # Several threads may measure at once. The offset and the server that it is of are set together, under the lock:
        # otherwise the offset of an old primary could pass for that of the new one, for a minute.
        self._setting = threading.Lock()
        self._timekeeper: tuple[str, int] | None = None

    def when_clock_moves(self, listener: Callable[[], None]) -> None:
        """Call `listener`, which sets timers anew, when the offset changes: in any thread, so it must not block."""
        self._when_clock_moves.append(listener)

    def now(self) -> datetime:
        """Return the server's time. If `is_clock_stale`, ask the server first."""
        if self.is_clock_stale():
            self.measure_clock_offset()
        return self.clock.now()

    async def refreshed(self, db_threads: DatabaseThreads, channel: Channel) -> datetime:
        """Do what `now` does, from async code. It waits only if the server must be asked."""
        if self.is_clock_stale():
            await db_threads.call(self.measure_clock_offset, channel=channel, abandon_on_cancel=True)
        return self.clock.now()

    def is_clock_stale(self) -> bool:
        """Return whether the offset must be measured before the time is used. Never in virtual time.

        It must if it is unknown, old or that of another server, or if this machine's clocks disagree (see `clock.py`).
        """
        if self.clock.is_stale():
            return True
        primary = known_primary(self._reaching)
        return primary is not None and primary != self._timekeeper and virtual_time() is None

    def measure_clock_offset(self) -> None:
        # Both are read before the measurement: if the primary or a clock changes during it, the next call measures
        # anew.
        primary, before = known_primary(self._reaching), ClockReadings.now()
        offset = measure_clock_offset(self._reaching)
        if offset is not None:
            timekeeper = primary or known_primary(self._reaching)
            with self._setting:
                self._timekeeper = timekeeper
                moved_by = self.clock.set_offset(offset, before)
            if moved_by > MOST_DRIFT:
                for listener in self._when_clock_moves:
                    listener()
