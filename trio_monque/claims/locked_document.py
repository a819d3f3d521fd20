"""HeldDocument, a document under a lock of this instance, and Cycle, the claim cycle (one write) that locked it.

One claim locks many documents with one stamp. The answer to a renewal may be lost or late, so the database may have
another `until` than this instance knows. A Cycle keeps every date that a lock may have, and until when no other program
can have taken it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import trio

from ..locks_and_dead_letters import Fence, LockStamp
from ..options_and_defaults import LEASE_IN_BEATS
from ..safe_text import shown

CLOCKS: Final = 1 / 6
"""A share of the heartbeat interval, left for the clock of a program that knows only `by` and `until`."""


class Cycle:
    """One write that claimed: its stamp, and the values that its locks may have now. On the thread of the trio run.

    Attributes:
        stamp: What the claim wrote.
        asked: The ids that the claim asked for.
        fence: The values that a lock of this claim may have now.
    """

    def __init__(self, stamp: LockStamp, asked: Sequence[Any], sent: float) -> None:
        """`sent` is the moment at which the claim was sent, on trio's clock."""
        self.stamp = stamp
        self.asked = asked
        # Every date that was sent and may still be in a lock. With only the last one, an instance whose renewal was not
        # applied would take its own lock for a lost one.
        self._untils = [stamp.until]
        self.fence = self._fenced()
        self._sure_until = self._untouched_until(sent)
        self._left_out = 0
        self._all_renewed_after = -math.inf
        # By key, for the documents that a renewal has found held: it may have found other locks of the cycle gone.
        self._sure_until_of: dict[bytes, float] = {}

    def _fenced(self) -> Fence:
        return Fence(self.stamp.by, self.stamp.token, tuple(self._untils))

    def renewing(self, until: datetime) -> None:
        """Note a renewal before it is sent: from now on the locks may have this `until`, too."""
        self._untils.append(until)
        self.fence = self._fenced()

    def renewed(self, until: datetime, sent: float, held: Iterable[bytes]) -> None:
        """Note the answer: the locks of these documents have this `until`, or that of a later renewal."""
        # Not while a lock is left out, nor by a renewal that was sent then: that lock still has an earlier date.
        # Without that date in the fence, the next renewal would take the lock for a lost one.
        if not self._left_out and sent > self._all_renewed_after:
            self._untils = [one for one in self._untils if one >= until]
            self.fence = self._fenced()
        self._sure_until_of.update(dict.fromkeys(held, self._untouched_until(sent)))

    @contextmanager
    def leaving_one_out(self) -> Iterator[None]:
        """Inside, one of its locks is not renewed with the others: see `Control.settle_by`."""
        self._left_out += 1
        try:
            yield
        finally:
            self._left_out -= 1
            self._all_renewed_after = trio.current_time()

    def _untouched_until(self, sent: float) -> float:
        """Return until when no other program takes a lock that a command of that moment found held."""
        # From the moment at which the command was sent: the server may have applied it at once.
        return sent + (LEASE_IN_BEATS - CLOCKS) * self.stamp.every

    def is_sure(self, key: bytes, now: float) -> bool:
        """Whether no other program can have taken that lock yet: if it is gone, this instance removed it."""
        return now < max(self._sure_until, self._sure_until_of.get(key, self._sure_until))


@dataclass(frozen=True, slots=True, eq=False)
class HeldDocument:
    """A document under a lock of this instance.

    Attributes:
        id: Its `_id`.
        key: The `_id` encoded as BSON: hashable, which an `_id` that is a document is not.
        document: The document as it was claimed.
        tries: How many attempts had failed or lost their holder before. The field of the lock has this name.
        cycle: The claim that locked it.
        order: The number of this document among all that this instance has claimed, in the order of the claims.
    """

    id: Any
    key: bytes
    document: Any
    tries: int
    cycle: Cycle
    order: int

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.tries + 1

    def __str__(self) -> str:
        return f"{shown(self.id)} (attempt {self.attempt})"
