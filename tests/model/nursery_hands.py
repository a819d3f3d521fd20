"""What people do to parents and children, what calls with other data do, and what retention deletes.

A retry of the parent begins a new try. A retry of a child is refused while its parent has the scope, and detaches it
afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from .nursery_invariants import Harm, Invariant
from .nursery_parent import cleared, scope_of
from .nursery_rules import Rule
from .nursery_search import Kind, Step
from .nursery_setting import Setting
from .nursery_state import (
    CANCELLED,
    DELETED,
    DETACHED,
    ENDED,
    FAILED,
    LIVE,
    PENDING,
    PROCESSING,
    Child,
    State,
)

Steps = Iterator[Step[State]]


def hands(state: State, setting: Setting) -> Steps:
    """All of it is counted by the budget, and need not happen."""
    for text, after in (
        *_on_the_parent(state, setting),
        *_on_children(state, setting),
        *_retries_of_children(state, setting),
        *_replacements(state, setting),
        *_retention(state, setting),
    ):
        yield Step(text, after, Kind.FAULT)


def _on_the_parent(state: State, setting: Setting) -> Iterator[tuple[str, State]]:
    parent = state.parent
    if (paid := state.paid("hands")) is None or parent.status == DELETED:
        return
    if parent.status == PENDING:
        yield "an operator cancels the parent", paid._replace(parent=parent._replace(status=CANCELLED))
    if parent.status == PROCESSING and not parent.is_asked:
        yield "an operator asks the parent to end", paid._replace(parent=parent._replace(is_asked=True))
    if parent.status in (FAILED, CANCELLED) and not setting.is_program:
        anew = parent._replace(status=PENDING, tries=0, deaths=0, hard_deaths=0)
        anew = anew._replace(scope_try=0, has_failed=False, went_on="", in_vain=False)
        yield "an operator retries the parent", paid._replace(parent=anew)
    yield "an operator deletes the parent", paid._replace(parent=parent._replace(status=DELETED, scope=0))


def _on_children(state: State, setting: Setting) -> Iterator[tuple[str, State]]:
    paid, deleting = state.paid("hands"), state.paid("child_deletions")
    if not paid and not deleting:
        return
    for place, child in enumerate(state.children):
        unmarked = child._replace(by_operator=True)
        if setting.has(Rule.HANDS_UNMARK):
            unmarked = unmarked._replace(cancelled_by=0)
        if paid and child.status == PENDING:
            yield f"an operator cancels child {place}", paid.with_child(place, unmarked._replace(status=CANCELLED))
        if paid and child.status == PROCESSING and not child.by_node and not child.is_asked:
            asked = unmarked._replace(is_asked=True)
            yield f"an operator asks child {place} to end", paid.with_child(place, asked)
        # Who deletes a child that has ended wants it to run again, if its parent asks for it.
        if deleting and child.status in LIVE:
            yield f"an operator deletes child {place}", deleting.with_child(place, _deleted(child, by_operator=True))


def _deleted(child: Child, *, by_operator: bool) -> Child:
    """Its ghosts, and the try that it was of, are kept."""
    gone = Child(DELETED, run=child.run, by_operator=by_operator)
    return gone._replace(occurrence=child.occurrence, completions=child.completions, failures=child.failures)


def _retries_of_children(state: State, setting: Setting) -> Iterator[tuple[str, State]]:
    parent = state.parent
    if (paid := state.paid("child_retries")) is None:
        return
    for place, child in enumerate(state.children):
        if child.status not in (FAILED, CANCELLED):
            continue
        if parent.status == DELETED or parent.scope != state.scope_of_child(place):
            yield f"child {place} is retried and detached", paid.with_child(place, Child(DETACHED))
        elif not setting.has(Rule.CHILD_RETRY_REFUSED):
            if parent.went_on:
                raise Harm(Invariant.NOTHING_STARTED_BEHIND)
            again = child._replace(status=PENDING, is_asked=False, by_operator=False)
            yield f"an operator retries child {place}", paid.with_child(place, again)


def _replacements(state: State, setting: Setting) -> Iterator[tuple[str, State]]:
    """A call with the parent's unique key has other data for it."""
    parent = state.parent
    if setting.recurring or parent.occurrence >= setting.max_occurrences:
        return
    if (paid := state.paid("replacements")) is None:
        return
    if parent.status == PENDING:
        anew = parent._replace(occurrence=parent.occurrence + 1, deaths=0, hard_deaths=0, tries=0, went_on="")
        after = cleared(anew._replace(in_vain=False), setting, Rule.REPLACE_CLEARS)
        yield "a call replaces the parent's data", paid._replace(parent=after)
    if parent.status == PROCESSING and not parent.is_asked and not parent.again:
        yield "a call leaves other data in the parent", paid._replace(parent=parent._replace(again=True))


def _retention(state: State, setting: Setting) -> Iterator[tuple[str, State]]:
    parent = state.parent
    if (paid := state.paid("pruned")) is None:
        return
    for place, child in enumerate(state.children):
        if child.status not in ENDED:
            continue
        has_scope = parent.status != DELETED and scope_of(parent, setting) == state.scope_of_child(place)
        is_spared = setting.has(Rule.SPARE_CHILDREN) and (parent.status in LIVE or setting.has(Rule.SPARE_OF_ENDED))
        if not (has_scope and is_spared):
            yield f"retention deletes child {place}", paid.with_child(place, _deleted(child, by_operator=False))
