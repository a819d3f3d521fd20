"""What a claim holds, read back: documents as the caller's handle decodes them, each for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import errors as driver
from pymongo.client_session import ClientSession

from ..document_lock import LockStamp, laid_aside, read_lock
from ..log import logger_of
from .commands import BY_ID, by_majority
from .locked_collection import LockedCollection

logger = logger_of("store")


# The server's own first batch is of a hundred, and each further one is a round trip.
MOST_IN_A_BATCH: Final = 1001


@dataclass(frozen=True, slots=True)
class TakenDocument:
    """A document that is held.

    Attributes:
        id: Its `_id`, as the caller's handle decodes it.
        key: What tells it from all others: see `LockedCollection.key_of`.
        document: As the caller's handle decodes it, with the lock as it was claimed.
        tries: How many tries of it have failed or died before.
    """

    id: Any
    key: bytes
    document: Any
    tries: int


def read_back(
    locked: LockedCollection,
    which: Mapping[str, Any],
    stamp: LockStamp,
    session: ClientSession,
    *,
    hint: Mapping[str, int] | None,
) -> list[TakenDocument]:
    """Those of the documents that bear the claim, as a majority holds them after the writes of the session.

    One that the caller's handle cannot decode is set aside, alone.
    """
    held = {"$and": [which, locked.stamped(stamp)]}
    found_by: dict[str, Any] = {"hint": hint, "session": session, "batch_size": MOST_IN_A_BATCH}
    if locked.is_plain:
        try:
            found = list(by_majority(locked.collection).find(held, **found_by))
            return [_plain(locked, document) for document in found]
        except driver.PyMongoError:
            raise
        except Exception:  # noqa: BLE001  # One of them cannot be decoded, for whatever reason: which, is seen below.
            pass
    taken = []
    for raw in by_majority(locked.raw).find(held, **found_by):
        try:
            taken.append(_decoded(locked, raw))
        except Exception as error:  # noqa: BLE001  # Whatever a decoder of the caller's raises.
            _lay_aside(locked, raw, stamp, error, session)
    return taken


def _plain(locked: LockedCollection, document: Mapping[str, Any]) -> TakenDocument:
    lock = read_lock(document.get(locked.lock_field))
    document_id = document["_id"]
    return TakenDocument(document_id, locked.key_of(document_id), document, 0 if lock is None else lock.tries)


def _decoded(locked: LockedCollection, raw: RawBSONDocument) -> TakenDocument:
    document = bson.decode(raw.raw, codec_options=locked.callers)
    document_id, lock = document["_id"], locked.lock_in(raw)
    return TakenDocument(document_id, locked.key_of(document_id), document, 0 if lock is None else lock.tries)


def _lay_aside(
    locked: LockedCollection, raw: RawBSONDocument, stamp: LockStamp, error: Exception, session: ClientSession
) -> None:
    """What the caller's handle cannot read, no handler can be given: it would fail for ever."""
    problem = f"the document cannot be decoded with the codec options of the collection's handle: {error}"
    lock = locked.lock_in(raw)
    own_id = locked.own_id_in(raw)
    locked.locks.update_one(
        {"_id": {"$eq": own_id}, **locked.stamped(stamp)},
        {"$set": {locked.lock_field: laid_aside(0 if lock is None else lock.tries, problem)}},
        hint=BY_ID,
        session=session,
    )
    logger.error("document %r of %s is set aside: %s", own_id, locked.collection.full_name, problem)
