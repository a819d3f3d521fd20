"""Who gets which slot. Pure."""

from __future__ import annotations

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


def share_slots(candidates: Sequence[T], slots: int, lane_of: Callable[[T], str], turn: int) -> Sequence[T]:
    """Which candidates get a slot, when there are fewer slots than candidates.

    Lanes take turns, each with its first candidates first, so that one with a long backlog leaves room
    for the others. Where all fit, all are taken in the order in which they came.

    Args:
        candidates: In the order in which they would start, at least within each lane.
        slots: How many can start.
        lane_of: The lane of a candidate.
        turn: Rotates which lane begins, from call to call: with one slot, each has its turn.
    """
    if len(candidates) <= slots:
        return candidates
    queues: dict[str, list[T]] = {}
    for candidate in candidates:
        queues.setdefault(lane_of(candidate), []).append(candidate)
    lanes = sorted(queues)
    rotated = [lanes[(turn + place) % len(lanes)] for place in range(len(lanes))]
    chosen: list[T] = []
    rank = 0
    while len(chosen) < slots:
        row = [queues[lane][rank] for lane in rotated if rank < len(queues[lane])]
        chosen += row[: slots - len(chosen)]
        rank += 1
    return chosen
