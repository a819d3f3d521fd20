"""What a run of the parent's handler does, phase by phase, and what befalls it.

A stale run, one that has lost its claim, goes on until it notices that. Nothing that it writes in the parent is
applied; what it writes in the children is, and the rules see to it that this does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from .nursery_invariants import Harm, Invariant
from .nursery_parent import committed, failure_recorded, released, rescued, settled
from .nursery_passes import one_pass
from .nursery_rules import Rule
from .nursery_search import Kind, Step
from .nursery_setting import Setting
from .nursery_starting import looks_at_children, opens, starts
from .nursery_state import (
    ABSENT,
    ASKED,
    BEFORE,
    BEHIND,
    BLOCK_FAILED,
    CANCELLED,
    CANCELLING,
    DELETED,
    ENDING,
    HAS_RESULTS,
    INSIDE,
    LEAVING,
    LIVE,
    LOST,
    OUTLASTED,
    RAISED,
    RETURNS,
    SHUT_DOWN,
    STARTING,
    WAITING,
    State,
)
from .nursery_turn import Turn

Steps = Iterator[Step[State]]


def runs(state: State, setting: Setting) -> Steps:
    """All that any of them may do next."""
    for at, run in enumerate(state.runs):
        turn = Turn(state, at, run, setting)
        yield from _befalling(turn)
        yield from _requests(turn) if turn.holds else _notices(turn)
        yield from PHASES[run.phase](turn)


# --- What befalls it ---


def _befalling(turn: Turn) -> Steps:
    state, run, setting = turn.state, turn.run, turn.setting
    if paid := state.paid("kills"):
        # What it had sent is applied until another instance takes its job, or never.
        sent = frozenset[tuple[int, int]]() if setting.is_strict else state.sent
        yield turn.over("is killed", paid._replace(sent=sent), Kind.FAULT)
    if not turn.holds:
        return
    if paid := state.paid("losses"):
        after = paid._replace(parent=rescued(state.parent, setting))
        yield Step(f"run {run.epoch} loses its claim", after, Kind.FAULT)
    if run.phase != ENDING and (paid := state.paid("shutdowns")):
        if setting.has(Rule.LOST_LEAVES):
            yield turn.over("is shut down", paid._replace(parent=released(state.parent)), Kind.FAULT)
        else:
            yield turn.to("is shut down", paid, Kind.FAULT, phase=CANCELLING, why=SHUT_DOWN)
    if run.phase in INSIDE and (paid := state.paid("limits")):
        if setting.has(Rule.LIMIT_HANDS_OVER):
            yield turn.over("is handed over", paid._replace(parent=released(state.parent)), Kind.FAULT)
        else:
            yield turn.to("comes to its limit", paid, Kind.FAULT, phase=CANCELLING, why=OUTLASTED)


def _notices(turn: Turn) -> Steps:
    """That its claim is lost; until then it goes on."""
    run = turn.run
    if turn.setting.has(Rule.LOST_LEAVES) or run.phase in (BEFORE, ENDING, CANCELLING):
        yield turn.over("notices that it is stale")
    else:
        yield turn.to("notices that it is stale, and cancels", phase=CANCELLING, why=LOST)


def _requests(turn: Turn) -> Steps:
    """A request to end, in the claim that it holds."""
    run = turn.run
    if not turn.state.parent.is_asked:
        return
    if run.phase in (STARTING, WAITING, LEAVING, BEHIND):
        yield turn.to("is asked to end", phase=CANCELLING, why=ASKED, seen=None)
    elif run.phase == BEFORE:
        yield turn.to("is asked to end before its block", phase=_closing(turn), why=ASKED)


def _closing(turn: Turn) -> str:
    """A run that was claimed with a scope closes it, also if it never comes to its block."""
    return CANCELLING if turn.run.scope and turn.setting.has(Rule.RUN_CLOSES) else ENDING


def _transaction(turn: Turn) -> Steps:
    state, run, setting = turn.state, turn.run, turn.setting
    is_asked = state.parent.is_asked or state.parent.again
    if is_asked or not turn.holds or (paid := state.paid("transactions")) is None:
        return
    if run.phase == BEFORE and run.scope and setting.has(Rule.TRANSACTION_CLOSES):
        text = "closes the scope before its transaction"
        yield turn.to(text, paid, Kind.FAULT, phase=CANCELLING, why=RETURNS)
    else:
        yield turn.over("commits its transaction", committed(paid, run, setting), Kind.FAULT)


# --- Its phases ---


def _before(turn: Turn) -> Steps:
    if turn.holds and (paid := turn.state.paid("other_ways")):
        yield turn.to("returns without its block", paid, Kind.FAULT, phase=_closing(turn), why=RETURNS)
    yield from _transaction(turn)
    yield from opens(turn)


def _inside(turn: Turn) -> Steps:
    """Its body runs, or is over; nothing has failed so far."""
    yield from looks_at_children(turn)
    if turn.run.phase == STARTING:
        yield from starts(turn)
    if paid := turn.state.paid("errors"):
        yield turn.to("raises", paid, Kind.FAULT, phase=CANCELLING, why=RAISED, seen=None)
    if not turn.setting.has(Rule.NO_TRANSACTION_INSIDE):
        yield from _transaction(turn)


def _leaves(turn: Turn) -> Steps:
    """Normally: first it ends what an earlier run had started, and it did not ask for."""
    state, run, setting = turn.state, turn.run, turn.setting
    if not run.has_opened and setting.has(Rule.STRAGGLERS) and state.lives(run.scope):
        yield from one_pass(state, run.scope, run.epoch, f"run {run.epoch}")
        return
    phase = BEHIND if setting.handles else ENDING
    yield turn.to("leaves its block", _gone_on(turn, run.ends), phase=phase, why=HAS_RESULTS)


def _cancels(turn: Turn) -> Steps:
    """Passes, until nothing of the scope lives."""
    state, run, setting = turn.state, turn.run, turn.setting
    lives = state.lives(run.scope)
    if run.why in (LOST, SHUT_DOWN) and lives and state.parent.status in LIVE:
        raise Harm(Invariant.MOVING_CANCELS_NOTHING)
    has_failed = run.why == BLOCK_FAILED
    if has_failed and setting.has(Rule.FAILURE_IS_RECORDED) and not run.knows_failed:
        if (recorded := failure_recorded(state, run)) is None:
            yield turn.over("cannot record its failure: it is stale")
        else:
            yield turn.to("records its failure", recorded, knows_failed=True)
        return
    if run.unanswered and setting.has(Rule.TOMBSTONE):
        yield _tombstone(turn, run.unanswered.bit_length() - 1)
        return
    passing = list(one_pass(state, run.scope, run.epoch, f"run {run.epoch}"))
    yield from passing
    if not lives or (not passing and not setting.has(Rule.REPEATED_PASS)):
        yield turn.to("has cancelled its block", phase=ENDING)
        if has_failed and setting.handles and turn.holds and not state.parent.is_asked:
            yield turn.to("handles the failure", _gone_on(turn, "failed"), phase=BEHIND, why=RETURNS)
    if paid := state.paid("cuts"):
        yield turn.to("waits no longer", paid, Kind.FAULT, phase=ENDING, is_cut=True)


def _tombstone(turn: Turn, number: int) -> Step[State]:
    """In the place of a child that may be inserted later."""
    child = turn.child(number)
    state = turn.state
    if child.status in (ABSENT, DELETED):
        marked = child._replace(run=turn.run.epoch, cancelled_by=turn.run.epoch)
        state = turn.put(number, marked._replace(status=CANCELLED))
    unanswered = turn.run.unanswered & ~(1 << number)
    return turn.to(f"makes sure of a tombstone for child {number}", state, unanswered=unanswered)


def _gone_on(turn: Turn, end: str) -> State:
    """The handler goes on behind its block, and acts on its end."""
    state = turn.state
    if not turn.setting.handles or not turn.holds:
        return state
    if state.parent.went_on not in ("", end):
        raise Harm(Invariant.SAME_END_IN_ALL_RUNS)
    return state._replace(parent=state.parent._replace(went_on=end))


def _behind(turn: Turn) -> Steps:
    yield from _transaction(turn)
    yield turn.to("returns", phase=ENDING, why=RETURNS)
    if paid := turn.state.paid("errors"):
        yield turn.to("raises behind its block", paid, Kind.FAULT, phase=ENDING, why=RAISED)


def _ends(turn: Turn) -> Steps:
    if turn.holds:
        text, after, kind = settled(turn.state, turn.run, turn.setting)
        yield Step(text, after.without_run(turn.at), kind)


PHASES: Final[Mapping[str, Callable[[Turn], Steps]]] = {
    BEFORE: _before,
    STARTING: _inside,
    WAITING: _inside,
    LEAVING: _leaves,
    CANCELLING: _cancels,
    BEHIND: _behind,
    ENDING: _ends,
}
