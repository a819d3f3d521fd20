"""Every interleaving of a nursery, nearest states first, and whether each state can still come to a good end.

A step breaks an invariant by raising `Harm`; that is found on the shortest way. Ends are looked for when all states are
known: backwards from the good ones, over the steps that need no further fault.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from .nursery_invariants import Harm, Invariant

StateT = TypeVar("StateT", bound=Hashable)


class Kind(Enum):
    """Whose doing a step is."""

    OURS = 1  # What instances do by themselves.
    CHILD = 2  # A handler of a child comes to its end; it may also never do that.
    FAULT = 3  # What need not happen: deaths, errors, operators, other libraries.


class Step(NamedTuple, Generic[StateT]):
    """One read or write of the database, or what befalls a process."""

    text: str
    after: StateT
    kind: Kind = Kind.OURS


@dataclass(frozen=True)
class Goal(Generic[StateT]):
    """From each state that `matters`, a state with `is_reached` can be reached without faults.

    Attributes:
        by_itself: Whether a child may come to its end by itself on the way.
    """

    invariant: Invariant
    matters: Callable[[StateT], bool]
    is_reached: Callable[[StateT], bool]
    by_itself: bool = False


class Explored(Protocol[StateT]):
    """A model, as the search needs it."""

    def start(self) -> StateT: ...

    def steps(self, state: StateT) -> Iterator[Step[StateT]]: ...

    def goals(self) -> Iterable[Goal[StateT]]: ...


@dataclass(frozen=True)
class Finding:
    """What a search came to: how many states, and the broken invariant with the steps that lead there."""

    states: int
    broken: Invariant | None = None
    way: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.broken is None:
            return f"{self.states:,} states, clean"
        return "\n".join([f"{self.states:,} states, BROKEN: {self.broken.value}", *(f"  {step}" for step in self.way)])


def explored(model: Explored[StateT], most_states: int) -> Finding:
    """All states of the model; raises where the bound is too small."""
    # Millions of tuples that all live to the end: the collector would go through them again and again.
    gc.disable()
    try:
        return _Search(model, most_states).run()
    finally:
        gc.enable()


class _Search(Generic[StateT]):
    def __init__(self, model: Explored[StateT], most_states: int) -> None:
        self.model = model
        self.most_states = most_states
        self.before: dict[StateT, tuple[StateT, str] | None] = {}
        # Of each state those that lead to it without a fault, and of these whether a child ends by itself.
        self.back: dict[StateT, list[tuple[StateT, bool]]] = {}

    def run(self) -> Finding:
        start = self.model.start()
        self.before[start] = None
        frontier = [start]
        while frontier:
            following: list[StateT] = []
            for state in frontier:
                try:
                    following += self._new_after(state)
                except Harm as harm:
                    return self._finding(state, harm.invariant)
            if len(self.before) > self.most_states:
                raise AssertionError(f"more than {self.most_states:,} states: choose a smaller budget")
            frontier = following
        for goal in self.model.goals():
            if (lost := self._without_hope(goal)) is not None:
                return self._finding(lost, goal.invariant)
        return Finding(len(self.before))

    def _new_after(self, state: StateT) -> Iterator[StateT]:
        for text, after, kind in self.model.steps(state):
            if kind is not Kind.FAULT:
                self.back.setdefault(after, []).append((state, kind is Kind.CHILD))
            if after not in self.before:
                self.before[after] = (state, text)
                yield after

    def _without_hope(self, goal: Goal[StateT]) -> StateT | None:
        """The nearest state from where the goal is out of reach."""
        todo = [state for state in self.before if goal.is_reached(state)]
        hopeful = set(todo)
        while todo:
            for state, is_by_itself in self.back.get(todo.pop(), ()):
                if state not in hopeful and (goal.by_itself or not is_by_itself):
                    hopeful.add(state)
                    todo.append(state)
        return next((state for state in self.before if state not in hopeful and goal.matters(state)), None)

    def _finding(self, last: StateT, broken: Invariant) -> Finding:
        way: list[str] = []
        while (step := self.before[last]) is not None:
            last, text = step
            way.append(text)
        return Finding(len(self.before), broken, way[::-1])
