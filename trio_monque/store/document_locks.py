"""Locks in documents: taken, found out about, renewed, given back, taken away. One function a round trip or two.

How they end with a result is in `document_endings.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from pymongo import UpdateMany, UpdateOne
from pymongo import errors as driver
from pymongo.client_session import ClientSession

from ..document_lock import MOST_TRIES, Fence, Lock, LockStamp, read_lock, shortened
from ..errors import MonqueConnectionError
from ..log import logger_of
from .commands import BY_ID, causal_session, command, in_chunks, update_unless_refused
from .document_endings import send
from .locked_collection import LockedCollection, as_stored
from .taken_documents import TakenDocument, read_back

__all__ = [
    "Takeaway",
    "TakenDocument",
    "TakenDocuments",
    "readmit",
    "release_all",
    "renew",
    "rescue",
    "resolve",
    "take",
]

logger = logger_of("store")

# Ten thousand in one statement keep the server busy for a quarter of a second, and all else waits.
MOST_IN_ONE_STATEMENT: Final = 1000

MOST_REFUSED: Final = 1000
"""Documents without room for a lock, or that a validator refuses to have locked. A query may name no more of them."""


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
    # One session for the write and the read behind it: a read elsewhere, on a primary that has been replaced and
    # does not know it yet, would not find what was taken, and nobody would run it.
    with causal_session(locked.collection) as session:
        matched = _write(locked, ids, now, stamp, session)
        # Where some were refused, what it says of the others is less than all.
        taken = read_back(locked, locked.ids(ids), stamp, session, hint=BY_ID) if matched or len(ids) > 1 else []
    order = {locked.key_of(document_id): place for place, document_id in enumerate(ids)}
    return TakenDocuments(sorted(taken, key=lambda one: order[one.key]), more=len(taken) < len(ids))


def _write(
    locked: LockedCollection, ids: Sequence[Any], now: datetime, stamp: LockStamp, session: ClientSession
) -> int:
    """How many matched. One document that the server refuses to change must not keep its neighbours from a claim."""
    guard = locked.meant(locked.ids(ids), locked.claimable(now))
    written = update_unless_refused(locked.locks, guard, _claim(locked, stamp), BY_ID, session)
    if not isinstance(written, driver.WriteError):
        return written.matched_count
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
    """Claims each document by a statement of its own. One that is claimed already matches none of them."""
    claimable, claimed = locked.claimable(now), _claim(locked, stamp)
    each = [UpdateOne(locked.meant(locked.one(one), claimable), claimed, hint=BY_ID) for one in ids]
    sent = send(locked, each, session)
    for place, refusal in sent.refused.items():
        if locked.refused.add(ids[place], refusal.message):
            logger.error(
                "document %r of %s is passed over: the server refuses a lock in it: %s",
                ids[place],
                locked.collection.full_name,
                refusal.message,
            )
    return sent.matched


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
    with causal_session(locked.collection) as session:
        locked.locks.update_many(held, {"$max": {locked.at("until"): until}}, hint=hint, session=session)
        return read_back(locked, which, stamp, session, hint=hint)


def _which(locked: LockedCollection, ids: Sequence[Any] | None) -> tuple[Mapping[str, Any], Mapping[str, int] | None]:
    return (locked.filter, None) if ids is None else (locked.ids(ids), BY_ID)


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
    return _update_all(locked, theirs, free, hint)


def _update_all(
    locked: LockedCollection, theirs: Mapping[str, Any], update: Mapping[str, Any], hint: Mapping[str, int] | None
) -> int:
    """How many were changed. One document that the server refuses to change keeps no other from it."""
    written = update_unless_refused(locked.locks, theirs, update, hint)
    if not isinstance(written, driver.WriteError):
        return written.modified_count
    ids = [locked.id_in(document) for document in locked.raw.find(theirs, {"_id": True}, hint=hint)]
    each = [UpdateOne({"$and": [locked.one(one), theirs]}, update, hint=BY_ID) for one in ids]
    with causal_session(locked.collection) as session:
        sent = send(locked, each, session)
    for place, refusal in sent.refused.items():
        logger.error("the server refuses to have the lock of document %r changed: %s", ids[place], refusal.message)
    return sent.matched


@command("renew claims", in_parts=True)
def renew(locked: LockedCollection, held: Sequence[tuple[Fence, Sequence[Any]]], until: datetime) -> Set[bytes]:
    """Renews what these claims hold, and nothing else; returns the keys of what they hold no longer.

    A document whose renewal the server refuses is among these: nobody can hold it any longer.

    `$max`, and an `until` that the caller lets grow: an observer must see a change although the server's clock
    stepped back, or it would take a live holder for dead.
    """
    lost: set[bytes] = set()
    each = [(fence, document_id) for fence, ids in held for document_id in ids]
    renewal = {"$max": {locked.at("until"): until}}
    with causal_session(locked.collection) as session:
        for group in in_chunks(each, MOST_IN_ONE_STATEMENT):
            by_claim = groupby(group, key=itemgetter(0))
            requests = [
                UpdateMany({**locked.ids([one for _, one in same]), **locked.fenced(fence)}, renewal, hint=BY_ID)
                for fence, same in by_claim
            ]
            sent = send(locked, requests, session)
            if sent.refused:
                lost |= _refused_alone(locked, group, renewal, session)
            if sent.matched < len(group):
                lost |= _not_held(locked, group, until, session)
    return lost


def _refused_alone(
    locked: LockedCollection, group: Sequence[tuple[Fence, Any]], renewal: dict[str, Any], session: ClientSession
) -> set[bytes]:
    """Renews each claim by a statement of its own; the keys of the documents that the server refuses to change."""
    each = [UpdateOne({**locked.one(one), **locked.fenced(fence)}, renewal, hint=BY_ID) for fence, one in group]
    refused = send(locked, each, session).refused
    for place, refusal in refused.items():
        logger.error("the server refuses to renew the claim on document %r: %s", group[place][1], refusal.message)
    return {locked.key_of(group[place][1]) for place in refused}


def _not_held(
    locked: LockedCollection, group: Sequence[tuple[Fence, Any]], until: datetime, session: ClientSession
) -> set[bytes]:
    found = locked.locks_by_majority([document_id for _, document_id in group], session)
    lost = set()
    for fence, document_id in group:
        key = locked.key_of(document_id)
        lock = read_lock(found.get(key))
        untils = {_in_milliseconds(moment) for moment in (*fence.untils, until)}
        if lock is None or (lock.by, lock.token) != (fence.by, fence.token) or lock.until not in untils:
            lost.add(key)
    return lost


def _in_milliseconds(moment: datetime) -> datetime:
    """As the database keeps it."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


@command("take dead claims away", in_parts=True)
def rescue(locked: LockedCollection, dead: Sequence[Takeaway]) -> Set[bytes]:
    """Takes away those of the locks that are as they were observed; returns the keys of those documents.

    May be called again with the same after any transient error: it tells of what the first call took, too.
    """
    with causal_session(locked.collection) as session:
        sent = send(locked, [_taking(locked, one) for one in dead], session)
        matched, refused = sent.matched, sent.refused
        if refused:
            # A full document has room for a short error.
            dead = [_with_short_error(one) if place in refused else one for place, one in enumerate(dead)]
            again = [dead[place] for place in refused]
            sent_again = send(locked, [_taking(locked, one) for one in again], session)
            matched += sent_again.matched
            for place, refusal in sent_again.refused.items():
                logger.error(
                    "the server refuses to have the lock of document %r taken away: %s",
                    again[place].id,
                    refusal.message,
                )
        if matched == len(dead):
            return {locked.key_of(one.id) for one in dead}
        found = locked.locks_by_majority([one.id for one in dead], session)
    return {
        key
        for one in dead
        if found.get(key := locked.key_of(one.id))
        in (as_stored(one.becomes), as_stored(_with_short_error(one).becomes))
    }


def _taking(locked: LockedCollection, one: Takeaway) -> UpdateOne:
    guard = {**locked.one(one.id), **_as_seen(locked, one.seen)}
    return UpdateOne(guard, {"$set": {locked.lock_field: one.becomes}}, hint=BY_ID)


def _with_short_error(one: Takeaway) -> Takeaway:
    error = one.becomes.get("error")
    return replace(one, becomes={**one.becomes, "error": shortened(error)}) if isinstance(error, str) else one


def _as_seen(locked: LockedCollection, seen: Lock) -> dict[str, Any]:
    as_seen = {locked.at("by"): seen.by, locked.at("until"): seen.until}
    if seen.token is not None:
        return {**as_seen, locked.at("token"): seen.token}
    # What is not a string was read as no token. An array of strings has the type of its elements as well.
    return {**as_seen, "$nor": [{locked.at("token"): {"$type": "string", "$not": {"$type": "array"}}}]}


@command("readmit documents", in_parts=True)
def readmit(locked: LockedCollection, ids: Sequence[Any] | None) -> int:
    """Frees what was set aside, of these ids or of all that match; returns how many. They have no tries then."""
    which, hint = _which(locked, ids)
    freed = {"$unset": {locked.lock_field: ""}}
    return _update_all(locked, {"$and": [which, locked.laid_aside]}, freed, hint)
