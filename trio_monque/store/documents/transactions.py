"""What the transaction of a claim writes to its document, and how it finds out what became of that.

`store/driver/transaction_attempts.py` says in which order. The document is the caller's: no receipt is left in it. If
the answer to the commit is lost and the lock is gone, our commit has removed it, as long as no other program can have
taken the lock, and the document is still there: a program may delete it without asking for the lock. Otherwise, nothing
shows who has removed it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from ...locks_and_dead_letters import Fence
from ..driver.commands import BY_ID, causal_session, command
from ..driver.transaction_terms import FoundCommit
from ..driver.types import ClientSession
from .locked_collection import LockedCollection
from .settling_statements import DocumentWrite, filter_and_update


def hold(locked: LockedCollection, document_id: object, until: datetime, fence: Fence, session: ClientSession) -> None:
    """Lock the document in the transaction; see `ClaimSettlement.hold`."""
    renewal = {"$max": {locked.at("until"): until}}
    locked.locks.update_one(_held(locked, document_id, fence), renewal, hint=BY_ID, session=session)


def write_end(locked: LockedCollection, ending: DocumentWrite, session: ClientSession) -> bool:
    """Remove the lock in the transaction, with the update if there is one; return whether it matched."""
    guard, update = filter_and_update(locked, ending)
    return bool(locked.locks.update_one(guard, update, hint=BY_ID, session=session).matched_count)


def find_out(
    locked: LockedCollection, document_id: object, until: datetime, fence: Fence, is_sure: Callable[[], bool]
) -> FoundCommit:
    """Find out what became of a commit that was not acknowledged; see `ClaimSettlement.find_out`.

    Args:
        is_sure: Whether no other program can have taken the lock yet.
    """
    is_held, is_there = _renew(locked, document_id, until, fence)
    if is_held:
        return FoundCommit.NOT_COMMITTED
    # Asked after the answer: another program may have taken the lock while the renewal was on its way.
    return FoundCommit.COMMITTED if is_there and is_sure() else FoundCommit.UNKNOWN


@command("check the outcome of a transaction")
def _renew(locked: LockedCollection, document_id: object, until: datetime, fence: Fence) -> tuple[bool, bool]:
    """Renew the lock; return whether it is held, and whether the document is there. By a majority, as always."""
    renewal = {"$max": {locked.at("until"): until}}
    with causal_session(locked.locks) as session:
        held = locked.locks.update_one(_held(locked, document_id, fence), renewal, hint=BY_ID, session=session)
        is_held = held.matched_count > 0
        return is_held, is_held or bool(locked.locks_by_majority([document_id], session))


def _held(locked: LockedCollection, document_id: object, fence: Fence) -> dict[str, Any]:
    """The condition that this claim holds the lock."""
    return {**locked.one(document_id), **locked.fenced(fence)}
