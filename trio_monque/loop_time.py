"""How the loops of a run wait: as time passes, or, under a virtual clock, for events alone."""

from __future__ import annotations

import math
import random

import trio

from .clock import is_run_virtual


class LoopTime:
    """How loops wait. There is one for each trio run: a loop asks it, and no parameter or option carries the answer.

    Under a real clock a loop polls and beats as time passes. Under a virtual clock, months pass at once, and a poll
    every second would be millions of polls: there a loop waits until this process announces something, and does
    nothing only because time has passed.

    Attributes:
        is_event_driven: Whether loops wait for events alone.
    """

    __slots__ = ("is_event_driven",)

    def __init__(self, *, is_event_driven: bool) -> None:
        self.is_event_driven = is_event_driven

    def poll_interval(self, seconds: float) -> float:
        """Seconds from one poll to the next; infinity where events alone count."""
        return math.inf if self.is_event_driven else seconds

    def jittered(self, seconds: float, share: float) -> float:
        """The pause, longer or shorter by at most that share of it: exactly `seconds` where events alone count."""
        return seconds if self.is_event_driven else seconds * random.uniform(1 - share, 1 + share)


_loop_time_of_run: trio.lowlevel.RunVar[LoopTime] = trio.lowlevel.RunVar("monque_loop_time")


def loop_time() -> LoopTime:
    """That of the current run. Loops ask for it when they are made, on the run's own thread."""
    try:
        return _loop_time_of_run.get()
    except LookupError:
        made = LoopTime(is_event_driven=is_run_virtual())
        _loop_time_of_run.set(made)
        return made
