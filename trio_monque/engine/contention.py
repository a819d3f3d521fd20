"""Where to look for candidates while other instances take the same ones. Pure, except for the random draw.

All instances see the same candidates at the head of the queue. An instance that loses most of them moves to a *place*
of its own further behind the head, which it draws. It keeps the place for as long as it gets what it sees there, and
draws another one if it does not: so after a few looks, all instances have different places, and lose next to nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from typing import Final

QUIET_TO_RETURN: Final = 128
"""After this number of takes in a row that lost nothing, it goes back to the head, and to the order of the queue."""

MOST_QUIET_TO_RETURN: Final = 1024
"""If the others are still there, it needs twice as many the next time, at most this number."""

SECONDS_TO_HEAD: Final = 2.0
"""While spread, it looks at the head once in this time: otherwise the first items might be passed over for ever."""

READS_APART: Final = 4
"""Two places are this number of reads apart: an instance reads ahead, and a place moves on when items before it are
taken."""

MOST_PLACES: Final = 64
LEAST_PLACES: Final = 8

SHARES: Final = 32
"""Of a group with few items, a look reads at most this part of them: the others take the rest meanwhile."""

LEAST_SHARE: Final = 8
"""But at least this number: a look costs a round trip."""

# The server reads the items that are passed over, for about a microsecond each. So there are fewer places that are far
# apart.
FURTHEST: Final = 6400


class Contention:
    """Notices that other instances take what this one has just seen, and says where it looks instead.

    Attributes:
        tried: How many candidates it has tried to take.
        won: How many of them it got.
    """

    def __init__(self, draw: Callable[[int], int] = random.randrange) -> None:
        self.tried = 0
        self.won = 0
        self._draw = draw
        self._is_spread = False
        self._quiet = 0
        self._quiet_to_return = QUIET_TO_RETURN
        self._head_at: float | None = None
        # How many items each group passes over, for as long as that goes well. All groups move together.
        self._places: dict[str, int] = {}
        # How many items a group can pass over, for groups that turned out to be shorter.
        self._depth: dict[str, int] = {}

    @property
    def lost(self) -> int:
        """How many of them it did not get: other instances took them first, or they changed."""
        return self.tried - self.won

    @property
    def is_spread(self) -> bool:
        """Whether it has places of its own, and does not take the head of the queue."""
        return self._is_spread

    def passed_over(self, reads: Mapping[str, int], now: float) -> Mapping[str, int]:
        """How many of its first items each group passes over in the next look; no entry means none.

        Args:
            reads: How many items of each group the look reads.
            now: On trio's clock.
        """
        if not self._is_spread:
            return {}
        if self._head_at is None:
            # Instances that spread at the same moment would meet at the head each time.
            self._head_at = now - SECONDS_TO_HEAD * self._draw(MOST_PLACES) / MOST_PLACES
        if now >= self._head_at + SECONDS_TO_HEAD:
            self._head_at = now
            return {}
        for group, count in reads.items():
            if group not in self._places:
                self._places[group] = self._drawn(count, self._depth.get(group))
        return {group: self._places[group] for group in reads if self._places[group]}

    def reads(self, ahead: Mapping[str, int]) -> Mapping[str, int]:
        """How many items of each group a look reads: as many as it would alone, or less where few are left.

        Args:
            ahead: How many it would read alone, for the next claims too.
        """
        if not self._is_spread or not self._depth:
            return ahead
        shares = {group: max(LEAST_SHARE, depth // SHARES) for group, depth in self._depth.items()}
        return {group: min(count, shares.get(group, count)) for group, count in ahead.items()}

    def _drawn(self, count: int, depth: int | None) -> int:
        # A power of two, so that instances that read nearly as much have the same places.
        step = 1 << (READS_APART * max(count, 1) - 1).bit_length()
        number = min(MOST_PLACES, max(LEAST_PLACES, FURTHEST // step))
        if depth is not None:
            # There are few items: the places are nearer to each other, and none is behind the last item.
            step = min(step, max(count, depth // MOST_PLACES, 1))
            number = max(1, min(MOST_PLACES, depth // step))
        # Not at the head, if there is another place: each instance looks there now and then, and would meet this one.
        return step * (1 + self._draw(number - 1)) if number > 1 else 0

    def looked(
        self,
        passed_over: Mapping[str, int],
        found: Mapping[str, int],
        *,
        full: Collection[str] = (),
        short: Collection[str] = (),
    ) -> None:
        """How that look went.

        Args:
            passed_over: What `passed_over` has returned for it.
            found: How many candidates each group had that was looked at.
            full: The groups that had as many candidates as were wanted: there may be more.
            short: The groups that had fewer behind those that were passed over, so that they were read from the head.
        """
        if not self._is_spread:
            return
        for group, count in found.items():
            if group in short:
                # The group does not reach as far as this place: the next draw is from those before it.
                self._depth[group] = self._places.pop(group, 0)
            if group not in full:
                self._depth[group] = count  # These are all.
            elif group in self._depth and group not in short:
                if passed_over.get(group, 0) + count > self._depth[group]:
                    # A new backlog: how far it reaches is as unknown as at first. Without this, what is known of the
                    # end of the last one would keep looks and claims small.
                    del self._depth[group]
                    self._places.pop(group, None)
                else:
                    self._depth[group] += 1 + self._depth[group] // 8

    def took(self, tried: int, won: int, *, is_all: bool = False) -> None:
        """How a take of candidates went.

        Args:
            tried, won: Candidates.
            is_all: There are no other candidates, so it could not look elsewhere.
        """
        self.tried += tried
        self.won += won
        is_fruitless = not is_all and 2 * won < tried
        self._quiet = self._quiet + 1 if won == tried else 0
        if self._is_spread:
            if is_fruitless:
                self._places.clear()
            if self._quiet >= self._quiet_to_return:
                self._is_spread, self._quiet = False, 0
                self._quiet_to_return = min(2 * self._quiet_to_return, MOST_QUIET_TO_RETURN)
            return
        if self._quiet >= QUIET_TO_RETURN:
            self._quiet_to_return = QUIET_TO_RETURN  # The others are gone.
        if is_fruitless:
            self._is_spread, self._quiet, self._head_at = True, 0, None
            self._places.clear()
            self._depth.clear()
