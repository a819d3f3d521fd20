"""Dead letters: documents whose tries are used up. They are listed, and readmitted on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import bson

from ...document_lock import Lock
from ..commands import command
from .claiming import update_each_if_refused, which_of
from .locked_collection import LockedCollection


@dataclass(frozen=True, slots=True)
class LaidAside:
    """A document whose tries are used up.

    Attributes:
        id: Its `_id`.
        lock: With its attempts and the last error.
        document: As the caller's handle decodes it; None where it cannot.
    """

    id: Any
    lock: Lock
    document: Any | None


@command("list the dead letters", writes=False)
def listed(locked: LockedCollection, limit: int) -> Sequence[LaidAside]:
    """Return the documents whose tries are used up, at most `limit`."""
    listed = []
    for raw in locked.raw.find(locked.meant(locked.laid_aside), limit=limit):
        lock = locked.lock_in(raw)
        if lock is None:
            continue
        try:
            document = bson.decode(raw.raw, codec_options=locked.callers)
        except Exception:  # noqa: BLE001  # Whatever a decoder of the caller's raises; it may be why this is a dead letter.
            document = None
        listed.append(LaidAside(locked.id_in(raw), lock, document))
    return listed


@command("readmit documents", in_parts=True)
def readmit(locked: LockedCollection, ids: Sequence[Any] | None) -> int:
    """Frees the dead letters among these ids, or among all that match; returns how many. Their attempts are 0 then."""
    which, hint = which_of(locked, ids)
    freed = {"$unset": {locked.lock_field: ""}}
    return update_each_if_refused(locked, {"$and": [which, locked.laid_aside]}, freed, hint)
