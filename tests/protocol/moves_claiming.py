"""What an instance does to get a claim: look, write, and find out what came of it."""

from __future__ import annotations

from collections.abc import Iterator

from . import writes
from .rules import Setting
from .state import Copy, Document, Instance, LateClaim, State, Token, copy_of, stamp_of

Moves = Iterator[tuple[str, State]]


def claiming(state: State, me: Instance, setting: Setting) -> Moves:
    """The moves of an instance that is up."""
    if me.phase == "idle":
        yield from _look(state, me, setting)
    elif me.phase == "looked":
        yield from _send(state, me, setting)
    elif me.phase == "written":
        yield from _hear(state, me)
    elif me.phase == "reading back":
        yield from _read_back(state, me, setting)
    elif me.phase == "unknown":
        yield from _resolve(state, me, setting)
    elif me.phase == "resolving":
        yield from _read_by_majority(state, me, setting)


def arrivals(state: State, setting: Setting) -> Moves:
    """Claims that are applied long after anybody waits for them."""
    for message in state.network:
        if isinstance(message, LateClaim):
            document, harm = writes.claim(state.document, message, setting)
            if document is not None:
                rest = state._replace(document=document, harm=harm, network=state.network - {message})
                yield f"the late claim {_name(message.token)} is applied", rest


def _name(token: Token) -> str:
    return f"{token.claimed_by}#{token.number}"


def _look(state: State, me: Instance, setting: Setting) -> Moves:
    # The two are alike: let A be the first to do anything.
    if me.name == "B" and state.a == Instance("A"):
        return
    if state.budget.claims and state.document.due and writes.claimable(state.document, setting):
        yield (
            f"{me.name} looks and sees the job",
            state.with_instance(me._replace(phase="looked", copy=copy_of(state.document))),
        )


def _send(state: State, me: Instance, setting: Setting) -> Moves:
    assert me.copy is not None
    if not state.budget.claims:
        return
    number = me.sent + 1
    # Clocks are free to give each claim the same moment, which is the worst that they can do.
    moment = 1 if setting.bounds.moments_coincide else 2 * number + (me.name == "B")
    token = Token(me.name, moment, number)
    paid = state._replace(budget=state.budget._replace(claims=state.budget.claims - 1))
    sent = me._replace(sent=number, token=token, lease=True, since=_observed(state))
    if not setting.rules.claim_is_exact:
        manners = [(False, "without pins")]
    elif setting.bounds.mixed_batches:
        manners = [(True, "pinned"), (False, "in a mixed batch")]
    else:
        manners = [(True, "pinned")]
    for pinned, manner in manners:
        yield from _in_manner(paid, sent._replace(pinned=pinned), setting, f"claims {_name(token)}, {manner}")


def _in_manner(state: State, me: Instance, setting: Setting, does: str) -> Moves:
    assert me.token is not None
    message = LateClaim(me.token, me.copy if me.pinned else None)
    document, harm = writes.claim(state.document, message, setting)
    if document is None:
        yield f"{me.name} {does}: nothing matched", state.with_instance(idle(me))
    else:
        taken = me._replace(phase="written", copy=_copy_in_hand(me, document))
        yield f"{me.name} {does}: applied", state._replace(document=document, harm=harm).with_instance(taken)
    if state.budget.faults:
        failing = _paid_fault(state)
        unknown = me._replace(phase="unknown", lease=False, since=False)
        late = failing._replace(network=state.network | {message})
        yield f"{me.name} {does}: no answer, and not applied yet", late.with_instance(unknown)
        if document is not None and not setting.rules.resolved_by_majority:
            # Elsewhere this is the same as a claim that never arrives.
            cut_off = failing.with_instance(unknown._replace(phantom=True))
            yield f"{me.name} {does} on a primary that is cut off: no answer, and it will be rolled back", cut_off


def _copy_in_hand(me: Instance, document: Document) -> Copy:
    """The copy that was read before the write, as it is after; the ghost tells under which claim it is used."""
    assert me.copy is not None
    return me.copy._replace(attempts=me.copy.attempts + 1, claim=document.claims)


def _hear(state: State, me: Instance) -> Moves:
    assert me.copy is not None
    if me.pinned:
        yield f"{me.name} hears that it holds the claim", started(state, me, me.copy)
    else:
        yield f"{me.name} hears that its claim matched", state.with_instance(me._replace(phase="reading back"))
    if state.budget.faults:
        lost = me._replace(phase="unknown", lease=False, since=False)
        yield f"the answer to {me.name}'s claim is lost", _paid_fault(state).with_instance(lost)


def _read_back(state: State, me: Instance, setting: Setting) -> Moves:
    assert me.token is not None
    if not setting.rules.claim_is_exact:
        assert me.copy is not None
        yield f"{me.name} trusts the copy from before its write", started(state, me, me.copy)
    elif writes.holds(state.document, stamp_of(me.token), setting.rules.fence):
        yield f"{me.name} reads back its claim", started(state, me, copy_of(state.document))
    else:
        yield f"{me.name} reads back nothing", state.with_instance(idle(me))


def _resolve(state: State, me: Instance, setting: Setting) -> Moves:
    """The answer is lost: a renewal that a majority acknowledges, then a read of what a majority has."""
    assert me.token is not None
    held = writes.holds(state.document, stamp_of(me.token), setting.rules.fence)
    again = me._replace(lease=True, since=_observed(state))
    if not setting.rules.resolved_by_majority:
        if me.phantom or held:
            assert me.copy is not None
            copy = copy_of(state.document) if held else me.copy._replace(attempts=me.copy.attempts + 1)
            yield f"{me.name} finds its claim by a local read", started(state, again, copy)
        else:
            yield f"{me.name} does not find its claim", _not_found(state, me, setting)
        return
    if not setting.rules.token_is_sent_once and state.budget.claims:
        paid = state._replace(budget=state.budget._replace(claims=state.budget.claims - 1))
        document, harm = writes.claim(state.document, LateClaim(me.token, None), setting)
        if document is not None:
            taken = again._replace(phase="reading back", pinned=False, copy=_copy_in_hand(me, document))
            after = paid._replace(document=document, harm=harm).with_instance(taken)
            yield f"{me.name} sends the same claim again: applied", after
    document_after = writes.renew(state.document, me.token, setting, grows=setting.rules.resolving_beat_grows)
    renewed = state if document_after is None else state._replace(document=document_after)
    matched = "matches" if held else "matches nothing"
    yield (
        f"{me.name} resolves: its majority write {matched}",
        renewed.with_instance(again._replace(phase="resolving")),
    )
    if state.budget.faults:
        yield f"{me.name} cannot resolve its claim", _paid_fault(_not_found(state, me, setting))


def _read_by_majority(state: State, me: Instance, setting: Setting) -> Moves:
    assert me.token is not None
    if writes.holds(state.document, stamp_of(me.token), setting.rules.fence):
        yield f"{me.name} finds its claim by a majority read", started(state, me, copy_of(state.document))
    else:
        yield f"{me.name} does not find its claim", _not_found(state, me, setting)


def _not_found(state: State, me: Instance, setting: Setting) -> State:
    assert me.token is not None
    disowned = me.disowned
    if setting.rules.lost_claim_is_disowned:
        disowned = tuple(sorted({*disowned, me.token}))
    return state.with_instance(idle(me)._replace(disowned=disowned))


def started(state: State, me: Instance, copy: Copy) -> State:
    """The handler starts; or, where the answer came too late for the lease, nothing does and the claim goes back."""
    if not me.lease:
        late = me._replace(phase="settling", copy=copy, outcome="release", since=False, beaten=False)
        return state.with_instance(late)
    running = me._replace(phase="running", copy=copy, pinned=True, phantom=False, beaten=False)
    harm = state.harm or _harm_of_start(state, copy)
    return state._replace(harm=harm, last_attempt=copy.attempts).with_instance(running)


def _harm_of_start(state: State, copy: Copy) -> str:
    document = state.document
    if copy.attempts <= state.last_attempt:
        return f"`attempt` did not grow: {copy.attempts} after {state.last_attempt}"
    if document.status != "processing" or document.claims != copy.claim:
        return ""  # Lost meanwhile; the histories in which it was not lost show what the copy was at the claim.
    for name in ("attempts", "fail_count", "rescues", "data"):
        given, true = getattr(copy, name), getattr(document, name)
        if given != true:
            return f"a handler was given a stale copy: {name} {given} instead of {true}"
    return ""


def idle(me: Instance) -> Instance:
    """Nothing in hand; what it sent and what it disowned it remembers."""
    return Instance(me.name, me.health, sent=me.sent, beaten=me.beaten, disowned=me.disowned)


def _observed(state: State) -> bool:
    return state.rescuer.watch in ("asked", "watching")


def _paid_fault(state: State) -> State:
    return state._replace(budget=state.budget._replace(faults=state.budget.faults - 1))
