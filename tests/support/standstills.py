"""A witness of the moments in which the machine stood still or was busy: they excuse what was late because of them.

A host that has other things to do stops a virtual machine for a second or two. A process that does nothing but look at
the clock sees that from within. It sees nothing of a library that is slow, or of a test that keeps its threads waiting.

The same process reads the kernel's count of the time in which tasks waited for a processor (`/proc/pressure/cpu`).
Where they waited for a large part of the time between two looks, that time excuses lateness, to a limit: see
`excused_waits`.

A standstill stops every process in the midst of what it does, so a lease may run out in it. A busy machine only makes
all slower: it excuses lateness, and never an overlap or a lost job. `Witness.seconds` counts standstills alone.

The kernel does not say who waited. The library's own processes are among those that compete, and that is accepted:
a library that waits for the wrong event, sleeps too long or polls too rarely uses no processor, and is not excused.
Nor is one that computes too long in one thread on a machine with nothing else to do: no task waits then.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from select import select
from typing import Any, Final, NamedTuple

from tests.support.cpu_pressure import cpu_pressure
from tests.support.programs import ROOT

TICK: Final = 0.05
LATE: Final = 0.2
"""Seconds without a look at the clock that are a standstill. A machine that is merely busy has looked by then."""

Standstill = tuple[float, float]
"""From when on, and until when, by time.monotonic(), which is one clock for all processes of the machine."""


LARGE_PART: Final = 0.5
"""Below this part of the time between two looks, waits for a processor are those of an ordinary machine."""
AT_MOST: Final = 0.8
"""The part of any time that a busy machine excuses: what is five times too slow is too slow on any machine."""


class Wait(NamedTuple):
    """The time between two looks, and for how many seconds of it tasks waited for a processor."""

    since: float
    until: float
    seconds: float


def excused_waits(waits: Sequence[Wait], since: float, until: float) -> float:
    """For how many seconds of this time a busy machine excuses lateness.

    They are those in which tasks waited, as the kernel counted them, where these are a large part of the time between
    two looks; of looks that are partly in this time, the same part. AT_MOST bounds each of them.
    """
    return sum(
        seconds_of([(one.since, one.until)], since, until) * min(part, AT_MOST)
        for one in waits
        if (part := one.seconds / (one.until - one.since)) >= LARGE_PART
    )


class Witness:
    """Asks the process that looks at the clock.

    Attributes:
        pid: Of that process.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._until_the_end: dict[str, Any] | None = None
        self.pid = process.pid

    def end(self) -> None:
        """What it has seen can be asked for still."""
        self._until_the_end = self._ask()

    def seen(self) -> Sequence[Standstill]:
        """All standstills so far: one that has just ended is among them."""
        return [(begin, end) for begin, end in self._ask()["standstills"]]

    def waits(self) -> Sequence[Wait]:
        """All waits for a processor so far, between looks without a standstill."""
        return [Wait(*one) for one in self._ask()["waits"]]

    def seconds(self, since: float, until: float) -> float:
        """How long the machine stood still between these two moments."""
        return seconds_of(self.seen(), since, until)

    def undisturbed(self, since: float, until: float) -> float:
        """How long it was from one moment to the other, without standstills and excused waits for a processor."""
        return until - since - self.seconds(since, until) - excused_waits(self.waits(), since, until)

    def _ask(self) -> dict[str, Any]:
        if self._until_the_end is not None:
            return self._until_the_end
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def seconds_of(standstills: Sequence[Standstill], since: float, until: float) -> float:
    """How long it stood still between these two moments."""
    return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in standstills)


@contextmanager
def witnessed() -> Iterator[Witness]:
    """A witness at work, for as long as the block."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tests.support.standstills"]
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "looking\n"
        witness = Witness(process)
        yield witness
        witness.end()


def look() -> None:
    """Until its input is closed; each line asks for all that was seen."""
    standstills: list[Standstill] = []
    waits: list[Wait] = []
    looked, pressure = time.monotonic(), cpu_pressure()
    print("looking", flush=True)  # noqa: T201
    while True:
        is_asked = bool(select([sys.stdin], [], [], TICK)[0])
        # What is seen by this is seen from the last look on, at the most.
        before, looked = looked, time.monotonic()
        earlier, pressure = pressure, cpu_pressure()
        if looked - before > TICK + LATE:
            standstills.append((before, looked))
        elif earlier and pressure and (waited := pressure.stalled - earlier.stalled) >= LARGE_PART * (looked - before):
            waits.append(Wait(before, looked, waited))
        if is_asked:
            if not sys.stdin.readline():
                return
            print(json.dumps({"standstills": standstills, "waits": waits}), flush=True)  # noqa: T201


if __name__ == "__main__":
    look()
