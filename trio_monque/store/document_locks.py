"""Locks in documents: taken, found out about, renewed, given back, taken away. One function a round trip or two.

How they end with a result is in `document_endings.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateMany, UpdateOne
from pymongo import errors as driver
from pymongo.client_session import ClientSession
from pymongo.read_concern import ReadConcern

from ..document_lock import MOST_TRIES, Fence, Lock, LockStamp, laid_aside, read_lock
from .document_endings import send
from .locked_collection import BY_ID, LockedCollection, as_stored
from .outcomes import command

logger = logging.getLogger("trio_monque.store")

# Ten thousand in one statement keep the server busy for a quarter of a second, and all else waits.
MOST_IN_ONE_STATEMENT: Final = 1000


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


@dataclass(frozen=True, slots=True)
class TakenDocuments:
    """What one claim took.

    Attributes:
        documents: In the order of the candidates.
        more: Whether there may be more to take at once: others were faster with some of what was seen.
    """

    documents: Sequence[TakenDocument]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Takeaway:
    """A lock that is to be taken from its holder.

    Attributes:
        id: Whose.
        seen: As it was observed.
        becomes: The lock that takes its place.
    """

    id: Any
    seen: Lock
    becomes: Mapping[str, Any]


@command("claim documents", in_parts=True)
def take(locked: LockedCollection, ids: Sequence[Any], now: datetime, stamp: LockStamp) -> TakenDocuments:
    """Claims those of the candidates that still match the filter and are claimable, in one guarded write.

    The write repeats the whole condition, and what was taken is read back under its token, as a majority has it.
    """
    guard = locked.meant(locked.ids(ids), locked.claimable(now))
    # One session for the write and the read behind it: a read elsewhere, on a primary that has been replaced and
    # does not know it yet, would not find what was taken, and nobody would run it.
    with locked.collection.database.client.start_session(causal_consistency=True) as session:
        matched = locked.locks.update_many(guard, _claim(locked, stamp), hint=BY_ID, session=session).matched_count
        taken = _read_back(locked, locked.ids(ids), stamp, session, hint=BY_ID) if matched else []
    order = {locked.key_of(document_id): place for place, document_id in enumerate(ids)}
    return TakenDocuments(sorted(taken, key=lambda one: order[one.key]), more=matched < len(ids))


def _claim(locked: LockedCollection, stamp: LockStamp) -> list[dict[str, Any]]:
    tries = f"${locked.at('tries')}"
    counted = {"$max": [0, {"$min": [MOST_TRIES, tries]}]}
    kept = {"$cond": [{"$in": [{"$type": tries}, ["int", "long"]]}, counted, 0]}
    # As an expression: a document that is given to `$set` plainly would be merged into what is there.
    return [{"$set": {locked.lock_field: {"$mergeObjects": [{"$literal": stamp.fields}, {"tries": kept}]}}}]


@command("find out about a claim", in_parts=True)
def resolve(
    locked: LockedCollection, stamp: LockStamp, until: datetime, *, ids: Sequence[Any] | None = None
) -> Sequence[TakenDocument]:
    """What a claim holds whose answer was lost; of these `ids`, or of all that match the filter.

    A read alone proves nothing: on a primary that is cut off it finds a claim that is then rolled back.
    So a renewal first, acknowledged by a majority; what a majority read then finds is held. `until` must
    be later than the claim's, as for any renewal.
    """
    which, hint = _which(locked, ids)
    held = {"$and": [which, locked.stamped(stamp)]}
    with locked.collection.database.client.start_session(causal_consistency=True) as session:
        locked.locks.update_many(held, {"$max": {locked.at("until"): until}}, hint=hint, session=session)
        return _read_back(locked, which, stamp, session, hint=hint)


def _which(locked: LockedCollection, ids: Sequence[Any] | None) -> tuple[Mapping[str, Any], Mapping[str, int] | None]:
    return (locked.filter, None) if ids is None else (locked.ids(ids), BY_ID)


def _read_back(
    locked: LockedCollection,
    which: Mapping[str, Any],
    stamp: LockStamp,
    session: ClientSession,
    *,
    hint: Mapping[str, int] | None,
) -> list[TakenDocument]:
    held = {"$and": [which, locked.stamped(stamp)]}
    majority = ReadConcern("majority")
    if locked.is_plain:
        try:
            found = list(locked.collection.with_options(read_concern=majority).find(held, hint=hint, session=session))
            return [_plain(locked, document) for document in found]
        except driver.PyMongoError:
            raise
        except Exception:  # noqa: BLE001  # One of them cannot be decoded, for whatever reason: which, is seen below.
            pass
    taken = []
    for raw in locked.raw.with_options(read_concern=majority).find(held, hint=hint, session=session):
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


@command("give claims back", in_parts=True)
def release_all(
    locked: LockedCollection,
    stamp: LockStamp,
    now: datetime,
    *,
    but: Sequence[Any] = (),
    ids: Sequence[Any] | None = None,
) -> int:
    """Gives back, uncounted, whatever a claim holds or will turn out to have held; returns how many.

    Of these `ids`, or of all that match the filter.
    """
    which, hint = _which(locked, ids)
    others = [locked.but(but)] if but else []
    # Field by field: the tries stay as they are.
    free = {
        "$set": {locked.at("by"): None, locked.at("until"): now},
        "$unset": {locked.at("token"): "", locked.at("every"): ""},
    }
    theirs = {"$and": [which, locked.stamped(stamp), *others]}
    return locked.locks.update_many(theirs, free, hint=hint).modified_count


@command("renew claims", in_parts=True)
def renew(locked: LockedCollection, held: Sequence[tuple[Fence, Sequence[Any]]], until: datetime) -> Set[bytes]:
    """Renews what these claims hold, and nothing else; returns the keys of what they hold no longer.

    `$max`, and an `until` that the caller lets grow: an observer must see a change although the server's clock
    stepped back, or it would take a live holder for dead.
    """
    lost: set[bytes] = set()
    with locked.collection.database.client.start_session(causal_consistency=True) as session:
        for group in _chunks(held):
            sent = [
                UpdateMany(one, {"$max": {locked.at("until"): until}}, hint=BY_ID) for one in _fences(locked, group)
            ]
            count = sum(len(ids) for _, ids in group)
            if locked.locks.bulk_write(sent, ordered=False, session=session).matched_count < count:
                lost |= _not_held(locked, group, until, session)
    return lost


def _fences(locked: LockedCollection, group: Sequence[tuple[Fence, Sequence[Any]]]) -> list[dict[str, Any]]:
    return [{**locked.ids(ids), **locked.fenced(fence)} for fence, ids in group]


def _not_held(
    locked: LockedCollection,
    group: Sequence[tuple[Fence, Sequence[Any]]],
    until: datetime,
    session: ClientSession,
) -> set[bytes]:
    found = locked.locks_by_majority([document_id for _, ids in group for document_id in ids], session)
    lost = set()
    for fence, ids in group:
        untils = {_in_milliseconds(moment) for moment in (*fence.untils, until)}
        for key in map(locked.key_of, ids):
            lock = read_lock(found.get(key))
            if lock is None or (lock.by, lock.token) != (fence.by, fence.token) or lock.until not in untils:
                lost.add(key)
    return lost


def _in_milliseconds(moment: datetime) -> datetime:
    """As the database keeps it."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _chunks(
    held: Sequence[tuple[Fence, Sequence[Any]]],
) -> Iterator[list[tuple[Fence, Sequence[Any]]]]:
    """The same, in groups of what one command may renew."""
    chunk: list[tuple[Fence, Sequence[Any]]] = []
    room = MOST_IN_ONE_STATEMENT
    for fence, ids in held:
        rest = list(ids)
        while rest:
            part, rest = rest[:room], rest[room:]
            chunk.append((fence, part))
            room -= len(part)
            if not room:
                yield chunk
                chunk, room = [], MOST_IN_ONE_STATEMENT
    if chunk:
        yield chunk


@command("take dead claims away", in_parts=True)
def rescue(locked: LockedCollection, dead: Sequence[Takeaway]) -> Set[bytes]:
    """Takes away those of the locks that are as they were observed; returns the keys of those documents.

    May be called again with the same after any transient error: it tells of what the first call took, too.
    """
    sent = [
        UpdateOne(
            {**locked.one(one.id), **_as_seen(locked, one.seen)},
            {"$set": {locked.lock_field: one.becomes}},
            hint=BY_ID,
        )
        for one in dead
    ]
    with locked.collection.database.client.start_session(causal_consistency=True) as session:
        matched, refused = send(locked, sent, session)
        for place, reason in refused.items():
            logger.error("the server refuses to have the lock of document %r taken away: %s", dead[place].id, reason)
        if matched == len(dead):
            return {locked.key_of(one.id) for one in dead}
        found = locked.locks_by_majority([one.id for one in dead], session)
    return {key for one in dead if found.get(key := locked.key_of(one.id)) == as_stored(one.becomes)}


def _as_seen(locked: LockedCollection, seen: Lock) -> dict[str, Any]:
    # What is no string was read as no token.
    token = {"$not": {"$type": "string"}} if seen.token is None else seen.token
    return {locked.at("by"): seen.by, locked.at("until"): seen.until, locked.at("token"): token}


@command("readmit documents", in_parts=True)
def readmit(locked: LockedCollection, ids: Sequence[Any] | None) -> int:
    """Frees what was set aside, of these ids or of all that match; returns how many. They have no tries then."""
    which, hint = _which(locked, ids)
    freed = {"$unset": {locked.lock_field: ""}}
    return locked.locks.update_many({"$and": [which, locked.laid_aside]}, freed, hint=hint).modified_count
