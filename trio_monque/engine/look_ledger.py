"""LookLedger: what the claimer knows from its claims, and what it decides by that. Pure.

The loop in `claimer` sends claims, and waits. This file answers its questions:

- *Must it look?* Announcements are counted. A look covers the announcements before it, but only if no other claim is in
  flight when it begins: beside another claim it does not have all free slots, and may not show the announced item. A
  look that was in flight when the announcement came may have read the database before the item was there. So looks
  follow until one covers the last announcement.
- *Is a free slot a reason to look?* Not while all due items are taken, as far as is known. Two looks may overlap, and
  the one that began first has the older view. It does not count as "all taken" if the other one left something behind,
  or something was announced. Otherwise free slots would stay empty beside due items.
- *Is it worth asking again at once?* Not after many looks in a row that found due items and claimed none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Final

from .demand import Demand

# After this many looks in a row that found due items but claimed none, wait for the next poll, even if the change
# stream announces work. Other instances are faster and have taken all of them, or an item cannot be claimed.
MOST_FRUITLESS: Final = 10

# Higher in virtual time, where there are no polls and only an announcement wakes the claimer. Every lost race means
# that another engine took an item, so a losing streak rarely lasts this long.
MOST_FRUITLESS_WITHOUT_POLLS: Final = 200

# Two claims overlap: while the database answers one, Python starts the runs of the other. Both take about the same
# time.
AT_ONCE: Final = 2

# With fewer slots than this, half of them are too few for a round trip: with a hundred slots, halves cost the client a
# fifth more and gain nothing.
WORTH_HALVING: Final = 200

# Seconds for which the claimer counts as behind after a look that left something. If all slots are taken for longer, no
# look comes that could end it.
JUST_NOW: Final = 0.25

# How many claims may be held whose runs have ended and are not settled yet. Beyond that, the settler is the bottleneck,
# and more claims would only wait for it. Four times what can run, plus enough for a fast handler at low concurrency.
UNSETTLED_PER_SLOT: Final = 4
UNSETTLED_AT_LEAST: Final = 400


@dataclass(frozen=True, slots=True)
class Look:
    """A look in flight: what was known when it began.

    Attributes:
        announced: The number of announcements until then.
        left_behind: The number of looks until then that had left due items behind.
    """

    announced: int
    left_behind: int


class LookLedger:
    """Keeps count of claims, announcements and looks. Used by both tasks of the claimer, on one thread.

    Attributes:
        claims_sent: The number of claims until now; each claim has its number, from 1.
        is_all_taken: Whether all due items are taken, as far as is known. Then a free slot is not a reason to look.
        was_full: Whether the last look got as many items as it asked for.
    """

    def __init__(self, *, has_polls: bool = True) -> None:
        self.claims_sent = 0
        self.is_all_taken = False
        self.was_full = False
        self._exhausted: Set[str] = frozenset()
        self._most_fruitless = MOST_FRUITLESS if has_polls else MOST_FRUITLESS_WITHOUT_POLLS
        self._in_flight: set[int] = set()
        self._announced = 0
        self._covered = 0  # This many announcements are covered by a look.
        self._left_behind = 0
        self._left_at = -math.inf
        self._fruitless = 0

    # --- Claims, by a look or by a key ---

    def send(self) -> int:
        """A claim is sent. Return its number."""
        self.claims_sent += 1
        self._in_flight.add(self.claims_sent)
        return self.claims_sent

    def answered(self, number: int) -> None:
        """That claim is not in flight any more: it was answered, or has failed."""
        self._in_flight.discard(number)

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is in flight."""
        return bool(self._in_flight)

    def is_any_in_flight(self, last: int) -> bool:
        """Whether a claim with this number, or with a lower one, is in flight."""
        return any(number <= last for number in self._in_flight)

    # --- Announcements ---

    def announce(self) -> None:
        """Something may be due that no look has shown: a look must follow."""
        self._announced += 1
        self.is_all_taken = False

    @property
    def must_look(self) -> bool:
        """Whether an announcement is not covered by a look."""
        return self._covered < self._announced

    # --- Looks ---

    def begin(self) -> Look:
        """A look begins, and its claim is sent next."""
        if not self._in_flight:
            self._covered = self._announced
        return Look(self._announced, self._left_behind)

    def looked(
        self,
        look: Look,
        demand: Demand,
        got: int,
        *,
        more: bool,
        took_all: bool,
        now: float,
        exhausted: Set[str] = frozenset(),
    ) -> None:
        """A look was answered.

        Args:
            look: What `begin` returned.
            demand: What it asked for.
            got: How many items it claimed.
            more: More may be due.
            took_all: See `took_all`.
            now: On trio's clock.
            exhausted: The groups that have no other due items, as far as is known.
        """
        self.was_full = got == demand.total
        self._exhausted = exhausted
        leaves = more or self.was_full
        # Not while a group that has nothing has free slots: an item of it can start as soon as it is announced.
        self._left_at = now if leaves and not exhausted else -math.inf
        if leaves:
            self.is_all_taken = False
        elif (look.announced, look.left_behind) == (self._announced, self._left_behind):
            self.is_all_taken = took_all
        self._left_behind += more
        # Only looks that found something: one that found nothing lost nothing to others.
        self._fruitless = self._fruitless + 1 if more and not got else 0

    def left_some_for(self, demand: Demand) -> bool:
        """Whether the last look got as many items as it asked for, and may have left some that this demand is for.

        Not if all free slots are those of groups that have nothing: while one group has a backlog and takes all of its
        slots, each of its claims would be followed by a look for the others. These are in the next look as well.
        """
        return self.was_full and not demand.groups.keys() <= self._exhausted

    def gives_up(self) -> bool:
        """Whether too many looks in a row claimed none of the due items that they found. If so, counts anew."""
        if self._fruitless < self._most_fruitless:
            return False
        self._fruitless = 0
        return True

    def is_behind(self, now: float) -> bool:
        """Whether a look left something behind just now: more is due than can start."""
        return now < self._left_at + JUST_NOW


def took_all(demand: Demand, groups: Set[str], taken: Iterable[str], *, more: bool) -> bool:
    """Whether a look took all that is due: it asked for every group, and each had less than could start.

    Args:
        demand: What it asked for.
        groups: All groups of the engine.
        taken: The group of each item that it claimed.
        more: More may be due.
    """
    # A look that may take no suspect has not seen all.
    if more or not demand.suspects or demand.groups.keys() != groups:
        return False
    number = Counter(taken)
    return number.total() < demand.total and all(number[group] < most for group, most in demand.groups.items())


def share_of(capacity: int) -> int:
    """How many items one claim asks for: half of all slots if these are many, so that two claims share them."""
    return capacity if capacity < WORTH_HALVING else -(-capacity // AT_ONCE)


def is_settler_behind(held: int, running: int, capacity: int) -> bool:
    """Whether too many of the held claims wait for the settler: then no more should be claimed."""
    return held - running > UNSETTLED_PER_SLOT * capacity + UNSETTLED_AT_LEAST
