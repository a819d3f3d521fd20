"""The ends of claims on documents, written in groups: the result and the end of the lock in one fenced write each.

`settling_statements.py` makes the statements. The documents are the caller's: a settlement leaves no receipt in them.
If not all endings matched, this file reads the locks as a majority has them, in the session of the writes. The lock
that is there now shows what became of an ending:

- The lock is the one that the ending writes: WRITTEN, by this sending or an earlier one whose answer was lost.
- The lock still has the holder and the token of the claim, and another `until`: MOVED. A renewal came first, and the
  caller sends the ending again with the newer fence. Without this, a renewal in flight would look like a lost claim.
- There is no lock, as the ending leaves it. Instance B may have claimed the document after the lease, and ended it as
  well: "no lock" alone does not prove our write. `_concluded` compares how many documents have no lock now with how
  many of our writes matched. This proves WRITTEN or GONE. If it proves neither, the result is GONE with
  `may_be_written`; the caller then decides by whether our lease still excluded others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pymongo import UpdateMany, UpdateOne
from pymongo import errors as driver
from pymongo.client_session import ClientSession

from ...locks_and_dead_letters import read_lock
from ..driver.commands import BulkAnswer, bulk_write, causal_session, command
from ..driver.driver_errors import is_about_document
from .locked_collection import LockedCollection, as_stored
from .settling_statements import DocumentWrite, EncodedUpdate, encoded_update, grouped, request_of

__all__ = [
    "GONE",
    "MOVED",
    "UNPROVEN",
    "WRITTEN",
    "DocumentFate",
    "DocumentWrite",
    "EncodedUpdate",
    "SettledDocument",
    "encoded_update",
    "send",
    "settle",
]


class DocumentFate(Enum):
    """What became of an ending."""

    WRITTEN = auto()
    MOVED = auto()  # Nothing was written, and the claim still holds the lock, with a later `until`: send it again.
    REFUSED = auto()  # The server will never accept this update of this document; the claim still holds.
    GONE = auto()  # The claim no longer holds the lock, and no read proves that this ending was written.


@dataclass(frozen=True, slots=True)
class SettledDocument:
    """What became of one ending.

    Attributes:
        fate: What became of it.
        error: The server's reason, where it is REFUSED.
        may_be_written: It is GONE, and either this claim or a later holder has ended it. The database does not show
            which.
    """

    fate: DocumentFate
    error: str | None = None
    may_be_written: bool = False


WRITTEN: Final = SettledDocument(DocumentFate.WRITTEN)
MOVED: Final = SettledDocument(DocumentFate.MOVED)
GONE: Final = SettledDocument(DocumentFate.GONE)
UNPROVEN: Final = SettledDocument(DocumentFate.GONE, may_be_written=True)


@command("settle documents", in_parts=True)
def settle(locked: LockedCollection, endings: Sequence[DocumentWrite]) -> Sequence[SettledDocument]:
    """Write the endings, each of another document; return what became of each.

    May be called again with the same endings after any transient error. If the first call wrote an ending that leaves a
    lock, the second returns WRITTEN. If the ending leaves no lock, the second call returns GONE: it cannot find out.
    """
    settled: list[SettledDocument] = [GONE] * len(endings)
    with causal_session(locked.collection) as session:
        # Endings that leave a lock, and those that leave none, go apart: for the latter, counts decide.
        for is_unlocked in (True, False):
            places = [place for place, one in enumerate(endings) if (one.lock is None) is is_unlocked]
            if places:
                results = _settle(locked, [endings[place] for place in places], session)
                for place, one in zip(places, results, strict=True):
                    settled[place] = one
    return settled


def _settle(
    locked: LockedCollection, endings: Sequence[DocumentWrite], session: ClientSession
) -> Sequence[SettledDocument]:
    groups = grouped(locked, endings)
    sent = send(locked, [request_of(locked, group) for group in groups], session)
    if sent.matched == len(endings):
        return [WRITTEN] * len(endings)
    # By identity: an ending may hold an unhashable `_id`.
    refused_groups = sent.refused_among(groups)
    refused = {id(group[0]): refusal.message for group, refusal in refused_groups if len(group) == 1}
    # A statement stops at the first document that the server refuses. Its endings go again, each alone: otherwise one
    # full document would keep its neighbours from their ends, and they would be handled again.
    apart = [one for group, _ in refused_groups if len(group) > 1 for one in group]
    sent_apart = send(locked, [request_of(locked, [one]) for one in apart], session)
    refused |= {id(one): refusal.message for one, refusal in sent_apart.refused_among(apart)}
    found = locked.locks_by_majority([one.id for one in endings], session)
    is_apart = {id(one) for one in apart}
    parts = [
        _PartOfBatch(
            [one for one in endings if id(one) not in is_apart and id(one) not in refused],
            sent.matched,
            was_stopped=sent.was_broken_off,
        ),
        _PartOfBatch([one for one in apart if id(one) not in refused], sent_apart.matched, was_stopped=True),
    ]
    results = {one: SettledDocument(DocumentFate.REFUSED, reason) for one, reason in refused.items()}
    for part in parts:
        results |= _concluded(part, {id(one): _as_found(locked, one, found) for one in part.endings})
    return [results[id(one)] for one in endings]


@dataclass(frozen=True, slots=True)
class _PartOfBatch:
    """Endings whose statements were sent together.

    Attributes:
        endings: Those that the server did not refuse.
        matched: How many of them matched, as the server has counted.
        was_stopped: An earlier statement may have written some of them, and the server has not counted those.
    """

    endings: Sequence[DocumentWrite]
    matched: int
    was_stopped: bool = False


def _as_found(locked: LockedCollection, ending: DocumentWrite, found: Mapping[bytes, object]) -> SettledDocument | None:
    """Return what the lock that is there now proves; None if there is none, and the ending leaves none."""
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


def _concluded(part: _PartOfBatch, seen: Mapping[int, SettledDocument | None]) -> Mapping[int, SettledDocument]:
    """Decide whether our writes have removed the locks that are not there now, or those of a later holder B have.

    `seen` has what each lock proves by itself (`_as_found`); None for a document without a lock.
    """
    # Each write matched, and each is of another document: all are ours. B may have claimed one since, after our write.
    if part.matched == len(part.endings):
        return dict.fromkeys(seen, WRITTEN)
    unlocked = sum(result is None for result in seen.values())
    # A document that we wrote has no lock now, or B has claimed it since, and it is GONE. If none is GONE, all that we
    # wrote are among the unlocked ones. If the counts are equal, too, the unlocked ones are exactly those that we
    # wrote. With one GONE, equal counts prove nothing: B may have claimed one of ours, and ended one of the others.
    if unlocked == part.matched and GONE not in seen.values():
        without_lock = WRITTEN
    # More are unlocked than we wrote: B has removed at least one lock, and nothing shows which. All count as lost: a
    # result that was not written must not be reported as written. The reverse does less harm. Or an earlier sending of
    # ours has removed them, whose answer was lost: the caller remembers that one (`may_be_written`).
    elif unlocked > part.matched and not part.was_stopped:
        without_lock = GONE
    # A statement that was stopped may have written documents that the server did not count. The rest may be B's.
    else:
        without_lock = UNPROVEN
    return {one: result or without_lock for one, result in seen.items()}


def send(locked: LockedCollection, requests: Sequence[UpdateOne | UpdateMany], session: ClientSession) -> BulkAnswer:
    """Send the statements; the result has what the server refuses."""
    return bulk_write(locked.locks, requests, "write to documents", session, is_refusal=_is_about_a_document)


def _is_about_a_document(error: driver.OperationFailure) -> bool:
    # A statement that the server cannot parse (nested too deeply, or an unknown stage) fails the whole command. The
    # server may have executed the statements before it.
    return is_about_document(error.code) and not error.has_error_label("RetryableWriteError")
