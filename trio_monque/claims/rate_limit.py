"""RateLimit: how many runs may start now. Pure."""

from __future__ import annotations

import math

LATE = 0.03
"""Seconds. A start that is at most this late is on schedule, and missed starts are made up for. After a longer pause
the intervals begin anew: otherwise an idle hour would be followed by an hour's worth of starts at once."""


class RateLimit:
    """Starts at even intervals. Moments are in seconds, on one clock.

    Args:
        rate: How many a second; None for no limit.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next_at = -math.inf

    @property
    def next_at(self) -> float:
        """When the next run may start."""
        return self._next_at

    def begin(self, now: float, most: int) -> int:
        """Return how many runs may start now, at most `most`. They count as started."""
        if self._rate is None:
            return most
        # One start is due at `next_at`, and one more after each interval since then.
        late = now - self._next_at
        if late < 0:
            return 0
        number = min(most, 1 + int(late * self._rate) if late <= LATE else 1)
        self._next_at = (self._next_at if late <= LATE else now) + number / self._rate
        return number

    def not_begun(self, number: int) -> None:
        """Take back that number of starts, which did not happen."""
        if self._rate is not None:
            self._next_at -= number / self._rate
