"""How a run opens its block and starts its children: what it finds there of earlier runs, and what it makes of it.

A start reads the child's document and writes by what it has read (`nursery_fates`); between the two, another run may
act. A start whose answer is lost may be applied much later, or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .nursery_fates import Fate, fate_at_start, fate_of, has_end, has_failed
from .nursery_invariants import Harm, Invariant
from .nursery_parent import come_to_wait, opened
from .nursery_rules import Rule
from .nursery_search import Kind, Step
from .nursery_state import (
    ABSENT,
    BLOCK_FAILED,
    CANCELLING,
    CHILDREN,
    DELETED,
    LEAVING,
    RAISED,
    STARTING,
    WAITING,
    Child,
    State,
)
from .nursery_turn import Turn, pending

Steps = Iterator[Step[State]]

ALL_CHILDREN: Final = (1 << CHILDREN) - 1
FIRST_CHILD: Final = 1


def opens(turn: Turn) -> Steps:
    """The block, in the scope of an earlier run or in a new one."""
    if (found := opened(turn.state, turn.run, turn.setting)) is None:
        return
    state, run = found
    children = state.children
    if len(children) < run.scope * CHILDREN:
        children = (*children, *(Child(),) * CHILDREN)
    text = f"run {run.epoch} opens scope {run.scope}" + ("" if run.has_opened else " again")
    run = run._replace(phase=STARTING)
    if run.knows_failed:
        if turn.holds and state.parent.in_vain:
            raise Harm(Invariant.NO_ATTEMPT_IN_VAIN)
        # An earlier run of this try may have gone on behind the block: nothing of it is started.
        text, run = f"{text}: it has failed", run._replace(phase=CANCELLING, why=BLOCK_FAILED)
    yield Step(text, state._replace(children=children).with_run(turn.at, run))


def starts(turn: Turn) -> Steps:
    """One child after the other; when all have been started, it waits."""
    run, setting = turn.run, turn.setting
    if not run.wanted:
        # A handler that acts on the end of its block is deterministic.
        for wanted in (ALL_CHILDREN,) if setting.handles else (ALL_CHILDREN, FIRST_CHILD):
            yield turn.to(f"asks for {wanted.bit_count()}", wanted=wanted)
        return
    left = [number for number in range(CHILDREN) if run.wanted & ~run.started & 1 << number]
    for number in left if setting.any_order else left[:1]:
        yield from _start(turn, number)
    if not left:
        yield turn.to("waits", come_to_wait(turn.state, run, setting), phase=WAITING)


def _start(turn: Turn, number: int) -> Steps:
    run, setting = turn.run, turn.setting
    child = turn.child(number)
    if run.seen is None:
        yield from _written(turn, number, child, run.started | 1 << number)
        if paid := turn.state.paid("slow_starts"):
            yield turn.to(f"reads child {number}", paid, Kind.FAULT, seen=child)
    elif not setting.has(Rule.GUARDED_START) or _is_as_seen(child, run.seen):
        yield from _written(turn, number, run.seen, run.started | 1 << number)
    else:
        yield turn.to(f"finds child {number} changed", seen=None)


def _is_as_seen(child: Child, seen: Child) -> bool:
    """What the write asks for; a duplicate id does it for an insert."""
    return (child.status, child.run, child.cancelled_by) == (seen.status, seen.run, seen.cancelled_by)


def _written(turn: Turn, number: int, seen: Child, started: int) -> Steps:
    run, setting = turn.run, turn.setting
    fate = fate_at_start(seen, run, setting)
    text = f"{fate.value} child {number}" + ("" if fate is Fate.INSERT else f" ({seen.status})")
    if fate is Fate.LEAVE:
        yield turn.over(text)
        return
    state = turn.state
    if fate is Fate.INSERT or fate is Fate.RUN_AGAIN:
        state = turn.pending_again(number)
    elif fate is Fate.ADOPT and seen.run < run.scope_try and setting.has(Rule.NEW_TRY):
        state = turn.put(number, turn.child(number)._replace(run=run.epoch))
    yield turn.to(text, state, started=started, seen=None)
    if fate is Fate.INSERT and (paid := turn.state.paid("late")):
        yield _without_answer(turn, number, paid)


def _without_answer(turn: Turn, number: int, paid: State) -> Step[State]:
    """The body ends by that; or it was ended meanwhile, as another child has failed."""
    run, setting = turn.run, turn.setting
    started = [turn.child(other) for other in range(CHILDREN) if run.started & 1 << other]
    is_ended = setting.fail == "cancel" and any(has_failed(child, run, setting) for child in started)
    why = BLOCK_FAILED if is_ended else RAISED
    state = paid._replace(sent=paid.sent | {(turn.place(number), turn.run.epoch)})
    text = f"starts child {number}, and gets no answer"
    return turn.to(text, state, Kind.FAULT, phase=CANCELLING, why=why, unanswered=turn.run.unanswered | 1 << number)


def late_inserts(state: State) -> Steps:
    """Those without an answer are lost, or applied at any time."""
    for place, epoch in state.sent:
        rest = state._replace(sent=state.sent - {(place, epoch)})
        yield Step(f"the late insert of child {place} is lost", rest, Kind.FAULT)
        child = state.children[place]
        if child.status == ABSENT:
            late = rest.with_child(place, pending(child, epoch))
            yield Step(f"the late insert of child {place} is applied", late, Kind.FAULT)


def looks_at_children(turn: Turn) -> Steps:
    """What the run finds of the children that it has started."""
    run, setting = turn.run, turn.setting
    numbers = [number for number in range(CHILDREN) if run.started & 1 << number]
    for number in numbers:
        child = turn.child(number)
        fate = fate_of(child, run, setting)
        if child.status == DELETED and setting.has(Rule.DELETED_LEAVES_TOMBSTONE):
            yield turn.to(f"writes a tombstone for child {number}", turn.buried(number))
        elif fate is Fate.LEAVE:
            yield turn.over(f"sees child {number} cancelled by a newer one: it is stale")
        elif fate is Fate.RUN_AGAIN and run.phase == WAITING:
            yield turn.to(f"runs child {number} again", turn.pending_again(number))
        elif setting.fail == "cancel" and has_failed(child, run, setting):
            yield turn.fails_by(number)
    if run.phase == WAITING and all(has_end(turn.child(number), run, setting) for number in numbers):
        yield from _all_ended(turn, numbers)


def _all_ended(turn: Turn, numbers: list[int]) -> Steps:
    failed = [number for number in numbers if has_failed(turn.child(number), turn.run, turn.setting)]
    if failed and turn.setting.fail == "wait":
        yield turn.fails_by(failed[0])
    elif not failed or turn.setting.fail == "keep":
        ends = " and ".join(turn.checked_end(number) for number in numbers)
        yield turn.to("has the ends of all its children", phase=LEAVING, ends=ends)
