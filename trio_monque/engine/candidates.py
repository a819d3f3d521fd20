"""Which items to claim next, for sources that look before they claim (see `Finder`).

`Prefetch` has what was read ahead. If that does not suffice, a look reads more, at a place that `Contention` chooses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar

import trio

from .contention import Contention
from .demand import Demand, FoundItems, Reading
from .prefetch import Prefetch

T = TypeVar("T")


class Finder(Protocol[T]):
    """What a kind of work that looks before it claims implements: how to look, and which candidates to choose."""

    def key_of(self, item: T, /) -> Hashable:
        """What identifies the item; see `ClaimTraits.key`."""
        ...

    def group_of(self, item: T, /) -> str:
        """The group whose concurrency limit the item would count against."""
        ...

    def priority_of(self, group: str, /) -> int:
        """The priority of a group: of two, items of the higher one are chosen first."""
        ...

    def groups(self, demand: Demand) -> Mapping[str, int]:
        """How many items of each group could start, as far as is known before a look."""
        ...

    def accepts(self, demand: Demand) -> Callable[[T], bool] | None:
        """Which items the claim can use; None for all."""
        ...

    def choose(self, found: Sequence[T], demand: Demand) -> Sequence[T]:
        """As many of these as can start, in the order in which they would start."""
        ...

    async def look(self, reading: Reading, demand: Demand, now: datetime) -> FoundItems[T]:
        """Candidates of the wanted groups. It writes nothing.

        Args:
            reading: What to read.
            demand: What the claim is for.
            now: By the server's time.
        """
        ...


@dataclass(slots=True)
class Answer:
    """How a claim went: how many candidates it asked for, and how many of them it got."""

    tried: int
    won: int = 0


class Candidates(Generic[T]):
    """Chooses candidates for several claims at the same time, all on the run's own thread.

    Attributes:
        contention: How much other instances take of what is seen here.
        looked_at: The moment of the last look, by the server's time. It has not seen what is due later.
    """

    looked_at: datetime

    def __init__(self, finder: Finder[T]) -> None:
        self.contention = Contention()
        self._finder = finder
        self._prefetch: Prefetch[T] = Prefetch(finder.key_of, finder.group_of)
        # One look at a time: a second claim waits for the first one's look, and then mostly needs none.
        self._looking = trio.Lock()
        self._was_forced = False

    async def choose(self, demand: Demand, now: datetime) -> Sequence[T]:
        """The candidates that can start, in the order in which they would; without those that a claim in flight has."""
        finder = self._finder
        if not self._are_known(demand):
            async with self._looking:
                # Another claim may have looked meanwhile.
                if not self._are_known(demand):
                    await self._look(demand, now)
        # Asked again: the look may have shown a group that must not be claimed from.
        return finder.choose(self._prefetch.candidates(finder.groups(demand), finder.accepts(demand)), demand)

    def may_be_more(self, demand: Demand, chosen: Sequence[T]) -> bool:
        """Whether more items may start than those that were chosen for this demand."""
        number = Counter(map(self._finder.group_of, chosen))
        wanted = self._finder.groups(demand)
        # Not of a group that got all that it could start, although it has more: a look for it would find no slot.
        return self._prefetch.has_more([group for group, most in wanted.items() if number[group] < most])

    def exhausted(self, demand: Demand) -> Set[str]:
        """The groups of this demand that have no items beside those that claims have asked for, as far as is known."""
        return self._prefetch.emptied(demand.groups.keys())

    @contextmanager
    def asking_for(self, chosen: Sequence[T]) -> Iterator[Answer]:
        """Goes around the claim of these candidates, which sets the answer."""
        prefetch, answer = self._prefetch, Answer(len(chosen))
        is_all = not prefetch.full  # Before the claim: another look may replace what this one was chosen from.
        keys, asked_at = prefetch.ask_for(chosen), trio.current_time()
        try:
            yield answer
        finally:
            prefetch.answered(chosen, keys, trio.current_time() - asked_at)
        # Not after an error: what was claimed is unknown.
        self.contention.took(answer.tried, answer.won, is_all=is_all)
        if answer.won < answer.tried:
            # Other instances were here, and may have the rest of what was read ahead too. If another look has replaced
            # it meanwhile, that costs one more look.
            prefetch.forget()

    def _are_known(self, demand: Demand) -> bool:
        if demand.force_look:
            return False  # What was read ahead may be older than what was announced.
        finder = self._finder
        return self._prefetch.serves(finder.groups(demand), demand.total, trio.current_time(), finder.accepts(demand))

    async def _look(self, demand: Demand, now: datetime) -> None:
        prefetch = self._prefetch
        # Read ahead only if neither this look nor the one before was forced: the next announcement would throw it away.
        is_quiet, self._was_forced = not (demand.force_look or self._was_forced), demand.force_look
        read_at = trio.current_time()  # Before the look, so that its answer counts as older than it may be.
        wanted = prefetch.shares(demand.groups, demand.total, self._finder.priority_of)
        if is_quiet:
            wanted = self.contention.reads(prefetch.reach(wanted, demand.total, demand.capacity, read_at))
        passed_over = self.contention.passed_over(wanted, read_at)
        wanted = prefetch.beside_those_in_flight(wanted)
        prefetch.look()
        # Withheld items count: otherwise a look that finds only these would end before the others, again and again.
        enough = demand.total + prefetch.withheld
        reading = Reading(wanted, passed_over, enough, prefetch.in_flight)
        found = await self._finder.look(reading, demand, now)
        self.looked_at = now
        prefetch.fill(
            found.items,
            found.asked,
            found.exhausted,
            read_at,
            is_whole=found.is_whole,
            unread=found.unread,
            is_running_here=demand.is_running_here,
        )
        number = Counter(map(self._finder.group_of, found.items))
        of_each = {group: number[group] for group in found.asked}
        self.contention.looked(passed_over, of_each, full=prefetch.full, short=found.short)
