"""Claims on documents of any collection: the guarded write, the read of what it took, and the release.

As for jobs (`store/jobs/claiming.py`), with a lock in one field of each document. Instances A and B look at the same
free document and both try to claim it. What each condition closes:

- The write repeats the caller's filter and the condition that the lock is free now. B's write comes after A's and does
  not match. Without the condition, both would handle the document.
- A reads the documents that bear its token, in the session of the write and as a majority has them. Candidates are ids
  only, so A has no copy that a pin could prove exact. Without the majority, A on a primary that is cut off would handle
  a document whose lock is rolled back.
- If the answer to a claim is lost, A does not know what it holds. `resolve` renews the locks before it reads them: a
  read alone may find a lock that is rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne
from pymongo import errors as driver

from ...error_types import MonqueConnectionError
from ...locks_and_dead_letters import MOST_TRIES, LockStamp, dead_letter_lock, read_lock
from ...log import logger_of
from ..driver.commands import BY_ID, by_majority, causal_session, command, update_unless_refused
from ..driver.types import ClientSession
from .locked_collection import LockedCollection
from .settling import send

logger = logger_of("store")

# The server's own first batch is of a hundred, and each further one is a round trip.
MOST_IN_A_BATCH: Final = 1001

MOST_REFUSED: Final = 1000
"""Documents without room for a lock, or that a validator refuses to have locked. A query may name no more of them."""


@dataclass(frozen=True, slots=True)
class TakenDocument:
    """A document that is held.

    Attributes:
        id: The `_id`, as the caller's handle decodes it.
        key: The `_id` as BSON, to compare and to remember it by: see `LockedCollection.key_of`.
        document: The document as the caller's handle decodes it, with the lock of this claim.
        tries: How many attempts have failed, or lost their holder, before.
    """

    id: Any
    key: bytes
    document: Any
    tries: int


@dataclass(frozen=True, slots=True)
class TakenDocuments:
    """What one claim took.

    Attributes:
        documents: In the order of the candidates.
        more: Another claim is worthwhile now: other instances were faster with some of the candidates.
    """

    documents: Sequence[TakenDocument]
    more: bool = False


@command("claim documents", in_parts=True)
def take(locked: LockedCollection, ids: Sequence[Any], now: datetime, stamp: LockStamp) -> TakenDocuments:
    """Claim those of the candidates that still match the filter and are claimable, by one write and one read."""
    # One session: a read on a primary that has been replaced would not find what the write has locked.
    with causal_session(locked.collection) as session:
        matched = _write(locked, ids, now, stamp, session)
        # Nothing matched, and so nothing was taken: that is certain only of a single candidate. With several, the first
        # write may have locked some before it stopped at a refused document, and does not count them.
        taken = read_back(locked, locked.ids(ids), stamp, session, hint=BY_ID) if matched or len(ids) > 1 else []
    order = {locked.key_of(document_id): place for place, document_id in enumerate(ids)}
    # A document may have been deleted since the look, and stored again under an equal number of another type. The
    # server matches 1 and 1.0 alike, and their keys differ: such a document comes last.
    taken.sort(key=lambda one: order.get(one.key, len(ids)))
    return TakenDocuments(taken, more=len(taken) < len(ids))


def _write(
    locked: LockedCollection, ids: Sequence[Any], now: datetime, stamp: LockStamp, session: ClientSession
) -> int:
    """Lock the candidates; return how many of the writes matched."""
    # The filter and the whole condition once more: another instance may have locked a candidate since the look, or a
    # program may have changed it so that it does not match the filter.
    guard = locked.meant(locked.ids(ids), locked.claimable(now))
    written = update_unless_refused(locked.locks, guard, _claim(locked, stamp), BY_ID, session)
    if not isinstance(written, driver.WriteError):
        return written.matched_count
    # No query can leave out more documents than these: the looks would return the same ones for ever.
    if len(locked.refused) >= MOST_REFUSED:
        raise MonqueConnectionError(
            f"the server refuses a lock in more than {MOST_REFUSED} documents of {locked.collection.full_name}: "
            f"check its validator, or leave them out by the filter. The server says: {written}",
            transient=True,
        ) from written
    return _write_each(locked, ids, now, stamp, session)


def _write_each(
    locked: LockedCollection, ids: Sequence[Any], now: datetime, stamp: LockStamp, session: ClientSession
) -> int:
    """Lock each candidate by a statement of its own, and skip those that the server refuses from now on."""
    # A document that the first write has locked is not claimable any more: it does not match again.
    claimable, claimed = locked.claimable(now), _claim(locked, stamp)
    each = [UpdateOne(locked.meant(locked.one(one), claimable), claimed, hint=BY_ID) for one in ids]
    sent = send(locked, each, session)
    for document_id, refusal in sent.refused_among(ids):
        if locked.refused.add(document_id, refusal.message):
            logger.error(
                "skipped document %r of %s, because the server refused to lock it: %s",
                document_id,
                locked.collection.full_name,
                refusal.message,
            )
    return sent.matched


def _claim(locked: LockedCollection, stamp: LockStamp) -> list[dict[str, Any]]:
    tries = f"${locked.at('tries')}"
    # The lock is replaced as a whole, and `tries` moves into the new one. Another program may have written anything
    # there: a text, or a number out of range, must not fail the claim or the backoff.
    counted = {"$max": [0, {"$min": [MOST_TRIES, tries]}]}
    kept = {"$cond": [{"$in": [{"$type": tries}, ["int", "long"]]}, counted, 0]}
    # An expression, here `$mergeObjects`: a stage `$set` merges a plain document into the fields of the old lock.
    return [{"$set": {locked.lock_field: {"$mergeObjects": [{"$literal": stamp.fields}, {"tries": kept}]}}}]


@command("check the outcome of a claim", in_parts=True)
def resolve(
    locked: LockedCollection, stamp: LockStamp, until: datetime, *, ids: Sequence[Any] | None = None
) -> Sequence[TakenDocument]:
    """Return what a claim holds whose answer was lost, among `ids` or among all documents that match the filter.

    `until` must be later than that of the claim, as for any renewal.
    """
    which, hint = selection_of(locked, ids)
    held = {"$and": [which, locked.stamped(stamp)]}
    with causal_session(locked.collection) as session:
        # A read alone proves nothing: on a primary that is cut off, it finds a lock that is rolled back afterwards. The
        # renewal is a write, acknowledged by a majority: what the majority read behind it finds is held.
        locked.locks.update_many(held, {"$max": {locked.at("until"): until}}, hint=hint, session=session)
        return read_back(locked, which, stamp, session, hint=hint)


def selection_of(
    locked: LockedCollection, ids: Sequence[Any] | None
) -> tuple[Mapping[str, Any], Mapping[str, int] | None]:
    """Return the condition for these ids, or the caller's filter if there are none, and the index hint for it."""
    return (locked.filter, None) if ids is None else (locked.ids(ids), BY_ID)


@command("release claims", in_parts=True)
def release_all(
    locked: LockedCollection,
    stamp: LockStamp,
    now: datetime,
    *,
    but: Sequence[Any] = (),
    ids: Sequence[Any] | None = None,
) -> int:
    """Release, without counting an attempt, all documents that a claim holds except `but`; return how many.

    Among `ids`, or among all documents that match the filter.
    """
    which, hint = selection_of(locked, ids)
    others = [locked.but(but)] if but else []
    # Field by field, so that each document keeps its own attempts.
    free = {
        "$set": {locked.at("by"): None, locked.at("until"): now},
        "$unset": {locked.at("token"): "", locked.at("every"): ""},
    }
    theirs = {"$and": [which, locked.stamped(stamp), *others]}
    return update_each_if_refused(locked, theirs, free, hint)


def update_each_if_refused(
    locked: LockedCollection, theirs: Mapping[str, Any], update: Mapping[str, Any], hint: Mapping[str, int] | None
) -> int:
    """Update the documents that match; return how many were changed. A refused document does not stop the others."""
    written = update_unless_refused(locked.locks, theirs, update, hint)
    if not isinstance(written, driver.WriteError):
        return written.modified_count
    ids = [locked.id_in(document) for document in locked.raw.find(theirs, {"_id": True}, hint=hint)]
    each = [UpdateOne({"$and": [locked.one(one), theirs]}, update, hint=BY_ID) for one in ids]
    with causal_session(locked.collection) as session:
        sent = send(locked, each, session)
    for document_id, refusal in sent.refused_among(ids):
        logger.error("the server refused to change the lock of document %r: %s", document_id, refusal.message)
    return sent.modified


# --- What was taken, read back ---


def read_back(
    locked: LockedCollection,
    which: Mapping[str, Any],
    stamp: LockStamp,
    session: ClientSession,
    *,
    hint: Mapping[str, int] | None,
) -> list[TakenDocument]:
    """Return the documents that bear the claim, as a majority holds them after the writes of the session.

    A document that the caller's handle cannot decode becomes a dead letter; the others are returned.
    """
    held = {"$and": [which, locked.stamped(stamp)]}
    found_by: dict[str, Any] = {"hint": hint, "session": session, "batch_size": MOST_IN_A_BATCH}
    if locked.is_plain:
        try:
            found = list(by_majority(locked.collection).find(held, **found_by))
            return [_plain(locked, document) for document in found]
        except driver.PyMongoError:
            raise
        except Exception:  # noqa: BLE001  # At least one document cannot be decoded: they are read one by one below.
            pass
    taken = []
    for raw in by_majority(locked.raw).find(held, **found_by):
        try:
            taken.append(_decoded(locked, raw))
        except Exception as error:  # noqa: BLE001  # A decoder of the caller may raise anything.
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
    """Make a dead letter of a document that the caller's handle cannot decode: no handler could ever get it."""
    problem = f"the document cannot be decoded with the codec options of the collection's handle: {error}"
    lock = locked.lock_in(raw)
    own_id = locked.own_id_in(raw)
    # Under the token of this claim: if its lease has expired meanwhile, another instance may hold the document.
    locked.locks.update_one(
        {"_id": {"$eq": own_id}, **locked.stamped(stamp)},
        {"$set": {locked.lock_field: dead_letter_lock(0 if lock is None else lock.tries, problem)}},
        hint=BY_ID,
        session=session,
    )
    logger.error("document %r of %s is now a dead letter: %s", own_id, locked.collection.full_name, problem)
