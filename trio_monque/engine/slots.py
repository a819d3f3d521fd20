"""Concurrency limits. A slot is the right to run: it is taken at the start and free at the verdict."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from .demand import Demand
from .handler_tasks import TRIO_TASKS, HandlerTasks

T = TypeVar("T")

MOST_SUSPECTS: Final = 1
"""How many may run at a time whose holders died again and again: if one kills this instance, no other is hit."""


class Slots:
    """How many run, in all and by group, and how many may.

    A group's runs are counted by its name: a group whose limit is changed keeps what runs.
    """

    def __init__(self, total: int | None, handlers: HandlerTasks = TRIO_TASKS) -> None:
        self._handlers = handlers
        self._total = math.inf if total is None else total
        self._limits: dict[str, int] = {}
        self._running: Counter[str] = Counter()
        self._running_in_all = 0
        self._suspects = 0
        # Of what is asked for, and neither granted nor refused: how many, by group at most.
        self._reserved = 0
        self._reserved_in: Counter[str] = Counter()
        self._reserved_for_suspects = 0

    def set_limit(self, group: str, limit: int) -> None:
        self._limits[group] = limit

    def limit_of(self, group: str) -> int:
        """0 for a group that is not open yet."""
        return self._limits.get(group, 0)

    @property
    def groups(self) -> Set[str]:
        """All that have a limit."""
        return self._limits.keys()

    @property
    def capacity(self) -> int:
        """How many may run at once, by all limits together."""
        return int(min(self._total, sum(self._limits.values())))

    @property
    def running(self) -> int:
        return self._running_in_all

    def running_in(self, group: str) -> int:
        return self._running[group]

    def running_by_group(self) -> dict[str, int]:
        """Without those where nothing runs."""
        return {group: number for group, number in list(self._running.items()) if number}

    def demand(self, most: float = math.inf, *, force_look: bool = True) -> Demand:
        """What can be started now, beside what is asked for already; at most `most`."""
        # What is claimed for a loop that does not answer would wait, and other instances could run it.
        free = min(most, self._total - self.running - self._reserved) if self._handlers.is_answering else 0
        groups = {
            group: int(min(free, limit - taken))
            for group, limit in list(self._limits.items())  # Other threads ask, too.
            if limit > (taken := self._running[group] + self._reserved_in[group]) and free > 0
        }
        return Demand(
            total=int(min(free, sum(groups.values()))) if groups else 0,
            groups=groups,
            suspects=max(0, MOST_SUSPECTS - self._suspects - self._reserved_for_suspects),
            capacity=self.capacity,
            force_look=force_look,
        )

    def demand_of(self, group: str) -> Demand:
        """The same, for one item of one group."""
        demand = self.demand()
        total = min(1, demand.groups.get(group, 0))
        return replace(demand, total=total, groups={group: total}, suspects=0)

    @contextmanager
    def reserved(self, demand: Demand) -> Iterator[None]:
        """While this is asked for, no other claim asks for the same slots."""
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


# --- Fairness: which candidates get the slots. Pure. ---


def suspect_alone(
    chosen: Sequence[T], candidates: Sequence[T], is_suspect: Callable[[T], bool], due: Callable[[T], Any]
) -> Sequence[T]:
    """Where a suspect is among the chosen: the one of all candidates that is due for longest, alone. Else the chosen.

    Alone, so that its claim says of this one job what it relies on. The others are claimed right after. The longest
    due of all groups, or a row of suspects in one group would starve those of the others: only one runs at a time.
    """
    if not any(map(is_suspect, chosen)):
        return chosen
    return [min(filter(is_suspect, candidates), key=due)]


class Turns:
    """Whose turn it is, when there are fewer slots than candidates.

    Each slot counts one point for every group that waits while it goes to another, and the priority of a
    group counts as that number of points from the start. The group with the most points gets the slot, and begins
    anew. So groups of the same priority take turns, one with a long backlog leaves room for the others,
    and one of lower priority waits for as many slots more as it is lower, and then has its turn.
    """

    def __init__(self) -> None:
        self._given = 0
        # Since how many given slots each group waits. In place of points: these would change with every slot.
        self._waits_since: dict[str, int] = {}

    def share(
        self,
        candidates: Sequence[T],
        slots: int,
        group_of: Callable[[T], str],
        priority_of: Callable[[str], int] = lambda _: 0,
    ) -> Sequence[T]:
        """Which candidates get a slot, in the order in which they start.

        Where all fit, all are taken in the order in which they came.

        Args:
            candidates: In the order in which they would start, at least within each group.
            slots: How many can start.
            group_of: The group of a candidate.
            priority_of: How many slots a group is ahead of one with priority 0 that waits as long.
        """
        if len(candidates) <= slots:
            self._waits_since.clear()
            return candidates
        queues: dict[str, list[T]] = {}
        for candidate in reversed(candidates):
            queues.setdefault(group_of(candidate), []).append(candidate)
        # A group that has nothing to start waits for nothing, and gains nothing by it.
        since = {group: self._waits_since.get(group, self._given) for group in queues}
        waiting = [(since[group] - priority_of(group), group) for group in queues]
        heapq.heapify(waiting)
        chosen: list[T] = []
        while len(chosen) < slots:
            _, group = heapq.heappop(waiting)
            chosen.append(queues[group].pop())
            self._given += 1
            since[group] = self._given
            if queues[group]:
                heapq.heappush(waiting, (since[group] - priority_of(group), group))
        self._waits_since = {group: since[group] for _, group in waiting}
        return chosen
