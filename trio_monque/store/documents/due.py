"""Which documents may be claimed now, which later, and whether any is left. Nothing is written here.

A look returns ids, not claims: the guarded write in `claiming.py` decides who gets a document. So a look may be stale,
but it must not miss a free document for long, and must not return the same unclaimable documents again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final

import bson
from bson import DBRef, MinKey
from pymongo import ASCENDING
from pymongo import errors as driver
from pymongo.client_session import ClientSession

from ...locks_and_dead_letters import NEVER, LockState, state_of
from ...log import logger_of
from ..codec import OWN_OPTIONS
from ..driver.commands import BY_ID, at_one_moment, command
from .locked_collection import LockedCollection
from .rescuing import observe_in

logger = logger_of("store")

MOST_IN_A_BATCH: Final = 1000

MOST_UNREADABLE: Final = 100
"""The most documents with an unreadable lock that one look logs."""

_ID_ONLY: Final = {"_id": True}


@dataclass(frozen=True, slots=True)
class SeenIds:
    """What a look found.

    Attributes:
        ids: Candidates, in the order in which they are to be claimed.
        is_all: There are no others now.
        is_short: Without the passed-over ones, there were fewer than wanted. So a second query has read from the head.
    """

    ids: Sequence[Any]
    is_all: bool
    is_short: bool


@command("look for documents to claim", writes=False)
def survey(locked: LockedCollection, wanted: int, now: datetime, *, passed_over: int = 0) -> SeenIds:
    """Return documents that may be claimed now, at most as many as wanted, without the first `passed_over` ones.

    An instance passes over the head of the queue while others claim there (`engine/contention.py`).
    """
    # Only another claim shows whether the server accepts a lock in these documents now.
    if locked.refused.is_old():
        for document_id in locked.refused.to_look_at(MOST_IN_A_BATCH):
            locked.refused.discard(document_id)
    found = _look(locked, wanted, now, passed_over)
    # A document may have become free at the head since the look that counted those to be passed over.
    is_short = passed_over > 0 and len(found) < wanted
    if is_short:
        found = _look(locked, wanted, now, 0)
    is_all = len(found) < wanted
    # Only if nothing else is claimable: in the index, unreadable locks stand among claimable ones, and the query for
    # them would read past all of those.
    if is_all and locked.unreadable_looks.take():
        _look_for_unreadable(locked, now)
    return SeenIds(found, is_all, is_short)


def looked_for(locked: LockedCollection, now: datetime) -> dict[str, Any]:
    """Return the condition of the look: what may be claimed now."""
    # Every document meets this condition. It bounds the fields of `sort` in the index: then the server checks all
    # conditions on the keys, and reads only the documents that match.
    ordered = [{name: {"$gte": MinKey()}} for name, _ in locked.sort]
    passed_over = [locked.but(list(locked.refused))] if locked.refused else []
    return locked.meant(locked.claimable(now), *ordered, *passed_over)


def _look(locked: LockedCollection, wanted: int, now: datetime, skip: int) -> list[Any]:
    condition = looked_for(locked, now)
    options: dict[str, Any] = {"sort": list(locked.sort) or None, "skip": skip}
    try:
        cursor = locked.collection.find(condition, _ID_ONLY, limit=wanted, batch_size=wanted + 1, **options)
        ids = [document["_id"] for document in cursor]
    except driver.PyMongoError:
        raise
    except Exception:  # noqa: BLE001  # A decoder of the caller may raise anything.
        ids = None
    if ids is not None and not any(type(one) is DBRef for one in ids):
        return ids
    # The driver reads a DBPointer, a deprecated type, as a DBRef, too: no query could name that document.
    with locked.raw.find(condition, _ID_ONLY, batch_size=wanted + 1, **options) as found:
        named = (document for document in found if locked.is_nameable(document))
        return [locked.id_in(document) for document in islice(named, wanted)]


def _look_for_unreadable(locked: LockedCollection, now: datetime) -> None:
    found = locked.raw.find(locked.meant(locked.unreadable(now)), [locked.lock_field], limit=MOST_UNREADABLE)
    for document in found:
        # Only if the driver cannot read it, either: of two fields of one name, the server compares the first.
        if locked.lock_in(document) is None:
            locked.report_unreadable(document)


@command("look for the next document to claim", writes=False)
def next_due(locked: LockedCollection, after: datetime) -> datetime | None:
    """Return when the first document that may not be claimed at `after` becomes claimable; None if none does."""
    until = locked.at("until")
    later = locked.meant({**locked.waiting, until: {"$gt": after, "$lt": NEVER}})
    found = locked.raw.find_one(later, {"_id": False, until: True}, sort=[(until, ASCENDING)])
    lock = None if found is None else locked.lock_in(found)
    return None if lock is None else lock.until


@command("check whether any document is left", writes=False)
def is_anything_left(locked: LockedCollection, now: datetime) -> bool:
    """Return whether any document can be claimed, now or later, without a repair.

    A document that an instance of this library holds counts: its holder may die. A document that another program holds
    counts once its lock has expired. Dead letters, and documents with an unreadable lock, do not count.
    """
    # With two separate reads, a document might be held during the first, for free ones, and released before the second,
    # for held ones: both would miss it.
    return at_one_moment(locked.collection, partial(_is_anything_left, locked, now))


def _is_anything_left(locked: LockedCollection, now: datetime, session: ClientSession | None) -> bool:
    until = locked.at("until")
    later = locked.meant({**locked.waiting, until: {"$gt": now, "$lt": NEVER}})

    def is_any_unheld() -> bool:
        unheld = (looked_for(locked, now), later)
        return any(_is_any_named(locked, one, session) for one in unheld)

    if is_any_unheld():
        return True
    states = ((seen.lock, state_of(seen.lock, now)) for seen in observe_in(locked, session))
    if any(
        state is LockState.HELD or (state is LockState.FOREIGN and lock.until is not None and lock.until <= now)
        for lock, state in states
    ):
        return True
    # Without a snapshot, ask once more. This misses only a document that is released, claimed and released meanwhile.
    return session is None and is_any_unheld()


def _is_any_named(locked: LockedCollection, condition: Mapping[str, Any], session: ClientSession | None) -> bool:
    # A document whose id no query can name is never claimed, so it does not count. `find_one` ends the read at the
    # first document, and nearly always a query can name that.
    first = locked.raw.find_one(condition, _ID_ONLY, session=session)
    if first is None or locked.is_nameable(first):
        return first is not None
    with locked.raw.find(condition, _ID_ONLY, session=session) as found:
        return any(locked.is_nameable(document) for document in found)


@command("check whether documents still match", writes=False)
def still_matching(locked: LockedCollection, ids: Sequence[Any], by: str | None = None) -> Set[bytes]:
    """Return the keys of the documents among `ids` that match the filter and are free, or held by the instance `by`."""
    unheld = {locked.at("by"): {"$in": [None, by]}}
    found = locked.locks.find(locked.meant(locked.ids(ids), unheld), _ID_ONLY, hint=BY_ID)
    return {bson.encode({"": document["_id"]}, codec_options=OWN_OPTIONS) for document in found}
