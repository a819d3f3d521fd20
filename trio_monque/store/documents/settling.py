"""The ends of claims on documents, written in groups: the result and the end of the lock in one fenced write each.

`document_results.py` makes what is sent. Nothing is left behind in a document but what its ending says: no receipt. So
where not all matched, what became of each is concluded from the locks that are there afterwards, and what that does
not tell counts as gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pymongo import UpdateMany, UpdateOne
from pymongo import errors as driver
from pymongo.client_session import ClientSession

from ...document_lock import read_lock
from ..commands import BulkResult, bulk_write, causal_session, command
from ..driver_errors import is_about_document
from .locked_collection import LockedCollection, as_stored
from .settling_statements import EncodedUpdate, Ending, encoded_update, grouped, request_of

__all__ = [
    "GONE",
    "MOVED",
    "WRITTEN",
    "EncodedUpdate",
    "Ending",
    "Fate",
    "Settled",
    "encoded_update",
    "send",
    "settle",
]


class Fate(Enum):
    """What became of an ending."""

    WRITTEN = auto()
    MOVED = auto()  # Nothing was written, and the lock still bears the claim: ask again with what was sent meanwhile.
    REFUSED = auto()  # The server will never accept this update of this document; the claim still holds.
    GONE = auto()  # The lock was not the claim's any more, or nobody can tell.


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of one ending.

    Attributes:
        fate: In a word.
        error: What the server has against it, where it is REFUSED.
    """

    fate: Fate
    error: str | None = None


WRITTEN: Final = Settled(Fate.WRITTEN)
MOVED: Final = Settled(Fate.MOVED)
GONE: Final = Settled(Fate.GONE)


@command("settle documents", in_parts=True)
def settle(locked: LockedCollection, endings: Sequence[Ending]) -> Sequence[Settled]:
    """Writes the endings, each of another document; tells what became of each.

    May be called again with the same after any transient error. An ending with a lock that was written before is told
    as WRITTEN; of one without, nobody can tell any more.
    """
    settled: list[Settled] = [GONE] * len(endings)
    # One session for the writes and the read behind them: the read sees what the writes left, on any primary.
    with causal_session(locked.collection) as session:
        # The two kinds apart: how many of a kind matched is what the conclusions are drawn from.
        for is_unlocked in (True, False):
            places = [place for place, one in enumerate(endings) if (one.lock is None) is is_unlocked]
            if places:
                told = _settle(locked, [endings[place] for place in places], session)
                for place, one in zip(places, told, strict=True):
                    settled[place] = one
    return settled


def _settle(locked: LockedCollection, endings: Sequence[Ending], session: ClientSession) -> Sequence[Settled]:
    groups = grouped(locked, endings)
    sent = send(locked, [request_of(locked, group) for group in groups], session)
    if sent.matched == len(endings):
        return [WRITTEN] * len(endings)
    refused = {id(groups[place][0]): one.message for place, one in sent.refused.items() if len(groups[place]) == 1}
    # A statement stops at the first document that is refused: what it was for is sent again, each alone, or one
    # document would keep its neighbours from their ends.
    apart = [one for place in sent.refused if len(groups[place]) > 1 for one in groups[place]]
    sent_apart = send(locked, [request_of(locked, [one]) for one in apart], session)
    refused |= {id(apart[place]): one.message for place, one in sent_apart.refused.items()}
    found = locked.locks_by_majority([one.id for one in endings], session)
    is_apart = {id(one) for one in apart}
    parts = [
        _Part(
            [one for one in endings if id(one) not in is_apart and id(one) not in refused],
            sent.matched,
            sent.was_broken_off,
        ),
        _Part([one for one in apart if id(one) not in refused], sent_apart.matched, was_stopped=True),
    ]
    told = {place: Settled(Fate.REFUSED, reason) for place, reason in refused.items()}
    for part in parts:
        told |= _concluded(part, {id(one): _as_found(locked, one, found) for one in part.endings})
    return [told[id(one)] for one in endings]


@dataclass(frozen=True, slots=True)
class _Part:
    """Endings that were sent together, of which so many matched; before, what was for some may have been stopped."""

    endings: Sequence[Ending]
    matched: int
    was_stopped: bool = False


def _as_found(locked: LockedCollection, ending: Ending, found: Mapping[bytes, object]) -> Settled | None:
    """What became of it by what is there now; None where there is no lock, as there was to be none."""
    key = locked.key_of(ending.id)
    if key not in found:
        return GONE
    lock = found[key]
    if lock is None and ending.lock is None:
        return None
    if ending.lock is not None and lock == as_stored(ending.lock):
        return WRITTEN
    held = read_lock(lock)
    if held is not None and (held.by, held.token) == (ending.fence.by, ending.fence.token):
        return MOVED
    return GONE


def _concluded(part: _Part, seen: Mapping[int, Settled | None]) -> Mapping[int, Settled]:
    """Whether it was these writes that have unset the locks that are not there.

    There must be as many as matched: otherwise some may be another's doing, an earlier attempt's or that of a later
    holder who has ended as well. Of a statement that was stopped the server does not say how many documents it had
    written before: where all that it was for have no lock now, it and its repetition have written them.
    """
    if part.matched == len(part.endings):
        return dict.fromkeys(seen, WRITTEN)  # Also where somebody else has taken one already.
    unlocked = sum(told is None for told in seen.values())
    is_by_us = unlocked == part.matched or (part.was_stopped and unlocked == len(part.endings))
    return {one: told or (WRITTEN if is_by_us else GONE) for one, told in seen.items()}


def send(locked: LockedCollection, requests: Sequence[UpdateOne | UpdateMany], session: ClientSession) -> BulkResult:
    """Sends the statements; what the server refuses of them is in the result."""
    return bulk_write(locked.locks, requests, "write to documents", session, is_refusal=_is_about_a_document)


def _is_about_a_document(error: driver.OperationFailure) -> bool:
    # What it cannot even read, nested too deeply or a stage that it does not know, it refuses with the whole command
    # that it is in, having done perhaps what stands before it there.
    return is_about_document(error.code) and not error.has_error_label("RetryableWriteError")
