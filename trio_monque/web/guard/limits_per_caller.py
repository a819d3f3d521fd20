"""How often one caller may change something: so that a script gone wild cannot occupy the database."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ..answers import RefusedRequestError

MOST_A_SECOND: Final = 10
MOST_CALLERS: Final = 10_000
"""Callers that are remembered: the longest silent ones are forgotten first."""


class Rates:
    """Counts the changes of each caller in a second, and lets one bulk action of each run at a time.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._in_bulk: set[str] = set()

    def count(self, caller: str) -> None:
        """Count a change. Raise RefusedRequestError (429) if there were too many in this second."""
        second = int(self._clock())
        last, number = self._counts.pop(caller, (second, 0))
        number = number + 1 if last == second else 1
        self._counts[caller] = second, number
        while len(self._counts) > MOST_CALLERS:
            self._counts.popitem(last=False)
        if number > MOST_A_SECOND:
            raise RefusedRequestError(429, f"More than {MOST_A_SECOND} changes per second", {"Retry-After": "1"})

    @contextmanager
    def one_in_bulk(self, caller: str) -> Iterator[None]:
        """Goes around a bulk action. Raises RefusedRequestError (429) if another one of this caller is under way."""
        if caller in self._in_bulk:
            raise RefusedRequestError(429, "Another bulk action of yours is in progress", {"Retry-After": "1"})
        self._in_bulk.add(caller)
        try:
            yield
        finally:
            self._in_bulk.remove(caller)
