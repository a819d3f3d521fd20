"""How the loops of a run wait: as time passes, or, in virtual time, for events alone.

*Virtual time* is the time of a trio run under `trio.testing.MockClock`. Such a clock stands still while a task can run,
and jumps to the next deadline when all tasks wait: a test of a month takes seconds. Three rules follow from that:

- A loop must not act only because time has passed: a poll every second would be millions of polls in that month. So
  loops wait for events there. In the engine these are local wakeups: clients and engines of the same trio run announce
  what they change.
- While a thread asks the database, all tasks wait, and the clock would jump. So a call in flight *freezes* the
  clock: see `threads_and_frozen_time`.
- A pause after a fault of the database takes real time, as the database does: see `engine.pauses`.
"""

from __future__ import annotations

import math
import random

import trio

from .clock import is_run_virtual


class LoopTime:
    """How loops wait. There is one for each trio run: a loop asks it, and no parameter or option carries the answer.

    Attributes:
        is_event_driven: Whether loops wait for events alone, because the run is in virtual time.
    """

    __slots__ = ("is_event_driven",)

    def __init__(self, *, is_event_driven: bool) -> None:
        self.is_event_driven = is_event_driven

    def poll_interval(self, seconds: float) -> float:
        """Return the seconds from one poll to the next; infinity if the loop waits for events alone."""
        return math.inf if self.is_event_driven else seconds

    def jittered(self, seconds: float, share: float) -> float:
        """Return `seconds`, longer or shorter by at most this share of it; exactly `seconds` under a virtual clock."""
        return seconds if self.is_event_driven else seconds * random.uniform(1 - share, 1 + share)


_loop_time_of_run: trio.lowlevel.RunVar[LoopTime] = trio.lowlevel.RunVar("monque_loop_time")


def loop_time() -> LoopTime:
    """Return the LoopTime of the current run. Loops call it when they are made, on the trio thread."""
    try:
        return _loop_time_of_run.get()
    except LookupError:
        made = LoopTime(is_event_driven=is_run_virtual())
        _loop_time_of_run.set(made)
        return made
