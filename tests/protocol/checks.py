"""What must never be.

The move itself reports what it must not do, see `State.harm`; what a state may not be, and that the job can still
come to its end from there, is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .moves import successors
from .rules import Setting
from .search import search
from .state import Budget, Document, Instance, State


def harm_in(setting: Setting, sought: str = "") -> Callable[[State], str | None]:
    """The check of one setting: safety of each state, and that each of its documents can still come to an end.

    With `sought`, only harm whose text begins like this: a broken rule may do more than one kind of harm.
    """
    hopeful: dict[Document, bool] = {}

    def harm_of(state: State) -> str | None:
        for harm in (state.harm, _two_act(state), lost(state.document)):
            if harm and harm.startswith(sought):
                return harm
        return None

    def lost(document: Document) -> str | None:
        if document not in hopeful:
            hopeful[document] = _can_still_end(document, setting)
        return None if hopeful[document] else "the job is lost: nothing that anybody does completes it"

    return harm_of


def _two_act(state: State) -> str | None:
    """Guarantees 1 and 4: at most one handler that is not asked to stop, Node's included.

    A frozen one counts: it may thaw in the next moment, and goes on for as long as its lease is not over.
    """
    acting = [one.name for one in state.instances if one.phase == "running" and one.lease]
    if state.node and state.document.claims == state.node:
        acting.append("Node")
    return f"two runs overlap: {' and '.join(acting)}" if len(acting) > 1 else None


def _can_still_end(document: Document, setting: Setting) -> bool:
    """Guarantee 2: everybody who knew of the job is dead, and one fresh instance and its reaper bring it to an end."""
    if document.status not in ("pending", "processing"):
        return True
    plenty = Budget(claims=4, faults=0, hands=0, beats=0, node=0)
    left = State(document, Instance("A", "down", sent=90), Instance("B", sent=90), plenty)
    setting = Setting(setting.rules, replace(setting.bounds, mixed_batches=False))
    done = "the job came to its end"

    def ended(state: State) -> str | None:
        after = state.document
        if after.status in ("pending", "processing"):
            waits = after.status == "pending" and not after.due and after.fail_count == after.rescues == 0
            return done if after.schedule and waits and state.b.sent > 90 else None
        return done

    return search([left], lambda state: successors(state, setting), ended, 100_000).harm == done
