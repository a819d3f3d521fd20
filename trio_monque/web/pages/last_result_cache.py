"""Something that is made of an answer, and kept as long as the answer is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")


class LastResultCache(Generic[T]):
    """Keeps the last thing that was made: all viewers are shown the same answer for some seconds."""

    def __init__(self) -> None:
        self._last: tuple[object, datetime, T] | None = None

    def get(self, source: object, at: datetime, make: Callable[[], T]) -> T:
        """Return what was made of this very object at this moment, or make it."""
        last = self._last  # One tuple: another thread may replace it meanwhile.
        if last is not None and last[0] is source and last[1] == at:
            return last[2]
        made = make()
        self._last = source, at, made
        return made
