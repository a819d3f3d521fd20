"""The model of a nursery whose parent is a job: every step of every actor, and the ends that must stay within reach.

Two children in one block; the parent's runs, its successors and stale runs among them; workers, a Node peer, operators,
retention, and the sweeper. `nursery_search` looks at each order of their steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .nursery_children import children
from .nursery_hands import hands
from .nursery_invariants import Invariant
from .nursery_parent import claimed
from .nursery_passes import swept
from .nursery_runs import runs
from .nursery_search import Goal, Step
from .nursery_setting import Setting
from .nursery_starting import late_inserts
from .nursery_state import CANCELLING, CHILDREN, LIVE, PROCESSING, STARTING, Child, Parent, Run, State


@dataclass(frozen=True, slots=True)
class JobModel:
    """The parent is a job, or the job of a program."""

    setting: Setting

    def start(self) -> State:
        if not self.setting.is_program:
            return State(Parent(), (), self.setting.budget)
        # A program inserts its job as running under its own claim, with a scope.
        parent = Parent(PROCESSING, 1, scope=1, scope_for=1, scope_try=1)
        run = Run(1, STARTING, scope=1, scope_try=1, has_opened=True)
        return State(parent, (run,), self.setting.budget, (Child(),) * CHILDREN)

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from claimed(state, self.setting)
        yield from runs(state, self.setting)
        yield from children(state, self.setting)
        yield from hands(state, self.setting)
        yield from late_inserts(state)
        yield from swept(state, self.setting)

    def goals(self) -> Iterator[Goal[State]]:
        yield Goal(Invariant.EVERYTHING_ENDS, lambda _: True, _all_ended, by_itself=True)
        yield Goal(Invariant.ORPHANS_END, lambda state: state.parent.status not in LIVE, _children_ended)
        yield Goal(Invariant.SCOPES_END, lambda _: True, lambda state: not _left_behind(state))
        yield Goal(Invariant.CANCELLED_BLOCKS_END, lambda _: True, lambda state: not _is_cancelling(state))


def _children_ended(state: State) -> bool:
    return all(child.status not in LIVE for child in state.children)


def _all_ended(state: State) -> bool:
    return state.parent.status not in LIVE and _children_ended(state)


def _left_behind(state: State) -> bool:
    """Whether a child lives whose scope the parent does not have or will not come back to."""
    for place, child in enumerate(state.children):
        scope = state.scope_of_child(place)
        is_of_parent = state.parent.status in LIVE and state.parent.scope == scope
        is_of_run = any(run.scope == scope and state.holds(run) for run in state.runs)
        if child.status in LIVE and not is_of_parent and not is_of_run:
            return True
    return False


def _is_cancelling(state: State) -> bool:
    return any(run.phase == CANCELLING and state.holds(run) for run in state.runs)
