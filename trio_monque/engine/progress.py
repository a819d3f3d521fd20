"""How one loop gets on, in its own words.

A word is an assignment or two: it costs nothing to say, and any thread may look. Moments are on trio's clock,
and so virtual where that is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import trio

from ..log import logger_of
from ..safe_text import text_of

logger = logger_of("engine")

NEVER: Final = -math.inf

OUTAGE_IS_OVER_AFTER: Final = 10.0
"""Seconds without a fault after which the next fault of a loop begins another outage. In one outage, answers and
faults may alternate, and it is reported once."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The text of an error, and when it was met. Not the error itself, which would keep its frames alive."""

    text: str
    at: float


class Spread:
    """How many there were of something, how much in all, and how much at most."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.largest = 0.0

    def add(self, amount: float) -> None:
        self.count += 1
        self.total += amount
        self.largest = max(self.largest, amount)

    @property
    def average(self) -> float:
        return self.total / self.count if self.count else 0.0


class Progress:
    """What a loop has done, and what it should do next. The loop writes it, and any thread may read it.

    A loop is late since the act that it planned was due, or since it began the first attempt that has not
    succeeded. One that waits on purpose is never late.

    Attributes:
        name: What an operator knows the loop by.
        progressed_at: When it got on last.
        answered_at: When its source answered it last.
        fault: The last error that it met, also when it has got over it.
        is_failing: Its last attempt failed.
        is_asking: It waits for an answer of its source.
        crashed: What it ended by, where that was no orderly end.
        batches: How much each of its acts was of: claims, settlements, renewals or rescues. Acts of none do not count.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.progressed_at = NEVER
        self.answered_at = NEVER
        self.fault: Fault | None = None
        self.is_failing = False
        self.is_asking = False
        self.crashed: str | None = None
        self.batches = Spread()
        self._expected_at = math.inf
        self._outage_began_at = self._failed_at = NEVER
        self._is_end_told = True

    # --- Said by the loop ---

    def plan(self, moment: float) -> None:
        """Its next act is due then; infinity if it waits for a signal. A failing loop tries again, and stays late."""
        if not self.is_failing:
            self._expected_at = moment

    def wait_for_others(self) -> None:
        """It has nothing to do until another loop, or a job, gives it something."""
        self.is_failing = False
        self._expected_at = math.inf

    def ask(self) -> None:
        """It asks its source for something."""
        self.is_asking = True
        self._expected_at = min(self._expected_at, trio.current_time())

    def fail(self, error: BaseException) -> bool:
        """The source could not answer; it will ask again. Returns whether this begins an outage, and so is news."""
        now = trio.current_time()
        is_news = not self.is_failing and now - self._failed_at > OUTAGE_IS_OVER_AFTER
        if is_news:
            self._outage_began_at, self._is_end_told = now, False
        else:
            logger.debug("the %s failed again: %s", self.name, text_of(error))
        self.fault = Fault(text_of(error), now)
        self._failed_at = now
        self.is_failing = True
        self.is_asking = False
        return is_news

    def answered(self, amount: int = 0) -> None:
        """The source has answered, and its act was of this amount."""
        self.answered_at = trio.current_time()
        if amount:
            self.batches.add(amount)
        if self.is_failing and not self._is_end_told:
            self._is_end_told = True
            logger.info("the %s works again after %.1f s", self.name, self.answered_at - self._outage_began_at)
        self.go_on()

    def go_on(self) -> None:
        """It got on, without a question to its source."""
        self.progressed_at = trio.current_time()
        self.is_failing = self.is_asking = False
        self._expected_at = math.inf

    # --- Said by who starts and guards it ---

    def begin(self) -> None:
        self.progressed_at = trio.current_time()

    def crash(self, error: BaseException) -> None:
        self.fault = Fault(text_of(error), trio.current_time())
        self.crashed = self.fault.text

    def end(self) -> None:
        """It does nothing any more, so that it cannot be late."""
        self.wait_for_others()

    # --- Asked by anybody, in any thread ---

    def lag(self, now: float) -> float:
        """Seconds that it is late."""
        return max(0.0, now - self._expected_at)

    def complaint(self, now: float, stuck_after: float) -> str | None:
        """Why it is stuck, for an operator; None where it is not."""
        if self.crashed is not None:
            return f"the {self.name} crashed, so the scheduler ends: {self.crashed}"
        lag, fault = self.lag(now), self.fault
        if lag <= stuck_after:
            return None
        if self.is_failing and fault is not None:
            return f"the {self.name} has failed for {lag:.1f} s and goes on trying: {fault.text}"
        if self.is_asking:
            return f"the {self.name} has waited {lag:.1f} s for an answer"
        return f"the {self.name} should have gone on {lag:.1f} s ago"
