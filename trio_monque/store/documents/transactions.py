"""The end of a claim on a document, as its transaction writes it; `store/transactions.py` says when.

The document is the caller's: no receipt is left in it. If the answer to the commit is lost and the lock is gone, our
commit has removed it, as long as no other program can have taken the lock. Later, nothing shows who has removed it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...document_lock import Fence
from ...safe_text import shown
from ..commands import BY_ID, command
from ..transactions import Found
from ..types import ClientSession, Collection
from .locked_collection import LockedCollection
from .settling_statements import EncodedUpdate, Ending, filter_and_update


@dataclass(slots=True, eq=False)
class DocumentEnd:
    """A `ClaimEnd`: the lock is removed, with the update if there is one.

    Attributes:
        fence: Returns the fence as it is now.
        renewing: Called before a renewal is sent, with its date; returns the date that the lock gets.
        is_sure: Whether no other program can have taken the lock yet.
    """

    locked: LockedCollection
    id: Any
    update: EncodedUpdate | None
    fence: Callable[[], Fence]
    renewing: Callable[[datetime], datetime]
    is_sure: Callable[[], bool]

    @property
    def item(self) -> str:
        return f"document {shown(self.id)}"

    @property
    def collection(self) -> Collection:
        return self.locked.locks

    @property
    def operation_timeout(self) -> float:
        return self.locked.operation_timeout

    def hold(self, beat: datetime, session: ClientSession) -> None:
        renewal = {"$max": {self.locked.at("until"): self.renewing(beat)}}
        self.collection.update_one(_held(self.locked, self.id, self.fence()), renewal, hint=BY_ID, session=session)

    def write(self, _value: Any, session: ClientSession) -> bool:
        guard, update = filter_and_update(self.locked, Ending(self.id, self.fence(), self.update))
        return bool(self.collection.update_one(guard, update, hint=BY_ID, session=session).matched_count)

    def find_out(self, beat: datetime) -> Found:
        until = self.renewing(beat)
        if _renew(self.locked, self.id, until, self.fence()):
            return Found.NOT_COMMITTED
        # Asked after the answer: another program may have taken the lock while the renewal was on its way.
        return Found.COMMITTED if self.is_sure() else Found.UNKNOWN


@command("find out about a transaction")
def _renew(locked: LockedCollection, document_id: object, until: datetime, fence: Fence) -> bool:
    """Renew the lock; return whether it is held. By a majority, as all writes to locks."""
    renewal = {"$max": {locked.at("until"): until}}
    return bool(locked.locks.update_one(_held(locked, document_id, fence), renewal, hint=BY_ID).matched_count)


def _held(locked: LockedCollection, document_id: object, fence: Fence) -> dict[str, Any]:
    """The condition that this claim holds the lock."""
    return {**locked.one(document_id), **locked.fenced(fence)}
