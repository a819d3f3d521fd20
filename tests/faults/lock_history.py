"""Each hold on a document, from every change that the server made to it. Knows no library.

What the field `lock` of a document says: the document is free if it is absent, None, or its `by` is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from .history import Change, Document

LOCK: Final = "lock"
FOR_EVER: Final = datetime(8000, 1, 1, tzinfo=UTC)
"""A document that is free from later on than this is set aside."""


@dataclass(frozen=True)
class Hold:
    """One hold on a document, from the write that took it to the write that ended it.

    Attributes:
        by, token: The holder's; programs that know only `by` and `until` have no token.
        tries: That had failed or died before.
        taken: The write.
        beat: The last one that was a sign of life.
        ended: The write; None while it is held.
        how: "finished", "unlocked", "freed", "counted", "set aside" or "replaced"; empty while it is held.
    """

    document: str
    by: str
    token: str | None
    tries: int
    taken: Change
    beat: Change
    ended: Change | None = None
    how: str = ""

    def __str__(self) -> str:
        how = "held" if self.ended is None else f"{self.how} at {self.ended.at}"
        return f"document {self.document}, {self.tries} tries, {self.token or self.by} from {self.taken.at}, {how}"

    @property
    def lease(self) -> float:
        """Seconds, by what the holder wrote; 0 where it does not say."""
        return float(3 * lock_of(self.taken.after).get("every", 0) / 1000)


def lock_of(document: Document | None) -> Mapping[str, Any]:
    """Nothing where there is none, or none that can be read."""
    value = None if document is None else document.get(LOCK)
    return value if isinstance(value, Mapping) else {}


def rest_of(document: Document | None) -> Mapping[str, Any]:
    """All but the lock."""
    return {name: value for name, value in (document or {}).items() if name != LOCK}


def tries_of(document: Document | None) -> int:
    return int(lock_of(document).get("tries", 0))


def holder_of(document: Document | None) -> tuple[str, str | None] | None:
    lock = lock_of(document)
    return None if lock.get("by") is None else (lock["by"], lock.get("token"))


def holds(changes: Sequence[Change]) -> Iterator[Hold]:
    """All that there were, in the order in which they ended; those that are held at the end come last.

    But for locks that were inserted with their documents.
    """
    held: dict[str, Hold] = {}
    for change in changes:
        before, after = holder_of(change.before), holder_of(change.after)
        if change.job in held and before != after:
            yield replace(held.pop(change.job), ended=change, how=_how_ended(change))
        if after is None or change.before is None:
            continue
        if before != after:
            held[change.job] = Hold(change.job, *after, tries_of(change.after), change, change)
        elif change.job in held and lock_of(change.before).get("until") != lock_of(change.after).get("until"):
            held[change.job] = replace(held[change.job], beat=change)
    yield from held.values()


def _how_ended(change: Change) -> str:
    if holder_of(change.after) is not None:
        return "replaced"
    if rest_of(change.before) != rest_of(change.after):
        return "finished"
    if LOCK not in (change.after or {}):
        return "unlocked"
    if tries_of(change.after) == tries_of(change.before):
        return "freed"
    return "set aside" if lock_of(change.after)["until"] > FOR_EVER else "counted"
