"""Renewals of locks in documents: as for jobs (`store/jobs/leases.py`), with `until` as the sign of life.

A renewal repeats the whole fence (`locks_and_dead_letters.Fence`): the holder, the token, and the `until` values that
this claim has sent. A program that knows only `by` and `until` may take over an expired lock, and leave our token in
it. If a renewal compared the holder or the token alone, it might extend the lock of that program, or of a later claim
of ours, and two would handle the document.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from pymongo import UpdateMany, UpdateOne

from ...locks_and_dead_letters import Fence, read_lock
from ...log import logger_of
from ..driver.commands import BY_ID, causal_session, command, in_chunks
from ..driver.types import ClientSession
from .locked_collection import LockedCollection
from .settling import send

logger = logger_of("store")

# Ten thousand in one statement keep the server busy for a quarter of a second, and all other commands wait.
MOST_IN_ONE_STATEMENT: Final = 1000


@command("renew claims", in_parts=True)
def renew(locked: LockedCollection, held: Sequence[tuple[Fence, Sequence[Any]]], until: datetime) -> Set[bytes]:
    """Renew the locks that these claims hold; return the keys of the documents that they no longer hold.

    A document whose renewal the server refuses counts as no longer held: its holder cannot keep it. `until` must be
    later than in the call before.
    """
    lost: set[bytes] = set()
    each = [(fence, document_id) for fence, ids in held for document_id in ids]
    # `$max`, and an `until` that grows: an observer must see a change also if the server's clock has stepped back.
    # Otherwise it would take a live holder for dead.
    renewal = {"$max": {locked.at("until"): until}}
    with causal_session(locked.collection) as session:
        for group in in_chunks(each, MOST_IN_ONE_STATEMENT):
            by_claim = groupby(group, key=itemgetter(0))
            requests = [
                UpdateMany({**locked.ids([one for _, one in same]), **locked.fenced(fence)}, renewal, hint=BY_ID)
                for fence, same in by_claim
            ]
            sent = send(locked, requests, session)
            # A statement stops at the first refused document, and would leave the locks behind it to expire.
            if sent.refused:
                lost |= _refused_alone(locked, group, renewal, session)
            # The count does not show which are lost. And after a refusal, it is too low.
            if sent.matched < len(group):
                lost |= _not_held(locked, group, until, session)
    return lost


def _refused_alone(
    locked: LockedCollection, group: Sequence[tuple[Fence, Any]], renewal: dict[str, Any], session: ClientSession
) -> set[bytes]:
    """Renew each claim by a statement of its own; return the keys of the refused documents."""
    each = [UpdateOne({**locked.one(one), **locked.fenced(fence)}, renewal, hint=BY_ID) for fence, one in group]
    refused = send(locked, each, session).refused_among([document_id for _, document_id in group])
    for document_id, refusal in refused:
        logger.error("the server refused to renew the claim on document %r: %s", document_id, refusal.message)
    return {locked.key_of(document_id) for document_id, _ in refused}


def _not_held(
    locked: LockedCollection, group: Sequence[tuple[Fence, Any]], until: datetime, session: ClientSession
) -> set[bytes]:
    found = locked.locks_by_majority([document_id for _, document_id in group], session)
    lost = set()
    for fence, document_id in group:
        key = locked.key_of(document_id)
        lock = read_lock(found.get(key))
        # The fence, with the `until` of this renewal. By majority: on a primary that is cut off, a local read would
        # show locks that another instance has taken.
        untils = {_in_milliseconds(moment) for moment in (*fence.untils, until)}
        if lock is None or (lock.by, lock.token) != (fence.by, fence.token) or lock.until not in untils:
            lost.add(key)
    return lost


def _in_milliseconds(moment: datetime) -> datetime:
    """Return the moment as the database keeps it."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
