"""What all the others do: the rescuer, a Node peer, and people."""

from __future__ import annotations

from collections.abc import Iterator

from . import writes
from .moves_running import HOLDING
from .rules import Setting
from .state import NODE, Document, Fence, Instance, Rescuer, State, copy_of, fence_of, is_ours

Moves = Iterator[tuple[str, State]]


# --- The rescuer ---


def rescuer(state: State, setting: Setting) -> Moves:
    watch = state.rescuer.watch
    if watch == "idle":
        if state.document.status == "processing":
            if setting.rules.observed_after_answer:
                yield "the rescuer reads the claim", _observing(state, setting)
            else:
                asked = state._replace(rescuer=Rescuer("asked"))
                yield "the rescuer asks for claims, and counts from now", _from_here(asked)
    elif watch == "asked":
        if state.document.status == "processing":
            yield "the rescuer is answered", state._replace(rescuer=_seen(state.document))
    elif watch == "watching":
        yield from _watching(state, setting)
    elif watch == "missed":
        yield from _missed(state, setting)
    else:
        yield from _cancelling(state, setting)


def _observing(state: State, setting: Setting) -> State:
    seen = state._replace(rescuer=_seen(state.document))
    if not setting.rules.rescue_observes:
        # By its own clock the heartbeat is old enough, whenever it likes.
        return seen._replace(rescuer=seen.rescuer._replace(due=True, excused=True))
    return _from_here(seen)


def _seen(document: Document) -> Rescuer:
    return Rescuer("watching", fence_of(document), document.last_heartbeat, copy_of(document))


def _from_here(state: State) -> State:
    """A new observation begins: whatever was sent until now was sent before it."""
    a, b = (one._replace(since=False, beaten=False) for one in state.instances)
    return state._replace(a=a, b=b)


def _forgotten(state: State) -> State:
    """No observation, and so nothing to tell apart."""
    return _from_here(state._replace(rescuer=Rescuer()))


def _watching(state: State, setting: Setting) -> Moves:
    me, document = state.rescuer, state.document
    assert me.fence is not None
    assert me.copy is not None
    if (fence_of(document), document.last_heartbeat) != (me.fence, me.last_heartbeat):
        yield "the rescuer looks again, and sees a change", _forgotten(state)
    if not me.due:
        yield from _three_intervals(state)
        return
    after, harm = writes.rescue(document, me.fence, me.last_heartbeat, me.copy, setting)
    if after is None:
        yield "the rescuer's write finds the claim changed", state._replace(rescuer=me._replace(watch="missed"))
        return
    if not (harm or me.excused):
        harm = "a death was counted although the holder lived and was in touch"
    yield "the rescuer takes the claim away", _forgotten(state._replace(document=after, harm=harm))


def _three_intervals(state: State) -> Moves:
    """The time that makes an observation conclusive ends every lease that rests on what was sent before it.

    An instance that is in touch beats in that time. One that has something to renew or to give back and did
    not is cut off, which is a fault.
    """
    me = state.rescuer
    assert me.fence is not None
    holder = me.fence.claimed_by
    if holder == NODE and state.node:
        return  # A foreign claim is given `lock_timeout`; a peer that runs on beyond it is a published limit.
    in_touch = [one for one in state.instances if one.health == "up" and not _has_lapsed(one)]
    cut_off = [one.name for one in in_touch if _owes_a_beat(one)]
    if len(cut_off) > state.budget.faults:
        return
    a, b = (one._replace(lease=one.lease and one.since) for one in state.instances)
    excused = holder in cut_off or holder not in {one.name for one in in_touch}
    rescuing = me._replace(due=True, excused=excused)
    budget = state.budget._replace(faults=state.budget.faults - len(cut_off))
    label = "three intervals pass" + "".join(f", {name} is cut off" for name in cut_off)
    yield label, state._replace(a=a, b=b, rescuer=rescuing, budget=budget)


def _has_lapsed(one: Instance) -> bool:
    """It was cut off before, and its handler has not ended yet."""
    return one.phase == "running" and not one.lease


def _owes_a_beat(one: Instance) -> bool:
    waits = one.phase in ("written", "reading back", "unknown", "resolving")
    if waits and not one.since:
        return True  # A query without an answer for a whole lease.
    renews = one.phase in HOLDING and not one.since
    return not one.beaten and (renews or bool(one.disowned))


def _missed(state: State, setting: Setting) -> Moves:
    me = state.rescuer
    assert me.fence is not None
    if writes.must_cancel_instead(state.document, me.fence, me.last_heartbeat, setting):
        yield "the rescuer reads that it shall cancel", state._replace(rescuer=me._replace(watch="cancelling"))
    else:
        yield "the rescuer reads that the claim lives or is gone", _forgotten(state)


def _cancelling(state: State, setting: Setting) -> Moves:
    me = state.rescuer
    assert me.fence is not None
    assert me.copy is not None
    document, harm = writes.cancel_observed(state.document, me.fence, me.last_heartbeat, me.copy, setting)
    after = state if document is None else state._replace(document=document, harm=harm)
    yield "the rescuer writes `cancelled`, as was requested", _forgotten(after)


# --- The Node peer: its commands know nothing of our fields, and leave them where they are ---


def node(state: State, setting: Setting) -> Moves:
    document = state.document
    if state.node:
        yield from _node_run(state, setting)
    if not state.budget.node:
        return
    paid = state._replace(budget=state.budget._replace(node=state.budget.node - 1))
    if document.status == "pending" and document.due and not state.node:
        number = document.claims + 1
        moment = _moment_of_node(state, setting)
        claimed = document._replace(
            status="processing", claimed_by=NODE, locked_at=moment, last_heartbeat=0, claims=number
        )
        yield "Node claims", paid._replace(document=claimed, node=number)
    if document.status == "processing" and not state.node:
        # By `lockedAt` alone. Its setting is ours or longer, so that all that ran under the claim is over.
        a, b = (one._replace(lease=False, since=False) for one in state.instances)
        free = _freed_by_node(document, status="pending")
        yield "a lock timeout passes, and Node recovers", paid._replace(document=free, a=a, b=b)
    if document.status in ("failed", "cancelled"):
        again = _freed_by_node(document, status="pending")._replace(fail_count=0, due=True)
        yield "somebody retries the job with Node", paid._replace(document=again)


def _moment_of_node(state: State, setting: Setting) -> int:
    """Its `lockedAt` may coincide with one of ours, but not with one of its own from a lock timeout before.

    That clocks agree within a tenth of the lock timeout is a published limit of mixed fleets.
    """
    if not setting.bounds.moments_coincide:
        return -state.document.claims - 1
    seen = state.rescuer.fence
    return 2 if seen is not None and seen[:2] == (NODE, 1) else 1


def _node_run(state: State, setting: Setting) -> Moves:
    """Each of its settlements asks for its own `claimedBy` and for `processing` only."""
    document = state.document
    ended = state._replace(node=0)
    if document.status == "processing" and document.claimed_by == NODE:
        if document.schedule:
            done = _freed_by_node(document, status="pending")._replace(due=False, fail_count=0)
        else:
            done = _freed_by_node(document, status="completed")
        yield "Node completes", ended._replace(document=done)
        last = document.fail_count + 1 >= setting.bounds.max_attempts
        failed = _freed_by_node(document, status="failed" if last else "pending")
        failed = failed._replace(fail_count=document.fail_count + 1, due=last)
        yield "Node's handler fails", ended._replace(document=failed)
    if state.budget.faults:
        yield "Node crashes", ended._replace(budget=state.budget._replace(faults=state.budget.faults - 1))


def _freed_by_node(document: Document, status: str) -> Document:
    free = document._replace(claimed_by="", locked_at=0, last_heartbeat=0)
    if status == "pending":
        return free._replace(status="pending")
    return free._replace(status="completed") if status == "completed" else free._replace(status="failed")


# --- People ---


def hands(state: State, setting: Setting) -> Moves:
    document = state.document
    if state.canceller is not None:
        yield from _request(state, state.canceller, setting)
    if document.status == "pending" and not document.due:
        yield "the job becomes due", state._replace(document=document._replace(due=True))
    if not state.budget.hands:
        return
    paid = state._replace(budget=state.budget._replace(hands=state.budget.hands - 1))
    rev = document.rev + 1 if setting.rules.edits_are_counted else document.rev
    if document.status == "pending":
        yield "somebody cancels the pending job", paid._replace(document=document._replace(status="cancelled"))
        later = document._replace(rev=rev, due=False)
        yield "somebody puts the job off", paid._replace(document=later)
        edited = document._replace(rev=rev, data=document.data + 1)
        yield "somebody edits the pending job", paid._replace(document=edited)
    elif document.status == "processing":
        if is_ours(document) and state.canceller is None:
            yield "somebody wants the run cancelled, and reads its claim", paid._replace(canceller=fence_of(document))
        declared = document._replace(rev=rev, schedule=document.schedule + 1)
        yield "somebody declares another schedule", paid._replace(document=declared)
    elif document.status in ("failed", "cancelled"):
        again = writes.freed(document)._replace(status="pending", due=True, fail_count=0, rescues=0, rev=rev)
        yield "somebody retries the job", paid._replace(document=again)


def _request(state: State, read: Fence, setting: Setting) -> Moves:
    document, harm = writes.request_cancel(state.document, read, setting)
    done = state._replace(canceller=None)
    if document is None:
        yield "the request to cancel is refused", done
    else:
        yield "the request to cancel is acknowledged", done._replace(document=document, harm=harm)
