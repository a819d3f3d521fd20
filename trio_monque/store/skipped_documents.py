"""Documents that no scheduler can run: met and logged once, and skipped until they are repaired."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Final

import bson
from bson import ObjectId
from bson.errors import BSONError

from ..clock import virtual_time
from ..jobs.cursors import Anchor

MOST_REMEMBERED: Final = 50_000
"""Documents in one list: 20 MB. The others are met again and again, at a bounded rate."""

LOOK_AGAIN_AFTER: Final = 60.0
"""Seconds after which a skipped document is looked at again: it may have been repaired."""

LONGEST_PROBLEM: Final = 500
"""Characters of what is wrong with one."""

MOST_NEWS: Final = 100
"""Documents that are logged one by one within that time. The others are counted."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One document: its id, what is wrong with it, and the name of the jobs among which it was met."""

    document_id: object
    problem: str
    name: str | None


class SkippedDocuments(Set[object]):
    """The ids of such documents, of whatever type, and what was wrong with each. Bounded.

    Shared by threads: each change is one operation on a dict.
    """

    def __init__(self) -> None:
        self._entries: dict[object, _Entry] = {}
        # By None what has no name that is a text: a look for any name may meet it.
        self._by_name: dict[str | None, dict[object, object]] = {}
        self._looked_at = 0.0
        self._news = 0
        self._news_since = 0.0
        self._unlogged = 0

    def __contains__(self, document_id: object) -> bool:
        return _key(document_id) in self._entries

    def __iter__(self) -> Iterator[object]:
        return iter([one.document_id for one in tuple(self._entries.values())])

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, name: str) -> Sequence[object]:
        """Return those that a look for jobs of this name may meet."""
        if not self._entries:
            return ()
        return [one for each in (name, None) for one in tuple(self._by_name.get(each, {}).values())]

    def count(self, name: str) -> int:
        """How many these are."""
        if not self._entries:
            return 0
        return len(self._by_name.get(name, ())) + len(self._by_name.get(None, ()))

    def problem_of(self, document_id: object) -> str | None:
        """What is wrong with it, as far as is known."""
        entry = self._entries.get(_key(document_id))
        return None if entry is None else entry.problem

    def add(self, document_id: object, problem: str = "", name: str | None = None) -> bool:
        """Add one; return whether it is new, and is to be logged: see `take_unlogged`."""
        key = _key(document_id)
        known = self._entries.get(key)
        if known is None and not self._entries:
            self._looked_at = steady_moment()
        if known is not None or len(self._entries) < MOST_REMEMBERED:
            self.discard(document_id)
            self._entries[key] = _Entry(document_id, problem[:LONGEST_PROBLEM], name)
            self._by_name.setdefault(name, {})[key] = document_id
        return (known is None or known.problem != problem[:LONGEST_PROBLEM]) and self._may_log()

    def _may_log(self) -> bool:
        if abs(steady_moment() - self._news_since) >= LOOK_AGAIN_AFTER:
            self._news, self._news_since = 0, steady_moment()
        self._news += 1
        self._unlogged += self._news > MOST_NEWS
        return self._news <= MOST_NEWS

    def take_unlogged(self) -> int:
        """Return how many were new and not logged one by one, since the last call."""
        unlogged, self._unlogged = self._unlogged, 0
        return unlogged

    def discard(self, document_id: object) -> None:
        key = _key(document_id)
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._by_name.get(entry.name, {}).pop(key, None)

    def forget(self, name: str) -> None:
        """Forget all of a name: those that are still broken are met again."""
        for key in self._by_name.pop(name, {}):
            self._entries.pop(key, None)

    def is_old(self) -> bool:
        """Whether it is time to look at them again."""
        # Both ways: a client may have been used in another run, with a clock of its own.
        return bool(self._entries) and abs(steady_moment() - self._looked_at) >= LOOK_AGAIN_AFTER

    def to_look_at(self, most: int) -> list[object]:
        """Return those that were looked at longest ago, and count them as looked at: the next call returns others."""
        self._looked_at = steady_moment()
        found = []
        for key in list(islice(tuple(self._entries), most)):
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._entries[key] = entry
                found.append(entry.document_id)
        return found

    def look_on(self) -> None:
        """Look at the next ones without a pause: some of the last ones were repaired."""
        self._looked_at = steady_moment() - LOOK_AGAIN_AFTER


class Cooldown:
    """Limits how often something is done: at once, and not again before a pause has passed."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._last: float | None = None

    def take(self) -> bool:
        """Whether it is time; then it counts as done."""
        moment = steady_moment()
        # Both ways, as above.
        if self._last is not None and abs(moment - self._last) < self._pause:
            return False
        self._last = moment
        return True


@dataclass(slots=True)
class PagingPlace:
    """How far the looks at the due jobs of one name have come, past skipped documents.

    Attributes:
        ahead: Up to here, everything was skipped when it was seen. The first look begins behind this place.
        second: How far the second look has come, at what lies before `ahead`: a job may have come there since.
        met: How many skipped documents this second look has met.
        is_asked_again: Something was announced since the second look began: one further second look must follow.
    """

    ahead: Anchor | None = None
    second: Anchor | None = None
    met: int = 0
    is_asked_again: bool = False


def can_be_named(document_id: object) -> bool:
    """Whether a query finds a document by this id, as it was read.

    Not where bytes that are not text were replaced, or a pointer, a type of old, was read as a DBRef.
    """
    return type(document_id) is ObjectId or not any(sign in repr(document_id) for sign in ("\ufffd", "DBRef("))


def _key(document_id: object) -> object:
    """Two ids that MongoDB tells apart may be equal to Python, and not every one is hashable."""
    if type(document_id) is ObjectId:
        return document_id
    try:
        return bson.encode({"": document_id})
    except (BSONError, ValueError, OverflowError):
        return repr(document_id)


def steady_moment() -> float:
    virtual = virtual_time()
    return time.monotonic() if virtual is None else virtual.now().timestamp()
