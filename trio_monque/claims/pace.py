"""How many may be started now, where a service must not be hammered. Pure."""

from __future__ import annotations

import math

CATCH_UP = 0.03
"""Seconds: what was not started for so long may be made up for at once, and no more."""


class Pace:
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

    def allowed(self, now: float, most: int) -> int:
        """How many of them may be started now."""
        if self._rate is None:
            return most
        if now < self._next_at:
            return 0
        late = min(now - self._next_at, CATCH_UP)
        return min(most, 1 + int(late * self._rate))

    def started(self, now: float, number: int) -> None:
        """So many were."""
        if self._rate is not None and number:
            self._next_at = max(self._next_at, now - CATCH_UP) + number / self._rate
