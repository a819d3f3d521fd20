"""Looks at the locks that are held, and takes them from holders that are dead (rescues).

Instance B has seen the same lock for a whole lease and takes its holder A for dead. Between B's look and B's write, A
may renew the lock, or C may rescue the document and claim it. So the write repeats the lock as B saw it: holder, token
and `until`. If one of these has changed, the write does not match. Without `until`, B would take away a lock that A has
renewed; without the token, the lock of a later claim by A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from pymongo import UpdateOne

from ...locks_and_dead_letters import Lock, shortened
from ...log import logger_of
from ..driver.by_halves import TIME_OF_A_PART, sent_by_halves
from ..driver.commands import BY_ID, causal_session, command
from ..driver.types import ClientSession
from .locked_collection import LockedCollection, as_stored
from .settling import send

logger = logger_of("store")

MOST_IN_A_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class SeenLock:
    """A document that an instance or another program holds.

    Attributes:
        id: The `_id`.
        key: The `_id` as BSON: see `LockedCollection.key_of`.
        lock: The lock as it was read.
    """

    id: Any
    key: bytes
    lock: Lock


@dataclass(frozen=True, slots=True)
class Takeaway:
    """A lock to take from its holder.

    Attributes:
        id: The `_id` of the document.
        seen: The lock as it was observed.
        becomes: The lock to write instead.
    """

    id: Any
    seen: Lock
    becomes: Mapping[str, Any]


@command("read the locks", writes=False)
def observe(locked: LockedCollection, limit: int = 0) -> Sequence[SeenLock]:
    """Return the documents that any program holds, at most `limit`, or all for 0.

    Those with an unreadable lock are logged and left out.
    """
    return observe_in(locked, limit=limit)


def observe_in(locked: LockedCollection, session: ClientSession | None = None, *, limit: int = 0) -> Sequence[SeenLock]:
    """As `observe`, as a part of another command."""
    seen = []
    condition = locked.meant(locked.held)
    fields = [locked.lock_field]
    for document in locked.raw.find(condition, fields, batch_size=MOST_IN_A_BATCH, limit=limit, session=session):
        lock = locked.lock_in(document)
        if lock is None:
            locked.report_unreadable(document)
            continue
        # The server has matched a holder that the driver does not read: the document may have the field `by` twice.
        if lock.by is None or not locked.is_nameable(document):
            continue
        document_id = locked.id_in(document)
        seen.append(SeenLock(document_id, locked.key_of(document_id), lock))
    return seen


@command("remove dead claims", in_parts=True)
def rescue(locked: LockedCollection, dead: Sequence[Takeaway]) -> Set[bytes]:
    """Take away the locks that are still as they were observed; return the keys of those documents.

    May be called again with the same arguments after any transient error: the result then includes what the first call
    took away.
    """
    with causal_session(locked.collection) as session:
        sent = send(locked, [_taking(locked, one) for one in dead], session)
        matched, refused = sent.matched, sent.refused
        if refused:
            # A full document has no room for the error, or for a long one. If it kept the lock of the dead holder, no
            # attempt would be counted, and the document would be claimed without end.
            dead = [_with_short_error(one) if place in refused else one for place, one in enumerate(dead)]
            again = [dead[place] for place in refused]
            sent_again = send(locked, [_taking(locked, one) for one in again], session)
            matched += sent_again.matched
            for one, refusal in sent_again.refused_among(again):
                logger.error("the server refused to remove the lock of document %r: %s", one.id, refusal.message)
        # Each lock was still as it was observed: all are taken away.
        if matched == len(dead):
            return {locked.key_of(one.id) for one in dead}
        # A lock that did not match was renewed, or is gone, or an earlier call has taken it away and its answer was
        # lost. The lock that is there now shows which; by majority, so that no election brings the old one back.
        found = locked.locks_by_majority([one.id for one in dead], session)
    # An earlier call may have written the short error, too.
    return {
        key
        for one in dead
        if found.get(key := locked.key_of(one.id))
        in (as_stored(one.becomes), as_stored(_with_short_error(one).becomes))
    }


def rescue_in_parts(locked: LockedCollection, dead: Sequence[Takeaway]) -> Mapping[bytes, bool]:
    """Take away what can be taken, after `rescue` was not answered in time: see `by_halves.py`.

    Return for each document whose answer is known, by its key, whether its lock was taken away.
    """
    quick = replace(locked, operation_timeout=TIME_OF_A_PART)
    answers: dict[bytes, bool] = {}
    for part, taken in sent_by_halves(dead, partial(rescue, quick)):
        answers |= {key: key in taken for key in (locked.key_of(one.id) for one in part)}
    return answers


def _taking(locked: LockedCollection, one: Takeaway) -> UpdateOne:
    guard = {**locked.one(one.id), **_as_seen(locked, one.seen)}
    return UpdateOne(guard, {"$set": {locked.lock_field: one.becomes}}, hint=BY_ID)


def _with_short_error(one: Takeaway) -> Takeaway:
    error = one.becomes.get("error")
    return replace(one, becomes={**one.becomes, "error": shortened(error)}) if isinstance(error, str) else one


def _as_seen(locked: LockedCollection, seen: Lock) -> dict[str, Any]:
    """Return the condition that the lock is as it was seen: see the top of this file."""
    as_seen = {locked.at("by"): seen.by, locked.at("until"): seen.until}
    if seen.token is not None:
        return {**as_seen, locked.at("token"): seen.token}
    # `read_lock` reads a token that is not a string as None. To the server, an array of strings is of type string, too.
    return {**as_seen, "$nor": [{locked.at("token"): {"$type": "string", "$not": {"$type": "array"}}}]}
