"""Where to look for candidates while other instances take the same ones. Pure, except for the random draw.

All instances see the same candidates at the head of the queue. An instance that loses most of them draws another
*batch* (as many items as it wants) further behind the head, so that instances rarely meet.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from typing import Final

FRUITLESS_TO_SPREAD: Final = 2
"""After this number of takes in a row that won less than half, it draws batches: it is *spread*."""

QUIET_TO_RETURN: Final = 32
"""After this number of takes in a row that lost nothing, it goes back to the head, and to the order of the queue."""

HEAD_EVERY: Final = 16
"""While spread, one look in this number is at the head: without it, the first items might be passed over for ever."""

# Number of batches to choose from at random. Two instances pick the same batch with probability 1/n. Of eight that draw
# at the same time, each loses at most seven 64ths of what it has seen; with only 32 batches, twice as much.
MOST_BATCHES: Final = 64
LEAST_BATCHES: Final = 32

# The server reads the items that are passed over, for about a microsecond each. So it draws from fewer large batches.
FURTHEST: Final = 6400


class Contention:
    """Notices that other instances take what this one has just seen, and draws where it looks instead.

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
        # How many batches a group has, for groups that turned out to be shorter than a draw.
        self._depth: dict[str, int] = {}

    @property
    def lost(self) -> int:
        """How many of them it did not get: other instances took them first, or they changed."""
        return self.tried - self.won

    @property
    def is_spread(self) -> bool:
        """Whether it draws batches, and does not take the head of the queue."""
        return self._is_spread

    def passed_over(self, wanted: Mapping[str, int]) -> Mapping[str, int]:
        """How many of its first items each group passes over in the next look; no entry means none."""
        self._drawn = {}
        if self._is_spread:
            self._turn += 1
            if self._turn % HEAD_EVERY:
                # Without groups that want nothing, by which the draw would divide.
                self._drawn = {
                    group: self._draw(self._batches(group, count)) for group, count in wanted.items() if count
                }
        # In whole batches: without this, the first items would be drawn less often than those that follow.
        return {group: batch * wanted[group] for group, batch in self._drawn.items() if batch}

    def _batches(self, group: str, count: int) -> int:
        most = max(LEAST_BATCHES, min(MOST_BATCHES, FURTHEST // count))
        return min(most, self._depth.get(group, most))

    def looked(self, *, full: Collection[str] = (), short: Collection[str] = ()) -> None:
        """How that look went.

        Args:
            full: The groups that had as many candidates as were wanted: there may be more.
            short: The groups that had fewer behind those that were passed over.
        """
        for group in short:
            # The batch that was drawn was not full: the next draws are from those before it.
            self._depth[group] = max(1, self._drawn.get(group, 1))
        for group in full:
            if group in self._depth and group not in short:
                self._depth[group] += 1

    def took(self, tried: int, won: int, *, is_all: bool = False) -> None:
        """How a take of candidates went.

        Args:
            tried, won: Candidates.
            is_all: There are no other candidates, so it could not look elsewhere.
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
            self._turn = self._draw(HEAD_EVERY)  # Without the draw, all instances might look at the head in step.
