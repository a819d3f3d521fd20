"""Which candidates get the slots if there are fewer slots than candidates: by priority, and groups in turn. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Turns:
    """Which group gets the next slot if there are fewer slots than candidates.

    A group gets one point for each slot that another group gets while it waits, and starts with as many points as its
    priority. The group with the most points gets the slot, and starts again. So groups of one priority take turns, a
    group with a long backlog leaves room for the others, and a group whose priority is lower by three waits for three
    slots more.
    """

    def __init__(self) -> None:
        self._given = 0
        # How many slots had been given when each group began to wait. Not its points, which change with each slot.
        self._waits_since: dict[str, int] = {}

    def share(
        self,
        candidates: Sequence[T],
        slots: int,
        group_of: Callable[[T], str],
        priority_of: Callable[[str], int] = lambda _: 0,
    ) -> Sequence[T]:
        """Which candidates get a slot, in the order in which they start; all of them, as they came, if all fit.

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
        # Only groups with candidates: a group that has nothing to start gets no points for it.
        since = {group: self._waits_since.get(group, self._given) for group in queues}
        # The smallest number belongs to the group with the most points.
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


def suspect_alone(
    chosen: Sequence[T], candidates: Sequence[T], is_suspect: Callable[[T], bool], due: Callable[[T], Any]
) -> Sequence[T]:
    """The chosen candidates, if no suspect is among them; else the longest due suspect of all candidates, alone.

    Alone, so that the claim can be conditional on the state of this one job. The others are claimed right after.
    """
    if not any(map(is_suspect, chosen)):
        return chosen
    # Of all groups: only one suspect runs at a time, so a row of suspects in one group would starve the other groups'.
    return [min(filter(is_suspect, candidates), key=due)]
