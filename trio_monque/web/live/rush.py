"""When changes come without pause, and how long pages wait from one look to the next then. Pure."""

from __future__ import annotations

from typing import Final

RUSH_AFTER: Final = 3.0
"""Seconds of changes without a quiet second. Until then, each change is announced within a second."""

FIRST_WAIT: Final = 2.0
LONGEST_WAIT: Final = 5.0
"""Seconds, for few viewers."""

WAIT_PER_VIEWER: Final = 1.5
"""Seconds: many viewers wait longer, so that together they read two pages in three seconds."""

LONGEST_WAIT_OF_MANY: Final = 15.0
"""Seconds, however many viewers there are."""


class Rush:
    """Changes without pause: all that is shown is stale the moment it was read, so it is read less and less often."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._wait = 0.0

    @property
    def is_on(self) -> bool:
        """Whether pages wait."""
        return self._wait > 0

    def news(self, now: float, viewers: int) -> float:
        """Note that a look has brought changes. Return for how many seconds nothing is announced; mostly 0."""
        if self._began is None:
            self._began = now
        if now - self._began >= RUSH_AFTER:
            longest = max(LONGEST_WAIT, min(viewers * WAIT_PER_VIEWER, LONGEST_WAIT_OF_MANY))
            self._wait = min(max(FIRST_WAIT, 2 * self._wait), longest)
        return self._wait

    def quiet(self) -> None:
        """Note that a second has passed without a change."""
        self._began, self._wait = None, 0.0
