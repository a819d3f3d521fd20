"""What is held: a document under its lock, and the claim cycle whose lock it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ..document_lock import Fence, LockStamp
from ..options import LEASE_IN_BEATS
from ..safe_text import shown

CLOCKS: Final = 1 / 6
"""Of a beat: by so much the clock of a program that knows only `by` and `until` may run ahead."""


class Cycle:
    """One claim's stamp, and what its locks may say since. On the run's own thread.

    Attributes:
        stamp: What it wrote.
        asked: The ids of what it has asked for.
        fence: What a lock of it may say now, as far as anybody knows.
    """

    def __init__(self, stamp: LockStamp, asked: Sequence[Any], sent: float) -> None:
        """`sent` is when the claim was asked for, on trio's clock."""
        self.stamp = stamp
        self.asked = asked
        self._untils = [stamp.until]
        self.fence = self._fenced()
        self._sure_until = self._untouched_until(sent)
        # Of those that a renewal has found held, by their keys: of a cycle, some may be lost and others not.
        self._sure_until_of: dict[bytes, float] = {}

    def _fenced(self) -> Fence:
        return Fence(self.stamp.by, self.stamp.token, tuple(self._untils))

    def renewing(self, until: datetime) -> None:
        """A renewal is about to be sent: from now on the locks may say this, too."""
        self._untils.append(until)
        self.fence = self._fenced()

    def renewed(self, until: datetime, sent: float, held: Iterable[bytes]) -> None:
        """It was answered: what is still held, by these keys, says no less."""
        self._untils = [one for one in self._untils if one >= until]
        self.fence = self._fenced()
        self._sure_until_of.update(dict.fromkeys(held, self._untouched_until(sent)))

    def _untouched_until(self, sent: float) -> float:
        """Nobody takes a lock earlier that was seen held when this was sent; a sixth of a beat is left to clocks."""
        return sent + (LEASE_IN_BEATS - CLOCKS) * self.stamp.every

    def is_sure(self, key: bytes, now: float) -> bool:
        """Whether nobody may have taken that lock yet, so that if it is gone, it is gone by our own hand."""
        return now < max(self._sure_until, self._sure_until_of.get(key, self._sure_until))


@dataclass(frozen=True, slots=True, eq=False)
class HeldDocument:
    """A document under a lock of ours.

    Attributes:
        id: Its `_id`.
        key: The same, to be looked up by: an `_id` may be a document.
        document: The document as it was claimed.
        tries: How many tries had failed or died before.
        cycle: The claim that took it.
        order: The number of this claim among all claims of this instance, in the order in which they were made.
    """

    id: Any
    key: bytes
    document: Any
    tries: int
    cycle: Cycle
    order: int

    @property
    def attempt(self) -> int:
        """Which try this is, from 1."""
        return self.tries + 1

    def __str__(self) -> str:
        return f"{shown(self.id)} (try {self.attempt})"
