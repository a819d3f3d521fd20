"""What one loop has done and is about to do. The loop writes it; any thread may read it.

Each report is an assignment or two, so a loop may report as often as it likes. Moments are on trio's clock.
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
"""The moment of what has not happened yet."""

OUTAGE_IS_OVER_AFTER: Final = 10.0
"""Seconds without a fault after which the next fault of a loop begins another outage. Answers and faults may alternate
in one outage, and each outage is reported once."""


@dataclass(frozen=True, slots=True)
class LoopFault:
    """The text of an error, and its moment. Not the error itself, which would keep its frames alive."""

    text: str
    at: float


MOST_POWERS: Final = 12
"""Batches are counted by powers of two up to 2,048 items; larger ones are counted together."""


class Spread:
    """The number, the sum and the largest of some amounts."""

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


class BatchSizes(Spread):
    """The same for sizes of batches, and how many batches had which size.

    Attributes:
        by_power: At place n, how many batches had at most 2 ** n items, and more than half of that. The last place has
            all larger ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_power = [0] * (MOST_POWERS + 1)

    def add(self, amount: float) -> None:
        super().add(amount)
        self.by_power[min((int(amount) - 1).bit_length(), MOST_POWERS)] += 1


class Progress:
    """What a loop has done, and what it should do next.

    A loop is late from the moment for which it planned its next act, or from the first of several attempts that have
    all failed. A loop that waits for others is never late.

    Attributes:
        name: The loop's name for operators.
        progressed_at: When it last made progress.
        answered_at: When its source last answered it.
        fault: Its last error, also after it has recovered.
        is_failing: Whether its last attempt failed.
        is_asking: Whether it waits for an answer of its source.
        crashed: The error that ended it, if it crashed.
        batches: The sizes of its acts: how many claims, settlements, renewals or rescues. Empty ones do not count.
        failures: How many attempts have failed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.progressed_at = NEVER
        self.answered_at = NEVER
        self.fault: LoopFault | None = None
        self.is_failing = False
        self.is_asking = False
        self.crashed: str | None = None
        self.batches = BatchSizes()
        self.failures = 0
        self._expected_at = math.inf
        self._outage_began_at = self._failed_at = NEVER
        self._is_end_logged = True

    # --- Written by the loop ---

    def plan(self, moment: float) -> None:
        """Its next act is due at that moment; infinity if it waits for a signal."""
        # Without this, a loop that fails and plans its next attempt would never be late.
        if not self.is_failing:
            self._expected_at = moment

    def wait_for_others(self) -> None:
        """It has nothing to do until another loop or a job gives it something."""
        self.is_failing = False
        self._expected_at = math.inf

    def ask(self) -> None:
        """It asks its source."""
        self.is_asking = True
        self._expected_at = min(self._expected_at, trio.current_time())

    def fail(self, error: BaseException) -> bool:
        """The source could not answer; the loop asks again. Returns whether an outage begins: worth a report."""
        now = trio.current_time()
        self.failures += 1
        is_news = not self.is_failing and now - self._failed_at > OUTAGE_IS_OVER_AFTER
        if is_news:
            self._outage_began_at, self._is_end_logged = now, False
        else:
            logger.debug("the %s failed again: %s", self.name, text_of(error))
        self.fault = LoopFault(text_of(error), now)
        self._failed_at = now
        self.is_failing = True
        self.is_asking = False
        return is_news

    def answered(self, amount: int = 0) -> None:
        """The source has answered; `amount` is the size of this act."""
        self.answered_at = trio.current_time()
        if amount:
            self.batches.add(amount)
        # Once for each outage, in which it may work and fail several times (see `fail`).
        if self.is_failing and not self._is_end_logged:
            self._is_end_logged = True
            logger.info("the %s works again after %.1f s", self.name, self.answered_at - self._outage_began_at)
        self.go_on()

    def go_on(self) -> None:
        """It has made progress, without asking its source."""
        self.progressed_at = trio.current_time()
        self.is_failing = self.is_asking = False
        self._expected_at = math.inf

    # --- Written by the engine that starts and guards it ---

    def begin(self) -> None:
        self.progressed_at = trio.current_time()

    def crash(self, error: BaseException) -> None:
        self.fault = LoopFault(text_of(error), trio.current_time())
        self.crashed = self.fault.text

    def end(self) -> None:
        """It has ended, so it cannot be late."""
        self.wait_for_others()

    # --- Read in any thread ---

    def lag(self, now: float) -> float:
        """How many seconds it is late."""
        return max(0.0, now - self._expected_at)

    def complaint(self, now: float, stuck_after: float, name: str) -> str | None:
        """Why it is stuck, for operators; None if it is not. `name` is that of the whole engine in the sentence."""
        if self.crashed is not None:
            return f"the {self.name} crashed, which stops {name}: {self.crashed}"
        lag, fault = self.lag(now), self.fault
        if lag <= stuck_after:
            return None
        if self.is_failing and fault is not None:
            return f"the {self.name} has failed for {lag:.1f} s and keeps trying: {fault.text}"
        if self.is_asking:
            return f"the {self.name} has waited {lag:.1f} s for an answer"
        return f"the {self.name} is {lag:.1f} s late"
