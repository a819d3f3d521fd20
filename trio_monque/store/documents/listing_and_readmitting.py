"""Dead letters: lists the documents whose attempts are used up, and readmits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import bson

from ...locks_and_dead_letters import Lock
from ..driver.commands import command
from .claiming import selection_of, update_each_if_refused
from .locked_collection import LockedCollection


@dataclass(frozen=True, slots=True)
class LaidAside:
    """A document whose attempts are used up.

    Attributes:
        id: The `_id`.
        lock: The lock, with the attempts and the last error.
        document: The document as the caller's handle decodes it; None if it cannot.
    """

    id: Any
    lock: Lock
    document: Any | None


@command("list the dead letters", writes=False)
def listed(locked: LockedCollection, limit: int) -> Sequence[LaidAside]:
    """Return the documents whose attempts are used up, at most `limit`."""
    found = []
    for raw in locked.raw.find(locked.meant(locked.is_dead_letter), limit=limit):
        lock = locked.lock_in(raw)
        if lock is None:
            continue
        try:
            document = bson.decode(raw.raw, codec_options=locked.callers)
        except Exception:  # noqa: BLE001  # A decoder of the caller may raise anything.
            document = None
        found.append(LaidAside(locked.id_in(raw), lock, document))
    return found


@command("readmit documents", in_parts=True)
def readmit(locked: LockedCollection, ids: Sequence[Any] | None) -> int:
    """Free the dead letters among `ids`, or among all that match the filter, with 0 attempts; return how many."""
    which, hint = selection_of(locked, ids)
    freed = {"$unset": {locked.lock_field: ""}}
    return update_each_if_refused(locked, {"$and": [which, locked.is_dead_letter]}, freed, hint)
