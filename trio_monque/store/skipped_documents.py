"""Documents that no scheduler can run: met and logged once, and skipped until they are repaired."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final

import bson
from bson import ObjectId
from bson.errors import BSONError

from ..clock import virtual_time
from ..jobs.cursors import Anchor

MOST_REMEMBERED: Final = 50_000
"""Documents in one list: 20 MB. The looks meet the others again and again, at a bounded rate."""

LOOK_AGAIN_AFTER: Final = 60.0
"""Seconds after which a skipped document is looked at again: it may have been repaired."""

LONGEST_PROBLEM: Final = 500
"""Characters of the text that says what is wrong with a document."""

MOST_NEWS: Final = 100
"""Documents that are logged one by one within `LOOK_AGAIN_AFTER`. The others are counted."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One document: its id, what is wrong with it, and the name of the jobs among which a look met it."""

    document_id: object
    problem: str
    name: str | None


class SkippedDocuments(Set[object]):
    """The ids of skipped documents, of any type, and what is wrong with each. Bounded.

    Threads share it. A change concerns two dicts, so it is made under the lock. Without it, a document that is added
    while another thread discards it could stay in the second dict only: every look would leave it out, and no look
    would ask again whether it was repaired. Reads take no lock: each looks into one dict once.

    Attributes:
        entries: The documents by a key of their ids; mostly there are none.
    """

    def __init__(self) -> None:
        # Never held while virtual time is asked for: that may need the event loop, and the event loop the lock.
        self._lock = threading.Lock()
        self.entries: dict[object, _Entry] = {}
        # Under None are documents whose name is not text, or that have two names: a look for any name may meet them.
        self._by_name: dict[str | None, dict[object, object]] = {}
        self._looked_at = 0.0
        self._news = 0
        self._news_since = 0.0
        self._unlogged = 0

    def __contains__(self, document_id: object) -> bool:
        return _key(document_id) in self.entries

    def __iter__(self) -> Iterator[object]:
        return iter([one.document_id for one in tuple(self.entries.values())])

    def __len__(self) -> int:
        return len(self.entries)

    def of(self, name: str) -> Sequence[object]:
        """Return the documents that a look for jobs of this name may meet."""
        if not self.entries:
            return ()
        return [one for each in (name, None) for one in tuple(self._by_name.get(each, {}).values())]

    def count(self, name: str) -> int:
        """Return how many documents a look for jobs of this name may meet."""
        if not self.entries:
            return 0
        return len(self._by_name.get(name, ())) + len(self._by_name.get(None, ()))

    def problem_of(self, document_id: object) -> str | None:
        """Return what is wrong with the document; None if it is not known as broken."""
        entry = self.entries.get(_key(document_id))
        return None if entry is None else entry.problem

    def problems(self) -> Sequence[tuple[str | None, str]]:
        """Return the name and the problem of each document. In any thread."""
        return [(entry.name, entry.problem) for entry in tuple(self.entries.values())]

    def add(self, document_id: object, problem: str = "", name: str | None = None) -> bool:
        """Add a document; return whether to log it: it is new, or something else is wrong, and few others are new."""
        key, now = _key(document_id), steady_moment()
        with self._lock:
            known = self.entries.get(key)
            if known is None and not self.entries:
                self._looked_at = now
            if known is not None or len(self.entries) < MOST_REMEMBERED:
                self._discard(key)
                self.entries[key] = _Entry(document_id, problem[:LONGEST_PROBLEM], name)
                self._by_name.setdefault(name, {})[key] = document_id
            return (known is None or known.problem != problem[:LONGEST_PROBLEM]) and self._may_log(now)

    def _may_log(self, now: float) -> bool:
        if abs(now - self._news_since) >= LOOK_AGAIN_AFTER:
            self._news, self._news_since = 0, now
        self._news += 1
        is_one_of_few = self._news <= MOST_NEWS
        if not is_one_of_few:
            self._unlogged += 1
        return is_one_of_few

    def take_unlogged(self) -> int:
        """Return how many documents were new since the last call, and were not logged one by one."""
        with self._lock:
            unlogged, self._unlogged = self._unlogged, 0
        return unlogged

    def discard(self, document_id: object) -> None:
        key = _key(document_id)
        with self._lock:
            self._discard(key)

    def _discard(self, key: object) -> None:
        entry = self.entries.pop(key, None)
        if entry is not None:
            self._by_name.get(entry.name, {}).pop(key, None)

    def forget(self, name: str) -> None:
        """Forget the documents of a name. The looks meet those that are still broken again."""
        with self._lock:
            for key in self._by_name.pop(name, {}):
                self.entries.pop(key, None)

    def is_old(self) -> bool:
        """Return whether it is time to look at the documents again."""
        # The absolute difference: another run, whose virtual clock was ahead, may have used this client before.
        return bool(self.entries) and abs(steady_moment() - self._looked_at) >= LOOK_AGAIN_AFTER

    def to_look_at(self, most: int) -> list[object]:
        """Return the documents that were looked at longest ago; they count as looked at now."""
        now = steady_moment()
        with self._lock:
            self._looked_at = now
            found = tuple(self.entries)[:most]
            for key in found:
                # Put back as the last one: the dict is in the order of the looks.
                self.entries[key] = self.entries.pop(key)
            return [self.entries[key].document_id for key in found]

    def look_again_at_once(self) -> None:
        """Let the next look at documents follow without a pause: some of the last ones were repaired."""
        self._looked_at = steady_moment() - LOOK_AGAIN_AFTER


class Cooldown:
    """Limits how often something is done: the first time at once, and again only after a pause."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._last: float | None = None

    def take(self) -> bool:
        """Return whether it is time. If so, it counts as done now."""
        moment = steady_moment()
        # The absolute difference, as above.
        if self._last is not None and abs(moment - self._last) < self._pause:
            return False
        self._last = moment
        return True


@dataclass(slots=True)
class PagingPlace:
    """How far the looks at the due jobs of one name have come: see `due_behind_skipped.py`.

    Attributes:
        new_from: Everything up to this place was skipped when a look saw it: the known part. The new part follows.
        reread_to: How far the present pass through the known part has come; None between two passes.
        met: How many skipped documents this pass has met.
        is_asked_again: A job was announced since this pass began: one further pass must follow.
    """

    new_from: Anchor | None = None
    reread_to: Anchor | None = None
    met: int = 0
    is_asked_again: bool = False


def can_be_named(document_id: object) -> bool:
    """Return whether a query finds the document by this id, as the driver has read it.

    It does not if the driver replaced bytes that are not UTF-8, or read a DBPointer, a deprecated type, as a DBRef.
    """
    return type(document_id) is ObjectId or not any(sign in repr(document_id) for sign in ("\ufffd", "DBRef("))


def _key(document_id: object) -> object:
    """Return a key that differs where MongoDB's ids differ: to Python, 1 and True are equal. An id may lack a hash."""
    if type(document_id) is ObjectId:
        return document_id
    try:
        return bson.encode({"": document_id})
    except (BSONError, ValueError, OverflowError):
        return repr(document_id)


def steady_moment() -> float:
    """Return seconds on a clock that never steps; on the virtual clock of a test, if there is one."""
    virtual = virtual_time()
    return time.monotonic() if virtual is None else virtual.now().timestamp()
