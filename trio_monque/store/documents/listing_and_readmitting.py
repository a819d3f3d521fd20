"""Dead letters: lists the documents whose attempts are used up, and readmits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters in the order of their ids, without the rest of their documents.

    Attributes:
        letters: Their `_id` and their lock.
        next: What the next page comes after: a document with the `_id` of the last letter. None for the last page.
    """

    letters: Sequence[tuple[Any, Lock]]
    next: Mapping[str, Any] | None


@command("list the dead letters", writes=False)
def page(locked: LockedCollection, after: Mapping[str, Any] | None, limit: int) -> DeadLetterPage:
    """Return at most `limit` dead letters: those after the `next` of a page, or the first ones for None."""
    # By an expression: as a condition, `$gt` finds values of the same type only, and the ids may be of several.
    rest = [] if after is None else [{"$expr": {"$gt": ["$_id", {"$literal": after["_id"]}]}}]
    # The server chooses between the index of the locks, where dead letters are few, and that of the ids, where most
    # documents are such.
    condition, shown = locked.meant(locked.is_dead_letter, *rest), {"_id": 1, locked.lock_field: 1}
    found = list(locked.raw.find(condition, shown, sort=[("_id", 1)], limit=limit + 1))
    # No condition can name the others by their ids: neither one that readmits them, nor that of the next page.
    named = [one for one in found[:limit] if locked.can_name(one)]
    letters = [(locked.own_id_in(one), lock) for one in named if (lock := locked.lock_in(one)) is not None]
    has_more = bool(named) and len(found) > limit
    return DeadLetterPage(letters, {"_id": locked.own_id_in(named[-1])} if has_more else None)


@command("readmit documents", in_parts=True)
def readmit(locked: LockedCollection, ids: Sequence[Any] | None) -> int:
    """Free the dead letters among `ids`, or among all that match the filter, with 0 attempts; return how many."""
    which, hint = selection_of(locked, ids)
    freed = {"$unset": {locked.lock_field: ""}}
    return update_each_if_refused(locked, {"$and": [which, locked.is_dead_letter]}, freed, hint)
