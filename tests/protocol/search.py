"""Breadth-first search over every interleaving: the first violation found has the shortest trace."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=Hashable)


@dataclass(frozen=True)
class Found(Generic[StateT]):
    """What a search came to.

    Attributes:
        states: How many different states were visited.
        depth: How many moves the farthest of them is away.
        harm: What is wrong with the last state of the trace, or None where nothing was found in all of them.
        trace: The moves that lead there, each with the state behind it.
    """

    states: int
    depth: int
    harm: str | None = None
    trace: list[tuple[str, StateT]] = field(default_factory=list)

    def __str__(self) -> str:
        size = f"{self.states:,} states, {self.depth} moves deep"
        if self.harm is None:
            return f"no violation in {size}"
        lines = [f"{number:3}. {label}" for number, label in enumerate(self.labels, start=1)]
        return "\n".join([f"{self.harm.upper()} ({len(self.trace)} moves, found after {size})", *lines])

    @property
    def labels(self) -> list[str]:
        """The moves, several equal ones in a row listed once."""
        reported = []
        for label, same in groupby(label for label, _ in self.trace):
            times = len(list(same))
            reported.append(label if times == 1 else f"{label}, {times} times")
        return reported


def search(
    start: Iterable[StateT],
    successors: Callable[[StateT], Iterable[tuple[str, StateT]]],
    harm_of: Callable[[StateT], str | None],
    most_states: int,
) -> Found[StateT]:
    """Visits all that can be reached, nearest first, until a state is harmful. Raises where the bound is too small."""
    # Millions of tuples that all live to the end: the collector would go through them again and again.
    gc.disable()
    try:
        return _search(start, successors, harm_of, most_states)
    finally:
        gc.enable()


def _search(
    start: Iterable[StateT],
    successors: Callable[[StateT], Iterable[tuple[str, StateT]]],
    harm_of: Callable[[StateT], str | None],
    most_states: int,
) -> Found[StateT]:
    # The parent alone is kept; the label of a move is found again when a trace is wanted.
    parents: dict[StateT, StateT | None] = dict.fromkeys(start)
    frontier = list(parents)
    depth = 0
    while frontier:
        following: list[StateT] = []
        for state in frontier:
            for _, after in successors(state):
                if after in parents:
                    continue
                parents[after] = state
                harm = harm_of(after)
                if harm is not None:
                    return Found(len(parents), depth + 1, harm, _trace(after, parents, successors))
                following.append(after)
        if len(parents) > most_states:
            raise AssertionError(f"more than {most_states:,} states at depth {depth}: choose smaller bounds")
        frontier = following
        depth += 1
    return Found(len(parents), depth - 1)


def _trace(
    last: StateT,
    parents: dict[StateT, StateT | None],
    successors: Callable[[StateT], Iterable[tuple[str, StateT]]],
) -> list[tuple[str, StateT]]:
    trace = []
    state = last
    while (before := parents[state]) is not None:
        label = next(label for label, after in successors(before) if after == state)
        trace.append((label, state))
        state = before
    return trace[::-1]
