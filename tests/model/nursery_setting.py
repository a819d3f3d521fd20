"""One game of the model: which rules hold, what the parent is like, and which faults there may be.

The bounds are as small as a harm allows: two children, two scopes, a handful of claims. Whether an instance has room
for another run is asked here, too, since most settings give it all the room there is.
"""

from __future__ import annotations

from dataclasses import dataclass

from .nursery_rules import ALL, Rule
from .nursery_state import INSIDE, PROCESSING, Budget, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a game is played with.

    Attributes:
        fail: What a block does about a failure: "cancel" the others, "wait" for them and fail, or "keep" it.
        handles: The handler goes on behind its block, also after a failure, and acts on its end.
        any_order: The runs of a handler start its children in different orders.
        is_program: The parent's job is a program's: it is inserted under a claim, and never rescued or retried.
        room: How many runs one instance has slots for; 0: always enough.
    """

    budget: Budget
    rules: frozenset[Rule] = ALL
    fail: str = "cancel"
    handles: bool = False
    any_order: bool = False
    is_program: bool = False
    recurring: bool = False
    max_occurrences: int = 2
    max_tries: int = 1
    max_deaths: int = 2
    room: int = 0

    def has(self, rule: Rule) -> bool:
        return rule in self.rules

    @property
    def is_strict(self) -> bool:
        """Whether runs are never stale, so that what lives at the end of one is its own doing."""
        return self.budget.losses == 0


def has_room(state: State, setting: Setting) -> bool:
    """Whether the one instance that there is claims another job."""
    if not setting.room:
        return True
    children = sum(child.status == PROCESSING for child in state.children)
    runs = [run for run in state.runs if state.holds(run)]
    waiting = sum(run.phase in INSIDE for run in runs)
    busy = children + len(runs) - (waiting if setting.has(Rule.WAIT_FREES_SLOT) else 0)
    unsettled = children + len(runs) - (waiting if setting.has(Rule.WAIT_IS_SETTLED) else 0)
    return busy < setting.room and unsettled < setting.room
