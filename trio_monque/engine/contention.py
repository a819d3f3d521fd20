"""Where to look for candidates while others take what is seen. Pure, but for the draw."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from typing import Final

FRUITLESS_TO_SPREAD: Final = 2
"""After this number of takes in a row that won less than half, candidates come from all over the queue's head."""

QUIET_TO_RETURN: Final = 32
"""After this number of takes in a row that lost nothing, from its very head again, and in their order."""

HEAD_EVERY: Final = 16
"""Meanwhile, one take in this number is from the very head: what is due first must not be passed over for ever."""

# Two instances hit the same batch with a chance of one in this number. Of eight that draw at once, each loses at most
# seven 64ths of what it has seen, and with as few as 32 batches twice that.
MOST_BATCHES: Final = 64
LEAST_BATCHES: Final = 32

# The server walks over what is passed over, for about a microsecond each: large batches have fewer to choose from.
FURTHEST: Final = 6400


class Contention:
    """Notices that others take what this instance has just seen, and draws where it looks instead.

    Attributes:
        tried: How many candidates it has tried to take.
        won: How many of them it got.
    """

    def __init__(self, draw: Callable[[int], int] = random.randrange) -> None:
        self.tried = 0
        self.won = 0
        self._draw = draw
        self._is_spread = False
        self._fruitless = 0
        self._quiet = 0
        self._turn = 0
        self._drawn: dict[str, int] = {}
        # How many batches a group is known to hold, where it was not long enough.
        self._depth: dict[str, int] = {}

    @property
    def is_spread(self) -> bool:
        """Whether candidates come from all over the head of the queue."""
        return self._is_spread

    def passed_over(self, wanted: Mapping[str, int]) -> Mapping[str, int]:
        """How many of the first candidates each group passes over in the next look; none for those that are missing."""
        self._drawn = {}
        if self._is_spread:
            self._turn += 1
            if self._turn % HEAD_EVERY:
                self._drawn = {
                    group: self._draw(self._batches(group, count)) for group, count in wanted.items() if count
                }
        # In whole batches: else the first candidates would be hit less often than all that follow.
        return {group: batch * wanted[group] for group, batch in self._drawn.items() if batch}

    def _batches(self, group: str, count: int) -> int:
        most = max(LEAST_BATCHES, min(MOST_BATCHES, FURTHEST // count))
        return min(most, self._depth.get(group, most))

    def looked(self, *, full: Collection[str] = (), short: Collection[str] = ()) -> None:
        """How that look went.

        Args:
            full: The groups that had as many candidates as were wanted: there may be more of them.
            short: The groups that had fewer, beyond what they passed over.
        """
        for group in short:
            self._depth[group] = max(1, self._drawn.get(group, 1))
        for group in full:
            if group in self._depth and group not in short:
                self._depth[group] += 1

    def took(self, tried: int, won: int, *, is_all: bool = False) -> None:
        """How a take of candidates went.

        Args:
            tried, won: Candidates.
            is_all: They were all that there is: there is nowhere else to look.
        """
        self.tried += tried
        self.won += won
        if self._is_spread:
            self._quiet = self._quiet + 1 if won == tried else 0
            if self._quiet >= QUIET_TO_RETURN:
                self._is_spread, self._fruitless = False, 0
                self._depth.clear()
            return
        is_fruitless = not is_all and 2 * won < tried
        self._fruitless = self._fruitless + 1 if is_fruitless else 0
        if self._fruitless >= FRUITLESS_TO_SPREAD:
            self._is_spread, self._quiet = True, 0
            self._turn = self._draw(HEAD_EVERY)  # Not all instances go back to the head at once.
