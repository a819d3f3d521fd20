"""Who holds documents, and how a dead holder's locks are taken away."""

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
    """A document that somebody holds.

    Attributes:
        id: Its `_id`.
        key: What tells it from all others: see `LockedCollection.key_of`.
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
    """All documents that somebody holds, by whatever program; a lock that nobody can read is left out, and told."""
    return observe_in(locked)


def observe_in(locked: LockedCollection, session: ClientSession | None = None) -> Sequence[SeenLock]:
    seen = []
    condition = locked.meant(locked.held)
    for document in locked.raw.find(condition, [locked.lock_field], batch_size=MOST_IN_A_BATCH, session=session):
        lock = locked.lock_in(document)
        if lock is None or lock.by is None:  # Where it is neither, it has become free since the server looked.
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
