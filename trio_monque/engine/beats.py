"""What heartbeats write."""

from __future__ import annotations

from datetime import datetime, timedelta


class Beats:
    """Moments that grow, from a claim's own on, although the server's clock steps back: observers go by the change."""

    def __init__(self) -> None:
        self._last: datetime | None = None

    def claimed(self, moment: datetime) -> None:
        """A claim bears this as its first heartbeat."""
        self._last = moment if self._last is None else max(self._last, moment)

    def next(self, now: datetime) -> datetime:
        self._last = now if self._last is None else max(now, self._last + timedelta(milliseconds=1))
        return self._last
