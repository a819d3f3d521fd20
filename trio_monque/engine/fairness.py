"""Who gets which slot. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def suspect_alone(
    chosen: Sequence[T], candidates: Sequence[T], is_suspect: Callable[[T], bool], due: Callable[[T], Any]
) -> Sequence[T]:
    """Where a suspect is among the chosen: the one of all candidates that is due for longest, alone. Else the chosen.

    Alone, so that its claim says of this one job what it relies on. The others are claimed right after. The longest
    due of all lanes, or a row of suspects in one lane would starve those of the others: only one runs at a time.
    """
    if not any(map(is_suspect, chosen)):
        return chosen
    return [min(filter(is_suspect, candidates), key=due)]


class Turns:
    """Whose turn it is, when there are fewer slots than candidates.

    Each slot counts one point for every lane that waits while it goes to another, and the priority of a
    lane counts as so many points from the start. The lane with the most points gets the slot, and begins
    anew. So lanes of the same priority take turns, one with a long backlog leaves room for the others,
    and one of lower priority waits for as many slots more as it is lower, and then has its turn.
    """

    def __init__(self) -> None:
        self._given = 0
        # Since how many given slots each lane waits. In place of points: these would change with every slot.
        self._waits_since: dict[str, int] = {}

    def share(
        self,
        candidates: Sequence[T],
        slots: int,
        lane_of: Callable[[T], str],
        priority_of: Callable[[str], int] = lambda _: 0,
    ) -> Sequence[T]:
        """Which candidates get a slot, in the order in which they start.

        Where all fit, all are taken in the order in which they came.

        Args:
            candidates: In the order in which they would start, at least within each lane.
            slots: How many can start.
            lane_of: The lane of a candidate.
            priority_of: How many slots a lane is ahead of one with priority 0 that waits as long.
        """
        if len(candidates) <= slots:
            self._waits_since.clear()
            return candidates
        queues: dict[str, list[T]] = {}
        for candidate in reversed(candidates):
            queues.setdefault(lane_of(candidate), []).append(candidate)
        # A lane that has nothing to start waits for nothing, and gains nothing by it.
        since = {lane: self._waits_since.get(lane, self._given) for lane in queues}
        waiting = [(since[lane] - priority_of(lane), lane) for lane in queues]
        heapq.heapify(waiting)
        chosen: list[T] = []
        while len(chosen) < slots:
            _, lane = heapq.heappop(waiting)
            chosen.append(queues[lane].pop())
            self._given += 1
            since[lane] = self._given
            if queues[lane]:
                heapq.heappush(waiting, (since[lane] - priority_of(lane), lane))
        self._waits_since = {lane: since[lane] for _, lane in waiting}
        return chosen
