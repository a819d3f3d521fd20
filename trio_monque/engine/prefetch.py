"""Candidates that were read ahead, and may be claimed until they are too old. Pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import Final, Generic, TypeVar

READ_PER_WITHHELD: Final = 2
"""How many more items the next look reads for each withheld one that the last look found. So the number doubles with
each look, and a few looks pass any number of withheld items."""

T = TypeVar("T")

KEPT_FOR: Final = 0.1
"""Seconds for which candidates are used at least. The order of claims is at most this old; the claim's own condition
finds what has changed since."""

KEPT_FOR_CLAIMS: Final = 2
"""They are used for as long as this number of claims takes, if that is longer: on a slow server, the next claim would
find all of them too old otherwise, and would look again."""

KEPT_AT_MOST: Final = 1.0
"""Seconds for which candidates are used at most."""

READ_AHEAD: Final = 4
"""At most this many times the number of items that may run at once is read."""

READ_AT_LEAST: Final = 400
"""At a low concurrency, at most this number is read: a look costs a round trip, however few items it finds."""


READ_PER_SLOT: Final = 4
"""If a look would read more items than this for each free slot, it divides what it reads among the groups."""

FAIR_SHARE: Final = 2
"""Then it reads this many items for each free slot, divided among the groups of one priority."""

LEAST_SHARE: Final = 4
"""At least this many of each group, so that most looks show which groups have more."""


class Prefetch(Generic[T]):
    """The candidates of the last look that no claim has asked for since. Other instances may have claimed them.

    Under a backlog a look reads far ahead, and the next claims need no look.

    Args:
        key_of: What identifies a candidate.
        group_of: The group whose concurrency limit it counts against.
    """

    def __init__(self, key_of: Callable[[T], Hashable], group_of: Callable[[T], str]) -> None:
        self._key_of = key_of
        self._group_of = group_of
        self._groups: dict[str, deque[T]] = {}
        self._exhausted: Collection[str] = ()
        # The groups without any item at the last look.
        self._empty: Set[str] = frozenset()
        self._read_at = self._whole_at = -math.inf
        self._is_whole = True
        self._unread: Set[str] = frozenset()
        self._used = 0
        self._kept_for = KEPT_FOR
        self._in_flight: set[Hashable] = set()
        self._in_flight_of: Counter[str] = Counter()
        # How many more items the next look reads because runs here withhold some that the last look found. Those stay
        # at the head until their runs end, and without this, they would fill each look that wants only a few.
        self._withheld_of: Counter[str] = Counter()
        # What claims have asked for since the look under way began. Its answer may still show these.
        self._gone: set[Hashable] = set()

    @property
    def full(self) -> frozenset[str]:
        """The groups that may have more items than were read."""
        return frozenset(group for group in self._groups if group not in self._exhausted)

    def reach(self, wanted: Mapping[str, int], total: int, capacity: int, now: float) -> Mapping[str, int]:
        """How many to read of each group: under a backlog, as many as claims will take while the answer is fresh.

        Args:
            wanted: How many of each group could start.
            total: How many could start in all.
            capacity: How many may run at once.
            now: On the same clock as `read_at`.
        """
        full = self.full & wanted.keys()
        if not full:
            return wanted
        age = now - self._read_at
        most = max(READ_AHEAD * capacity, READ_AT_LEAST)
        # As fast as claims have used the last answer, for as long as the next one is fresh.
        ahead = math.ceil(min(most, self._used * self._kept_for / age) if age > 0 else most)
        # As many as whole claims take: what is left over fills no claim, and is read again.
        ahead = ahead // total * total or ahead
        share = -(-ahead // len(full))
        return {group: max(count, share) if group in full else count for group, count in wanted.items()}

    def shares(self, wanted: Mapping[str, int], total: int, priority_of: Callable[[str], int]) -> Mapping[str, int]:
        """How many of each group a look should read, if fewer can start than the groups want together.

        With a hundred free slots and 64 groups that may each have all slots, a look would read 6,400 items to start a
        hundred. So the groups share what is read: those that had more at the last look, evenly; those that had
        nothing get one, which shows that they have something again. Only groups of one priority share: a group that
        goes before the others may take all slots.

        Args:
            wanted: How many of each group could start.
            total: How many could start in all.
            priority_of: The priority of a group.
        """
        if sum(wanted.values()) <= READ_PER_SLOT * total:
            return wanted
        full = self.full
        priorities = {group: priority_of(group) for group in wanted}
        of_priority = Counter(priorities.values())
        full_of_priority = Counter(priority for group, priority in priorities.items() if group in full)

        def share(group: str) -> int:
            if group in self._empty:
                return 1
            number = (full_of_priority if group in full else of_priority)[priorities[group]]
            return max(LEAST_SHARE, -(-FAIR_SHARE * total // number))

        return {group: min(count, share(group)) for group, count in wanted.items()}

    def beside_those_in_flight(self, wanted: Mapping[str, int]) -> Mapping[str, int]:
        """Adds the items that claims in flight have or that are withheld: a look sees these too."""
        if not (self._in_flight or self._withheld_of):
            return wanted
        beside = self._in_flight_of + self._withheld_of
        return {group: count + beside[group] for group, count in wanted.items()}

    @property
    def withheld(self) -> int:
        """How many items the next look may see that are withheld."""
        return self._withheld_of.total()

    @property
    def in_flight(self) -> Set[Hashable]:
        """The keys of the items that claims in flight have."""
        return frozenset(self._in_flight)

    def has_more(self, wanted: Collection[str]) -> bool:
        """Whether these groups may have more items than were read."""
        return not self.full.isdisjoint(wanted)

    def emptied(self, groups: Set[str]) -> Set[str]:
        """Those of these groups that the last look has read to the end, and that have no candidates left."""
        if not self._is_whole:
            return frozenset()
        return frozenset(group for group in groups if group in self._exhausted and not self._groups.get(group))

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
        unread: Collection[str] = (),
        is_running_here: Callable[[Hashable], bool] = lambda key: False,
    ) -> None:
        """What the look has found replaces all that was known.

        Args:
            found: Earliest first within each group.
            asked: The groups that were looked at.
            exhausted: The groups that have no other items than these.
            read_at: When the look began.
            is_whole, unread: See `FoundItems`.
            is_running_here: Whether this instance already runs an item, by its key: it must not be claimed again.
        """
        groups: dict[str, deque[T]] = {group: deque() for group in asked}
        withheld: Counter[str] = Counter()
        for one in found:
            key, group = self._key_of(one), self._group_of(one)
            if key in self._gone:
                continue
            if is_running_here(key):
                withheld[group] += READ_PER_WITHHELD
            else:
                groups[group].append(one)
        self._withheld_of = withheld
        self._empty = frozenset(
            group for group in exhausted if group in groups and not groups[group] and not withheld[group]
        )
        self._groups, self._exhausted, self._read_at, self._used = groups, exhausted, read_at, 0
        self._is_whole, self._unread = is_whole, frozenset(unread)
        if is_whole:
            self._whole_at = read_at

    def serves(self, wanted: Mapping[str, int], total: int, now: float, accepts: Callable[[T], bool] | None) -> bool:
        """Whether a claim needs no look: the candidates are fresh, fill the free slots, and leave out no group."""
        if now >= self._read_at + self._kept_for or not wanted.keys() <= self._groups.keys():
            return False
        counts = {group: self._count(group, most, accepts) for group, most in wanted.items()}
        # A group that the last look has not reached waits for the next one: a look for each claim would read large
        # items again and again.
        if not all(counts[group] or group in self._exhausted or group in self._unread for group in wanted):
            return False
        there = sum(counts.values())
        if accepts is None and not self._is_whole:
            # The last look left out items that this claim would accept. Its candidates suffice if they fill the claim,
            # and only for a while: without the second condition, the items left out would wait for ever.
            return there >= total and now < self._whole_at + KEPT_FOR
        is_all = all(counts[group] == most or group in self._exhausted for group, most in wanted.items())
        # An empty answer never spares a look: others may have inserted something since.
        return there >= total or (there > 0 and is_all)

    def _count(self, group: str, most: int, accepts: Callable[[T], bool] | None) -> int:
        there = self._groups[group]
        return min(most, len(there) if accepts is None else sum(map(accepts, there)))

    def candidates(self, wanted: Mapping[str, int], accepts: Callable[[T], bool] | None) -> list[T]:
        """The first accepted candidates of each group, at most as many as wanted."""
        found: list[T] = []
        for group, most in wanted.items():
            there: Iterable[T] = self._groups.get(group, ())
            found += islice(there if accepts is None else filter(accepts, there), most)
        return found

    def ask_for(self, chosen: Sequence[T]) -> Set[Hashable]:
        """A claim asks for these: until its answer, no other claim gets them as candidates. Returns their keys.

        There is no checkpoint between their choice and this call, so they are still the first of their groups.
        """
        keys = set(map(self._key_of, chosen))
        objects = set(map(id, chosen))  # They are the very objects that are kept here.
        self._used += len(keys)
        self._in_flight |= keys
        self._gone |= keys
        by_group = Counter(map(self._group_of, chosen))
        self._in_flight_of.update(by_group)
        for group, left in by_group.items():
            there = self._groups[group]
            # Nearly always these are the first ones, and searching for them would cost more than all the rest.
            while left and id(there[0]) in objects:
                there.popleft()
                left -= 1
            if left:
                self._groups[group] = deque(one for one in there if self._key_of(one) not in keys)
        return keys

    def answered(self, chosen: Sequence[T], keys: Set[Hashable], took: float) -> None:
        """The claim of these is answered. Those that are still due are in the next look.

        Args:
            chosen: What it asked for.
            keys: Theirs.
            took: Seconds from the claim to its answer.
        """
        self._kept_for = min(max(KEPT_FOR, KEPT_FOR_CLAIMS * took), KEPT_AT_MOST)
        self._in_flight.difference_update(keys)
        self._in_flight_of.subtract(Counter(map(self._group_of, chosen)))

    def forget(self) -> None:
        """Drops all candidates, because they may be wrong. Nothing is read ahead then until a look was undisturbed."""
        self._groups = {}
