"""What ends children: the passes of a block that is cancelled or left, and those of the sweeper.

A pass is two statements, repeated until nothing lives: pending children are cancelled, then running ones are asked to
end. The model applies it child by child, as between any two of these a child may be claimed or come to its end.
"""

from __future__ import annotations

from collections.abc import Iterator

from .nursery_invariants import Harm, Invariant
from .nursery_parent import scope_of
from .nursery_rules import Rule
from .nursery_search import Step
from .nursery_setting import Setting
from .nursery_state import CANCELLED, DELETED, LIVE, NEWER_THAN_ALL, PENDING, PROCESSING, State, Sweep

Steps = Iterator[Step[State]]


def one_pass(state: State, scope: int, epoch: int, by: str) -> Steps:
    """What is left of a pass to do, one step a child."""
    for number, child in enumerate(state.of_scope(scope)):
        place = state.place(scope, number)
        marked = child._replace(cancelled_by=epoch)
        if child.status == PENDING:
            after = marked._replace(status=CANCELLED, by_operator=False)
            yield Step(f"{by} cancels child {place}", state.with_child(place, after))
        elif child.status == PROCESSING and not child.is_asked:
            yield Step(f"{by} asks child {place} to end", state.with_child(place, marked._replace(is_asked=True)))


# --- The sweeper ---


def swept(state: State, setting: Setting) -> Steps:
    """It looks for live children first, then for their parents, and cancels those of no parent."""
    sweep = state.sweep
    if not setting.has(Rule.SWEEPER):
        return
    if not sweep.doing:
        yield from _looks(state, setting)
    elif sweep.doing == "saw no parent":
        # The wrong order: of a scope that it knows to have no parent, it looks for children.
        after = sweep._replace(doing="cancels") if state.lives(sweep.scope) else Sweep()
        yield Step("the sweeper looks for children", state._replace(sweep=after))
    else:
        holders = [run for run in state.runs if run.scope == sweep.scope and state.holds(run)]
        for step in one_pass(state, sweep.scope, sweep.epoch, "the sweeper"):
            if any(run.epoch <= sweep.epoch for run in holders):
                raise Harm(Invariant.LIVING_IS_NOT_SWEPT)
            yield step
        yield Step("the sweeper has passed", state._replace(sweep=Sweep()))


def _looks(state: State, setting: Setting) -> Steps:
    parent = state.parent
    epoch = NEWER_THAN_ALL if parent.status == DELETED else parent.attempts
    for scope in (1, 2):
        is_of_another = setting.has(Rule.SWEEPER_COMPARES_SCOPE) and scope_of(parent, setting) != scope
        if parent.status in LIVE and not is_of_another:
            continue
        if not setting.has(Rule.CHILDREN_READ_FIRST):
            sweep = Sweep("saw no parent", scope, epoch)
            yield Step(f"the sweeper finds no parent of scope {scope}", state._replace(sweep=sweep))
        elif state.lives(scope):
            # Two reads; nothing is gained by what happens between them, as a scope never comes back to a parent.
            sweep = Sweep("cancels", scope, epoch)
            yield Step(f"the sweeper finds children of scope {scope} without a parent", state._replace(sweep=sweep))
