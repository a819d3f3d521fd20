"""Concurrency limits. A slot is the right to run: it is taken at the start and free at the verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Set
from typing import Final

from .source import Demand

MOST_SUSPECTS: Final = 1
"""How many may run at a time whose holders died again and again: if one kills this instance, no other is hit."""


class Slots:
    """How many run, in all and by lane, and how many may.

    A lane's runs are counted by its name: a lane whose limit is changed keeps what runs.
    """

    def __init__(self, total: int | None) -> None:
        self._total = math.inf if total is None else total
        self._limits: dict[str, int] = {}
        self._running: Counter[str] = Counter()
        self._suspects = 0

    def set_limit(self, lane: str, limit: int) -> None:
        self._limits[lane] = limit

    def limit_of(self, lane: str) -> int:
        """0 for a lane that is not open yet."""
        return self._limits.get(lane, 0)

    @property
    def lanes(self) -> Set[str]:
        """All that have a limit."""
        return self._limits.keys()

    @property
    def capacity(self) -> int:
        """How many may run at once, by all limits together."""
        return int(min(self._total, sum(self._limits.values())))

    @property
    def running(self) -> int:
        return self._running.total()

    def running_in(self, lane: str) -> int:
        return self._running[lane]

    def running_by_lane(self) -> dict[str, int]:
        """Without those where nothing runs."""
        return {lane: number for lane, number in list(self._running.items()) if number}

    def demand(self) -> Demand:
        """What can be started now."""
        free = self._total - self.running
        lanes = {
            lane: int(min(free, limit - self._running[lane]))
            for lane, limit in list(self._limits.items())  # Other threads ask, too.
            if limit > self._running[lane] and free > 0
        }
        return Demand(
            total=int(min(free, sum(lanes.values()))) if lanes else 0,
            lanes=lanes,
            suspects=max(0, MOST_SUSPECTS - self._suspects),
        )

    def take(self, lane: str, *, suspect: bool = False) -> None:
        self._running[lane] += 1
        self._suspects += suspect

    def free(self, lane: str, *, suspect: bool = False) -> None:
        self._running[lane] -= 1
        self._suspects -= suspect
