"""A witness of the moments in which the whole machine stood still: nobody is to blame for what was late by them.

A host that has other things to do stops a virtual machine for a second or two. A thread that does nothing but look at
the clock sees that from within, and sees nothing of a library that is slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

TICK: Final = 0.05
LATE: Final = 0.2
"""Seconds without a look at the clock that are a standstill. A machine that is merely busy has looked by then."""

Standstill = tuple[float, float]
"""From when on, and until when, by time.monotonic()."""


class Witness:
    """Looks at the clock until it is told to end."""

    def __init__(self) -> None:
        self._seen: list[Standstill] = []
        self._ended = threading.Event()
        self._looked = time.monotonic()

    def look(self) -> None:
        """What is seen by this is seen from the last look on, at the most."""
        while not self._ended.wait(TICK):
            before, self._looked = self._looked, time.monotonic()
            if self._looked - before > TICK + LATE:
                self._seen.append((before, self._looked))

    def end(self) -> None:
        self._ended.set()

    def seen(self) -> Sequence[Standstill]:
        """All so far: one that has just ended is among them."""
        before, now = self._looked, time.monotonic()
        return [*self._seen, *([(before, now)] if now - before > TICK + LATE else [])]

    def seconds(self, since: float, until: float) -> float:
        """How long the machine stood still between these two moments."""
        return seconds_of(self.seen(), since, until)

    def without_standstills(self, since: float, until: float) -> float:
        """How long it was from one moment to the other, for who could do something meanwhile."""
        return until - since - self.seconds(since, until)


def seconds_of(standstills: Sequence[Standstill], since: float, until: float) -> float:
    """How long it stood still between these two moments."""
    return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in standstills)


@contextmanager
def witnessed() -> Iterator[Witness]:
    """A witness at work, for as long as the block."""
    witness = Witness()
    thread = threading.Thread(target=witness.look, name="witness of standstills")
    thread.start()
    try:
        yield witness
    finally:
        witness.end()
        thread.join()
