"""A witness of the moments in which the whole machine stood still: they excuse what was late because of them.

A host that has other things to do stops a virtual machine for a second or two. A process that does nothing but look at
the clock sees that from within. It sees nothing of a library that is slow, or of a test that keeps its threads waiting.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Final

TICK: Final = 0.05
LATE: Final = 0.2
"""Seconds without a look at the clock that are a standstill. A machine that is merely busy has looked by then."""

Standstill = tuple[float, float]
"""From when on, and until when, by time.monotonic(), which is one clock for all processes of the machine."""


class Witness:
    """Asks the process that looks at the clock.

    Attributes:
        pid: Of that process.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._until_the_end: Sequence[Standstill] | None = None
        self.pid = process.pid

    def end(self) -> None:
        """What it has seen can be asked for still."""
        self._until_the_end = self.seen()

    def seen(self) -> Sequence[Standstill]:
        """All so far: one that has just ended is among them."""
        if self._until_the_end is not None:
            return self._until_the_end
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return [(begin, end) for begin, end in json.loads(self._process.stdout.readline())]

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
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, Path(__file__)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "looking\n"
        witness = Witness(process)
        yield witness
        witness.end()


def look() -> None:
    """Until its input is closed; each line asks for all that was seen."""
    seen: list[Standstill] = []
    looked = time.monotonic()
    print("looking", flush=True)  # noqa: T201
    while True:
        is_asked = bool(select([sys.stdin], [], [], TICK)[0])
        # What is seen by this is seen from the last look on, at the most.
        before, looked = looked, time.monotonic()
        if looked - before > TICK + LATE:
            seen.append((before, looked))
        if is_asked:
            if not sys.stdin.readline():
                return
            print(json.dumps(seen), flush=True)  # noqa: T201


if __name__ == "__main__":
    look()
