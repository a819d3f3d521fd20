"""Concurrency limits. A slot is the right to run: taken when a claim is granted, free when its handler has ended."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from .demand import Demand
from .handler_tasks import TRIO_TASKS, HandlerTasks

MOST_SUSPECTS: Final = 1
"""How many suspects may run at a time: items whose holders died again and again. If one kills this instance, no other
suspect counts a death."""


class Slots:
    """Counts how many run, in all and by group, and how many may.

    Groups are counted by their names: if the limit of a group changes, its runs still count.
    """

    def __init__(self, total: int | None, handlers: HandlerTasks = TRIO_TASKS) -> None:
        self._handlers = handlers
        self._total = math.inf if total is None else total
        self._limits: dict[str, int] = {}
        self._running: Counter[str] = Counter()
        self._running_in_all = 0
        self._suspects = 0
        # For the claims in flight: how many items they may be granted, in all, and at most of each group.
        self._reserved = 0
        self._reserved_in: Counter[str] = Counter()
        self._reserved_for_suspects = 0

    def set_limit(self, group: str, limit: int) -> None:
        self._limits[group] = limit

    def limit_of(self, group: str) -> int:
        """The limit of a group; 0 if it has none yet."""
        return self._limits.get(group, 0)

    @property
    def groups(self) -> Set[str]:
        """The groups that have a limit."""
        return self._limits.keys()

    @property
    def capacity(self) -> int:
        """How many may run at once, under all limits together."""
        return int(min(self._total, sum(self._limits.values())))

    @property
    def running(self) -> int:
        return self._running_in_all

    def running_in(self, group: str) -> int:
        return self._running[group]

    def running_by_group(self) -> dict[str, int]:
        """How many run of each group; without the groups where nothing runs."""
        return {group: number for group, number in list(self._running.items()) if number}

    def demand(self, most: float = math.inf, *, force_look: bool = True) -> Demand:
        """What can start now, beside what the claims in flight may be granted; at most `most` items."""
        # Claimed for an application loop that does not answer, an item would wait here, and not run elsewhere. When it
        # answers again, the host asks for a look.
        free = min(most, self._total - self.running - self._reserved) if self._handlers.is_answering else 0
        groups = {
            group: int(min(free, limit - taken))
            for group, limit in list(self._limits.items())  # A copy: other threads ask too.
            if limit > (taken := self._running[group] + self._reserved_in[group]) and free > 0
        }
        return Demand(
            # More may run than there are slots: a run that settled early takes one again, even if none is free.
            total=int(min(free, sum(groups.values()))) if groups else 0,
            groups=groups,
            suspects=max(0, MOST_SUSPECTS - self._suspects - self._reserved_for_suspects),
            capacity=self.capacity,
            force_look=force_look,
        )

    def demand_of(self, group: str) -> Demand:
        """The demand for one item of this group, which is not a suspect: those are claimed by looks, one at a time."""
        demand = self.demand()
        total = min(1, demand.groups.get(group, 0))
        return replace(demand, total=total, groups={group: total}, suspects=0)

    @contextmanager
    def reserved(self, demand: Demand) -> Iterator[None]:
        """Reserves the demanded slots while a claim is in flight, so that two claims do not ask for the same ones."""
        self._reserve(demand, 1)
        try:
            yield
        finally:
            self._reserve(demand, -1)

    def _reserve(self, demand: Demand, sign: int) -> None:
        self._reserved += sign * demand.total
        self._reserved_for_suspects += sign * demand.suspects
        for group, most in demand.groups.items():
            self._reserved_in[group] += sign * min(most, demand.total)

    def take(self, group: str, *, suspect: bool = False) -> None:
        self._running[group] += 1
        self._running_in_all += 1
        self._suspects += suspect

    def free(self, group: str, *, suspect: bool = False) -> None:
        self._running[group] -= 1
        self._running_in_all -= 1
        self._suspects -= suspect
