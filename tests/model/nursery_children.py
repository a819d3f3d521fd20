"""The lives of the children in the hands of their workers: ours, which obey requests, and those of a Node peer.

A child's own retries are within one run here; what is modelled are its final ends, and that it may be pending again
after a release, a rescue or a retry. None of these writes knows of the nursery, and none touches its mark.
"""

from __future__ import annotations

from collections.abc import Iterator

from .nursery_invariants import Harm, Invariant
from .nursery_rules import Rule
from .nursery_search import Kind, Step
from .nursery_setting import Setting, has_room
from .nursery_state import CANCELLED, COMPLETED, FAILED, PENDING, PROCESSING, Child, State

Steps = Iterator[Step[State]]


def children(state: State, setting: Setting) -> Steps:
    """All that may happen to any of them."""
    for place, child in enumerate(state.children):
        if child.status == PENDING:
            yield from _claimed(state, place, child, setting)
        elif child.status == PROCESSING:
            yield from _ends(state, place, child, setting)
            yield from _is_given_back(state, place, child)


def _claimed(state: State, place: int, child: Child, setting: Setting) -> Steps:
    if has_room(state, setting):
        # A claim of ours clears a request that was left behind by a Node peer.
        taken = child._replace(status=PROCESSING, is_asked=False, by_operator=False)
        yield Step(f"child {place} is claimed", state.with_child(place, taken))
    if paid := state.paid("node"):
        taken = child._replace(status=PROCESSING, by_node=True)
        yield Step(f"Node claims child {place}", paid.with_child(place, taken), Kind.FAULT)


def _ends(state: State, place: int, child: Child, setting: Setting) -> Steps:
    done = child._replace(status=COMPLETED, by_node=False, is_asked=False, by_operator=False)
    if child.completions:
        raise Harm(Invariant.COMPLETED_ONCE)
    # Nothing looks at a completed child's mark; it is dropped to have fewer states.
    done = done._replace(cancelled_by=0)
    done = done._replace(completions=1, occurrence=state.parent.occurrence)
    # Node takes no notice of a request: its run comes to its end, sooner or later.
    kind = Kind.OURS if child.by_node else Kind.CHILD
    yield Step(f"child {place} completes", state.with_child(place, done), kind)
    obeys = child.is_asked and not child.by_node
    cancelled = child._replace(status=CANCELLED, is_asked=False)
    if obeys:
        yield Step(f"child {place} obeys", state.with_child(place, cancelled))
    if not child.failures and (paid := state.paid("failures")):
        failed = child._replace(status=FAILED, by_node=False, is_asked=False, by_operator=False, failures=1)
        end = cancelled if obeys else failed
        yield Step(f"child {place} fails for good", paid.with_child(place, end), Kind.FAULT)
    if not setting.has(Rule.NO_UNIQUE_KEY) and (paid := state.paid("same_keys")):
        once_more = done._replace(status=PENDING)
        text = f"child {place} completes, and runs again with the data of another call"
        yield Step(text, paid.with_child(place, once_more), Kind.FAULT)


def _is_given_back(state: State, place: int, child: Child) -> Steps:
    obeys = child.is_asked and not child.by_node
    if obeys and (paid := state.paid("node")):
        taken = child._replace(status=PENDING, by_operator=False)
        yield Step(f"Node takes child {place} back", paid.with_child(place, taken), Kind.FAULT)
    if paid := state.paid("crashes"):
        is_asked = child.is_asked and child.by_node  # Only Node leaves a request behind.
        back = child._replace(status=CANCELLED if obeys else PENDING, by_node=False, is_asked=is_asked)
        yield Step(f"child {place} is released, rescued or retried", paid.with_child(place, back), Kind.FAULT)
