"""Candidates that were read ahead, and may be asked for until they are too old. Pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

AND_AS_MANY: Final = 2
"""How many more items are read for each one that is withheld: a look or two then pass any number of them."""

T = TypeVar("T")

KEPT_FOR: Final = 0.1
"""Seconds. The order of what is claimed is at most this old; the claim itself finds what has changed since."""

READ_AHEAD: Final = 4
"""How many times as many are read as may run at once."""

READ_AT_LEAST: Final = 400
"""For a low concurrency: a look costs a round trip whatever it finds."""


class Prefetch(Generic[T]):
    """What the last look saw and no claim has asked for since. Candidates are never claims: others may have them.

    Where there was more than was wanted it is read far ahead, and the next claims are spared their look.

    Args:
        key_of: What tells candidates apart.
        group_of: What shares a concurrency limit with it.
    """

    def __init__(self, key_of: Callable[[T], Hashable], group_of: Callable[[T], str]) -> None:
        self._key_of = key_of
        self._group_of = group_of
        self._groups: dict[str, deque[T]] = {}
        self._exhausted: Collection[str] = ()
        self._read_at = self._whole_at = -math.inf
        self._is_whole = True
        self._used = 0
        self._in_flight: set[Hashable] = set()
        self._in_flight_of: Counter[str] = Counter()
        # How many more the next look reads for what the last one found and a run here withholds. Such items stay at
        # the head until that run ends, and would fill every look for as few as are wanted.
        self._withheld_of: Counter[str] = Counter()
        # What was asked for since the look began that is under way: it may be in its answer, and is another's.
        self._gone: set[Hashable] = set()

    @property
    def full(self) -> frozenset[str]:
        """The groups that had more than was read, as far as is known."""
        return frozenset(group for group in self._groups if group not in self._exhausted)

    def reach(self, wanted: Mapping[str, int], capacity: int, now: float) -> Mapping[str, int]:
        """How many to read of each group: as far as claims get while it is fresh, where more is there than is wanted.

        Args:
            wanted: How many of each group could start.
            capacity: How many may run at once.
            now: By the same clock as `read_at`.
        """
        full = self.full & wanted.keys()
        if not full:
            return wanted
        age = now - self._read_at
        most = max(READ_AHEAD * capacity, READ_AT_LEAST)
        ahead = math.ceil(min(most, self._used * KEPT_FOR / age) if age > 0 else most)
        share = -(-ahead // len(full))
        return {group: max(count, share) if group in full else count for group, count in wanted.items()}

    def beside_those_in_flight(self, wanted: Mapping[str, int]) -> Mapping[str, int]:
        """Adds what is asked for already or withheld: a look may see these as well."""
        if not (self._in_flight or self._withheld_of):
            return wanted
        beside = self._in_flight_of + self._withheld_of
        return {group: count + beside[group] for group, count in wanted.items()}

    def has_more(self, wanted: Collection[str]) -> bool:
        """Whether there may be more of these groups than was read."""
        return not self.full.isdisjoint(wanted)

    def look(self) -> None:
        """A look begins; one at a time."""
        self._gone = set(self._in_flight)

    def fill(
        self,
        found: Iterable[T],
        asked: Collection[str],
        exhausted: Collection[str],
        read_at: float,
        *,
        is_whole: bool = True,
        withholds: Callable[[Hashable], bool] = lambda key: False,
    ) -> None:
        """What the look has found takes the place of all that was known.

        Args:
            found: Earliest first within each group.
            asked: The groups that were looked at.
            exhausted: The groups that have no other items than these.
            read_at: When the look began.
            is_whole: Also what not every claim accepts would have been seen.
            withholds: Whether an item must not be claimed, by its key.
        """
        groups: dict[str, deque[T]] = {group: deque() for group in asked}
        withheld: Counter[str] = Counter()
        for one in found:
            key, group = self._key_of(one), self._group_of(one)
            if key in self._gone:
                continue
            if withholds(key):
                withheld[group] += AND_AS_MANY
            else:
                groups[group].append(one)
        self._withheld_of = withheld
        self._groups, self._exhausted, self._read_at, self._used = groups, exhausted, read_at, 0
        self._is_whole = is_whole
        if is_whole:
            self._whole_at = read_at

    def serves(self, wanted: Mapping[str, int], total: int, now: float, accepts: Callable[[T], bool] | None) -> bool:
        """Whether a claim needs no look: what is known is fresh, fills what is free, and lets no group starve."""
        if now >= self._read_at + KEPT_FOR or not wanted.keys() <= self._groups.keys():
            return False
        counts = {group: self._count(group, most, accepts) for group, most in wanted.items()}
        if not all(counts[group] or group in self._exhausted for group in wanted):
            return False
        there = sum(counts.values())
        if accepts is None and not self._is_whole:
            # What this claim would accept was not looked for. It does for one that is filled by the others, and not
            # for long: what was not seen must neither be taken for not there nor wait for ever.
            return there >= total and now < self._whole_at + KEPT_FOR
        is_all = all(counts[group] == most or group in self._exhausted for group, most in wanted.items())
        return there >= total or (there > 0 and is_all)

    def _count(self, group: str, most: int, accepts: Callable[[T], bool] | None) -> int:
        there = self._groups[group]
        return min(most, len(there) if accepts is None else sum(map(accepts, there)))

    def candidates(self, wanted: Mapping[str, int], accepts: Callable[[T], bool] | None) -> list[T]:
        """The first ones of each group that are accepted, at most as many as wanted."""
        found: list[T] = []
        for group, most in wanted.items():
            there: Iterable[T] = self._groups.get(group, ())
            found += islice(there if accepts is None else filter(accepts, there), most)
        return found

    def ask_for(self, chosen: Sequence[T]) -> None:
        """A claim asks for these; another claim does not get them as candidates until it is answered."""
        keys = {self._key_of(one) for one in chosen}
        self._used += len(keys)
        self._in_flight |= keys
        self._gone |= keys
        by_group = Counter(map(self._group_of, chosen))
        self._in_flight_of.update(by_group)
        for group, left in by_group.items():
            there = self._groups[group]
            # Nearly always the first ones; the search for others would cost more than all the rest.
            while left and self._key_of(there[0]) in keys:
                there.popleft()
                left -= 1
            if left:
                self._groups[group] = deque(one for one in there if self._key_of(one) not in keys)

    def answered(self, chosen: Sequence[T]) -> None:
        """They have been taken, by us or others, or are due as before: the next look tells."""
        self._in_flight.difference_update(self._key_of(one) for one in chosen)
        self._in_flight_of.subtract(Counter(map(self._group_of, chosen)))

    def forget(self) -> None:
        """What is known is not to be relied on."""
        self._groups = {}
