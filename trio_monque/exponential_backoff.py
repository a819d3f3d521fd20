"""How long a failed attempt waits before the next one. Pure: the source of randomness is passed in."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from .log import logger_of

logger = logger_of()

SHORTEST = 0.001
"""Seconds: one millisecond, the resolution of BSON dates. A retry that is due at once would spin."""


def _chance() -> random.Random:
    """Seeded from Python's own generator: after `random.seed(...)`, a run can be repeated."""
    return random.Random(random.getrandbits(64))


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Exponential backoff with a cap and jitter.

    Attributes:
        base: Seconds; the delay after failure n is `2 ** n * base` before cap and jitter.
        cap: Seconds; no delay is longer, jitter included.
        jitter: The share by which a delay varies in both directions: 0.1 for ±10 %.
        chance: The source of the jitter; can be passed in, so that a run can be repeated.
    """

    base: float
    cap: float
    jitter: float
    chance: random.Random = field(default_factory=_chance, compare=False, repr=False)

    def delay(self, fail_count: int) -> float:
        """Return the seconds until the next attempt: whole milliseconds, at least one, at most the cap."""
        # Beyond 2 ** 64 every cap is reached, and the float would overflow soon after.
        plain = min(self.base * 2.0 ** min(fail_count, 64), self.cap)
        varied = plain * (1 + self.jitter * self.chance.uniform(-1, 1))
        return max(SHORTEST, round(min(varied, self.cap), 3))


def asked_backoff(
    own: Callable[[int, BaseException], float], otherwise: Backoff, failures: int, error: BaseException
) -> float:
    """The delay from a worker's own backoff function. If that fails, log it, and use the exponential backoff."""
    # An error of that function must not prevent the end of the run from being written.
    try:
        seconds = float(own(failures, error))
        if not 0 <= seconds < math.inf:
            raise ValueError(f"backoff gave {seconds} seconds")
    except BaseException:
        logger.exception("a backoff function failed; using the exponential backoff instead")
        return otherwise.delay(failures)
    return seconds
