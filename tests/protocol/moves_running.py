"""What an instance does with a claim: beat, run the handler, settle, and what befalls it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from . import writes
from .moves_claiming import idle
from .rules import Setting
from .state import Instance, LateSettlement, Outcome, State, stamp_of

Moves = Iterator[tuple[str, State]]

# What is renewed: runs, and what has ended and is not yet settled.
HOLDING: Final = ("running", "settling", "asking", "cancelling")


def running(state: State, me: Instance, setting: Setting) -> Moves:
    """The moves of an instance that is up."""
    yield from _beat(state, me, setting)
    if me.phase == "running":
        yield from _end_run(state, me)
    elif me.phase == "settling":
        yield from _settle(state, me, setting)
    elif me.phase == "asking":
        yield from _ask_why(state, me, setting)
    elif me.phase == "cancelling":
        yield from _cancel_instead(state, me, setting)


def befalling(state: State, me: Instance) -> Moves:
    """Crash, freeze and thaw."""
    if me.health == "frozen":
        yield f"{me.name} thaws", state.with_instance(me._replace(health="up"))
    # One that has nothing to do with the job yet leaves nothing behind: the model need not distinguish it.
    busy = me.phase not in ("idle", "looked") or me.disowned
    if me.health != "down" and busy and state.budget.faults:
        paid = _paid_fault(state)
        yield f"{me.name} crashes", paid.with_instance(Instance(me.name, "down"))
        if me.health == "up":
            yield f"{me.name} freezes", paid.with_instance(me._replace(health="frozen"))


def arrivals(state: State, setting: Setting) -> Moves:
    """Outcomes that are applied long after they were sent."""
    for message in state.network:
        if isinstance(message, LateSettlement):
            token, copy, outcome = message
            end = writes.end_of(copy, outcome, setting)
            document, harm = writes.settle(state.document, token, copy, end, setting)
            if document is not None:
                rest = state._replace(document=document, harm=harm, network=state.network - {message})
                yield f"{token.claimed_by}'s late settlement is applied: {end}", rest


def _beat(state: State, me: Instance, setting: Setting) -> Moves:
    """Renews what is held, releases what is disowned, reads requests."""
    holds = me.phase in HOLDING and (me.lease or me.phase != "running")
    if not state.budget.beats or not (holds or me.disowned):
        return
    state = state._replace(budget=state.budget._replace(beats=state.budget.beats - 1))
    for token in me.disowned:
        document, harm = writes.disown(state.document, token, setting)
        if document is not None:
            state = state._replace(document=document, harm=state.harm or harm)
    beaten = me._replace(beaten=state.rescuer.watch in ("asked", "watching"))
    if not holds:
        yield f"{me.name} beats: releases what it disowned", state.with_instance(beaten)
        return
    assert me.token is not None
    renewed = writes.renew(state.document, me.token, setting, grows=setting.rules.beat_grows)
    if renewed is None:
        if me.phase == "running":
            yield f"{me.name} beats, and hears that its claim is lost", state.with_instance(idle(beaten))
        return
    state = state._replace(document=renewed)
    if me.phase == "running":
        # The lease now counts from this sending.
        beaten = beaten._replace(since=beaten.beaten)
        if renewed.cancel_requested:
            beaten = beaten._replace(phase="settling", outcome="cancel", lease=False, since=False)
    yield f"{me.name} beats", state.with_instance(beaten)
    if state.budget.faults:
        yield f"{me.name} beats, and the answer is lost", _paid_fault(state).with_instance(me)


def _end_run(state: State, me: Instance) -> Moves:
    if not me.lease:
        yield f"{me.name} has fenced itself, and gives its claim back", _handed_over(state, me, "release")
        return
    yield f"{me.name}'s handler succeeds", _handed_over(state, me, "success")
    yield f"{me.name}'s handler fails", _handed_over(state, me, "failure")
    if state.budget.hands:
        paid = state._replace(budget=state.budget._replace(hands=state.budget.hands - 1))
        yield f"{me.name}'s run is cut short by a shutdown", _handed_over(paid, me, "release")
    if state.budget.faults:
        alone = me._replace(lease=False, since=False)
        yield f"{me.name} cannot renew: its lease runs out", _paid_fault(state).with_instance(alone)


def _handed_over(state: State, me: Instance, outcome: Outcome) -> State:
    """The handler has ended; from here on only the outcome matters, and the fence decides about it."""
    # A run that had fenced itself was not renewed by the beats that there were.
    beaten = me.lease and (me.beaten or me.since)
    return state.with_instance(me._replace(phase="settling", outcome=outcome, lease=False, since=False, beaten=beaten))


def _settle(state: State, me: Instance, setting: Setting) -> Moves:
    assert me.token is not None
    assert me.copy is not None
    end = writes.end_of(me.copy, me.outcome, setting)
    document, harm = writes.settle(state.document, me.token, me.copy, end, setting)
    if document is None:
        yield f"{me.name} settles ({end}): not written", state.with_instance(me._replace(phase="asking"))
    else:
        written = state._replace(document=document, harm=harm)
        yield f"{me.name} settles: {end}", written.with_instance(idle(me))
    if state.budget.faults:
        paid = _paid_fault(state)
        if document is not None:
            # It is sent again, until a read tells what became of it.
            yield f"{me.name} settles ({end}), the answer is lost", paid._replace(document=document, harm=harm)
        late = LateSettlement(me.token, me.copy, me.outcome)
        yield f"{me.name} settles ({end}): no answer, and not applied yet", paid._replace(network=paid.network | {late})


def _ask_why(state: State, me: Instance, setting: Setting) -> Moves:
    assert me.token is not None
    assert me.copy is not None
    document = state.document
    if not writes.holds(document, stamp_of(me.token), setting.rules.fence):
        yield f"{me.name} reads that its claim has ended", state.with_instance(idle(me))
    elif document.cancel_requested and writes.end_of(me.copy, me.outcome, setting) in setting.rules.obeying:
        yield f"{me.name} reads that it shall cancel", state.with_instance(me._replace(phase="cancelling"))
    else:
        copy = me.copy._replace(schedule=document.schedule)
        again = me._replace(phase="settling", copy=copy)
        yield f"{me.name} reads the schedule, and decides again", state.with_instance(again)


def _cancel_instead(state: State, me: Instance, setting: Setting) -> Moves:
    assert me.token is not None
    assert me.copy is not None
    document, harm = writes.settle(state.document, me.token, me.copy, "cancel", setting)
    after = state if document is None else state._replace(document=document, harm=harm)
    yield f"{me.name} settles: cancel", after.with_instance(idle(me))


def _paid_fault(state: State) -> State:
    return state._replace(budget=state.budget._replace(faults=state.budget.faults - 1))
