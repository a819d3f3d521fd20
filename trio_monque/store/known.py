"""Documents that were met, told once, and are passed over from then on, until somebody looks at them again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Set
from typing import Final

import bson
from bson.errors import BSONError

from ..clock import virtual_time

# Each one remembered makes every look a little longer.
MOST_REMEMBERED: Final = 1000

LOOK_AGAIN_AFTER: Final = 60.0
"""Seconds after which what is passed over is looked at again: somebody may have mended it."""


class Known(Set[object]):
    """The ids of such documents, of whatever type, and what was wrong with each. Bounded: beyond, they are told again.

    Shared by threads: each change is one operation on a dict.
    """

    def __init__(self) -> None:
        self._ids: dict[object, tuple[object, str]] = {}
        self._looked_at = 0.0

    def __contains__(self, document_id: object) -> bool:
        return _key(document_id) in self._ids

    def __iter__(self) -> Iterator[object]:
        return iter([document_id for document_id, _ in tuple(self._ids.values())])

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, document_id: object, problem: str = "") -> bool:
        """Whether that is news."""
        key = _key(document_id)
        known = self._ids.get(key)
        if known is not None and known[1] == problem:
            return False
        if not self._ids:
            self._looked_at = _moment()
        if known is not None or len(self._ids) < MOST_REMEMBERED:
            self._ids[key] = (document_id, problem)
        return True

    def discard(self, document_id: object) -> None:
        self._ids.pop(_key(document_id), None)

    def is_old(self) -> bool:
        """Whether it is time to look at them again."""
        # Both ways: a client may have been used in another run, with a clock of its own.
        return bool(self._ids) and abs(_moment() - self._looked_at) >= LOOK_AGAIN_AFTER

    def to_look_at(self, most: int) -> list[object]:
        """Those that were looked at longest ago; it counts as done for these, and the others come next time."""
        self._looked_at = _moment()
        keys = list(self._ids)[:most]
        found = []
        for key in keys:
            known = self._ids.pop(key, None)
            if known is not None:
                self._ids[key] = known
                found.append(known[0])
        return found


class Occasions:
    """Something that is done now and then: at once, and not again before a while has passed."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._last: float | None = None

    def take(self) -> bool:
        """Whether it is time; then it counts as done."""
        moment = _moment()
        # Both ways, as above.
        if self._last is not None and abs(moment - self._last) < self._pause:
            return False
        self._last = moment
        return True


def _key(document_id: object) -> object:
    """Two ids that MongoDB tells apart may be equal to Python, and not every one is hashable."""
    try:
        return bson.encode({"": document_id})
    except (BSONError, ValueError, OverflowError):
        return repr(document_id)


def _moment() -> float:
    virtual = virtual_time()
    return time.monotonic() if virtual is None else virtual.now().timestamp()
