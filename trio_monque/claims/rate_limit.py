"""How many may be started now, where a service must not be hammered. Pure."""

from __future__ import annotations

import math

LATE = 0.03
"""Seconds: who is no later than that keeps to the intervals, and makes up for what was missed; others begin anew."""


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
        """When the next one may be started."""
        return self._next_at

    def begin(self, now: float, most: int) -> int:
        """How many of them may be started now: they count as started."""
        if self._rate is None:
            return most
        late = now - self._next_at
        if late < 0:
            return 0
        number = min(most, 1 + int(late * self._rate) if late <= LATE else 1)
        self._next_at = (self._next_at if late <= LATE else now) + number / self._rate
        return number

    def not_begun(self, number: int) -> None:
        """So many of them were not, after all."""
        if self._rate is not None:
            self._next_at -= number / self._rate
