"""Concurrency limits. A slot is the right to run: it is taken at the start and free at the verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from .demand import Demand

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
        self._running_in_all = 0
        self._suspects = 0
        # Of what is asked for, and neither granted nor refused: how many, by lane at most.
        self._reserved = 0
        self._reserved_in: Counter[str] = Counter()
        self._reserved_for_suspects = 0

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
        return self._running_in_all

    def running_in(self, lane: str) -> int:
        return self._running[lane]

    def running_by_lane(self) -> dict[str, int]:
        """Without those where nothing runs."""
        return {lane: number for lane, number in list(self._running.items()) if number}

    def demand(self, most: float = math.inf, *, afresh: bool = True) -> Demand:
        """What can be started now, beside what is asked for already; at most so many."""
        free = min(most, self._total - self.running - self._reserved)
        lanes = {
            lane: int(min(free, limit - taken))
            for lane, limit in list(self._limits.items())  # Other threads ask, too.
            if limit > (taken := self._running[lane] + self._reserved_in[lane]) and free > 0
        }
        return Demand(
            total=int(min(free, sum(lanes.values()))) if lanes else 0,
            lanes=lanes,
            suspects=max(0, MOST_SUSPECTS - self._suspects - self._reserved_for_suspects),
            capacity=self.capacity,
            afresh=afresh,
        )

    def demand_of(self, lane: str) -> Demand:
        """The same, for one item of one lane."""
        demand = self.demand()
        total = min(1, demand.lanes.get(lane, 0))
        return replace(demand, total=total, lanes={lane: total}, suspects=0)

    @contextmanager
    def reserved(self, demand: Demand) -> Iterator[None]:
        """While this is asked for, nobody else asks for the same slots."""
        self._reserve(demand, 1)
        try:
            yield
        finally:
            self._reserve(demand, -1)

    def _reserve(self, demand: Demand, sign: int) -> None:
        self._reserved += sign * demand.total
        self._reserved_for_suspects += sign * demand.suspects
        for lane, most in demand.lanes.items():
            self._reserved_in[lane] += sign * min(most, demand.total)

    def take(self, lane: str, *, suspect: bool = False) -> None:
        self._running[lane] += 1
        self._running_in_all += 1
        self._suspects += suspect

    def free(self, lane: str, *, suspect: bool = False) -> None:
        self._running[lane] -= 1
        self._running_in_all -= 1
        self._suspects -= suspect
