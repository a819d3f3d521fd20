"""The locks that instances hold, and how those of a dead holder are taken away (rescued).

Instance B has seen the same lock for a whole lease and takes its holder A for dead. Between B's look and its write, A
may renew, or C may rescue the document and claim it. So the write repeats the lock as B saw it: holder, token and
`until`. If any of them changed, the write does not match. Without `until`, B would take a renewed lock away; without
the token, a later claim of the same holder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final

from pymongo import UpdateOne

from ...document_lock import Lock, shortened
from ...log import logger_of
from ..commands import BY_ID, causal_session, command
from ..types import ClientSession
from .locked_collection import LockedCollection, as_stored
from .settling import send

logger = logger_of("store")

MOST_IN_A_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class SeenLock:
    """A document that an instance or another program holds.

    Attributes:
        id: Its `_id`.
        key: Its identity: see `LockedCollection.key_of`.
        lock: What its lock says.
    """

    id: Any
    key: bytes
    lock: Lock


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


@command("look at the locks", writes=False)
def observe(locked: LockedCollection) -> Sequence[SeenLock]:
    """Return all documents that any program holds; an unreadable lock is left out, and logged."""
    return observe_in(locked)


def observe_in(locked: LockedCollection, session: ClientSession | None = None) -> Sequence[SeenLock]:
    seen = []
    condition = locked.meant(locked.held)
    for document in locked.raw.find(condition, [locked.lock_field], batch_size=MOST_IN_A_BATCH, session=session):
        lock = locked.lock_in(document)
        if lock is None or lock.by is None:  # Neither: it has become free since the server looked.
            if lock is None:
                locked.report_unreadable(document)
            continue
        if not locked.is_nameable(document):
            continue
        document_id = locked.id_in(document)
        seen.append(SeenLock(document_id, locked.key_of(document_id), lock))
    return seen


@command("take dead claims away", in_parts=True)
def rescue(locked: LockedCollection, dead: Sequence[Takeaway]) -> Set[bytes]:
    """Take away those of the locks that are as they were observed; return the keys of those documents.

    May be called again with the same after any transient error: the result includes what the first call took.
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
    # A token that is not a string was read as none. An array of strings has the type of its elements as well.
    return {**as_seen, "$nor": [{locked.at("token"): {"$type": "string", "$not": {"$type": "array"}}}]}
