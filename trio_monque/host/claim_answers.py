"""Claims items of any kind: Claiming chooses candidates, and Taking sends the write that takes them.

A claim is one guarded write with a new stamp. (A second write with the same stamp could be applied after a release of
the first, and no fence could tell these two claims apart.) Its answer can

- arrive: this instance holds what the answer grants, from the moment at which the write was sent;
- arrive after its caller was cancelled: the thread releases what the answer grants (`_hand_over`);
- be lost, by a timeout or an election: another command finds the claims that were applied (`_resolve`);
- be lost while the write is still on its way: its claims are orphaned, and released when they appear (`orphan`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Generic, Protocol, TypeVar

import trio

from ..client.server_time import ServerTime
from ..clock import virtual_time
from ..engine.candidates import Candidates, Finder
from ..engine.demand import Demand, Granted
from ..engine.orphaned_claims import OrphanedClaims
from ..error_types import MonqueConnectionError
from ..store.driver.database_threads import Channel, DatabaseThreads

ItemT = TypeVar("ItemT")
TakenT = TypeVar("TakenT")
AnswerT = TypeVar("AnswerT")
StampT = TypeVar("StampT", bound=Hashable)
StampT_contra = TypeVar("StampT_contra", bound=Hashable, contravariant=True)


@dataclass(frozen=True, slots=True)
class Taken(Generic[TakenT]):
    """What a claim took.

    Attributes:
        items: Held from now on.
        more: Whether another claim is worthwhile at once.
        tried: How many items it asked for and would have got without competition; None for all that were chosen.
    """

    items: Sequence[TakenT]
    more: bool = False
    tried: int | None = None


class ClaimKind(Protocol[StampT_contra, TakenT]):
    """What each kind of work implements: how to find and how to release the items that a claim has taken."""

    def resolving(self, stamp: StampT_contra, /) -> Callable[[], Sequence[TakenT]]:
        """Return a blocking function: it renews all claims with this stamp, and returns the items that they hold."""
        ...

    def release(self, stamp: StampT_contra, /, held: Sequence[TakenT], now: datetime) -> int:
        """In a thread: release all items with this stamp, except for those that are held; return how many."""
        ...

    def released(self) -> None:
        """In a thread, after `release`: items may be claimable again."""
        ...


class Taking(Generic[StampT, TakenT]):
    """Takes items, and accounts for each answer. Used on the thread of the trio run; commands run in database threads.

    Args:
        lease: Seconds after which a claim without a renewal expires.
    """

    def __init__(
        self, db_threads: DatabaseThreads, time: ServerTime, kind: ClaimKind[StampT, TakenT], lease: float
    ) -> None:
        self._db_threads = db_threads
        self._time = time
        self._kind = kind
        self._lease = lease
        self._orphaned: OrphanedClaims[StampT, TakenT] = OrphanedClaims(
            lambda stamp, held: kind.release(stamp, held, time.now())
        )

    async def take(self, take: Callable[[], Taken[TakenT]], stamp: StampT, number: int) -> Granted[TakenT]:
        """Call the guarded write `take` in a thread. It asks for that number of items, under a new stamp."""
        taken = await self._take(take, stamp, number)
        return Granted(taken.items, more=taken.more)

    async def _take(self, take: Callable[[], Taken[TakenT]], stamp: StampT, number: int) -> Taken[TakenT]:
        """Call `take`, which asks for that number of items; if its answer is lost, find out which of them are held."""
        try:
            return await self._hand_over(take, stamp)
        except MonqueConnectionError as error:
            if not error.unknown_outcome:
                raise
            held = await self._resolve(stamp, number)
            if not held:
                raise
            # The items that were not found may still be claimable, so another claim is worthwhile.
            return Taken(held, more=len(held) < number)

    async def _resolve(self, stamp: StampT, number: int) -> Sequence[TakenT]:
        held: Sequence[TakenT] = ()
        # Only the hard end cancels this (a claimer is not cancelled with other loops). Then the thread releases what
        # this command finds; what is applied after it ends with its lease.
        # If the answer of this command is lost, too, all items are orphaned below.
        with suppress(MonqueConnectionError):
            # A read alone proves nothing: on a primary that was cut off, it shows a claim that is then rolled back, and
            # two handlers run. So this command renews all claims with this stamp, acknowledged by a majority.
            held = await self._hand_over(self._kind.resolving(stamp), stamp)
        if len(held) < number:
            # The write may still be on its way, and be applied after this. For one lease, each heartbeat releases what
            # appears. What appears later, a reaper takes when it has observed the claim for a whole lease without a
            # renewal: that of any instance, also of this one.
            self.orphan(stamp, held, for_seconds=self._lease)
        return held

    def orphan(self, stamp: StampT, held: Sequence[TakenT], *, for_seconds: float = 0.0) -> None:
        """Release all items with this stamp, except for those that are held: once, and then at each heartbeat until
        `for_seconds` are over.
        """
        self._orphaned.add(stamp, held, until=trio.current_time() + for_seconds)

    async def _hand_over(self, call: Callable[[], AnswerT], stamp: StampT) -> AnswerT:
        # If the caller is cancelled, the thread goes on, and releases what it is granted. Otherwise the items would be
        # claimed and not run until the lease expires, and a rescuer would count that as the death of this instance.
        return await self._db_threads.hand_over(call, partial(self._release_late, stamp), channel=Channel.CLAIMS)

    def _release_late(self, stamp: StampT, _late: object) -> None:
        """In a thread, after its caller was cancelled; also if the call failed there, and its answer was lost."""
        # By the last measurement of the server's time: another measurement could fail, and the release with it.
        self._kind.release(stamp, (), self._time.clock.now())
        self._kind.released()

    # --- Orphaned claims: see OrphanSource ---

    def has_orphaned_claims(self) -> bool:
        return bool(self._orphaned)

    async def release_orphaned_claims(self) -> None:
        """Release orphaned claims and measure the server's time, in one call of a thread. About once per heartbeat.

        In virtual time all times come from the virtual clock, and nothing is measured.
        """
        if self._orphaned or virtual_time() is None:
            # Abandoned, the thread goes on, beside the next call at worst: `OrphanedClaims.release` allows that.
            release = partial(self._release_orphaned, trio.current_time())
            await self._db_threads.call(release, channel=Channel.CLAIMS, abandon_on_cancel=True)

    def _release_orphaned(self, moment: float) -> None:
        if virtual_time() is None:
            self._time.measure_clock_offset()
        if self._orphaned.release(moment):
            self._kind.released()


class Claiming(Taking[StampT, TakenT], Generic[ItemT, StampT, TakenT]):
    """Claims the items that a finder has found.

    Args:
        finder: Looks for items that can be claimed.

    Attributes:
        candidates: What the last looks have found.
    """

    def __init__(
        self,
        db_threads: DatabaseThreads,
        time: ServerTime,
        finder: Finder[ItemT],
        kind: ClaimKind[StampT, TakenT],
        lease: float,
    ) -> None:
        super().__init__(db_threads, time, kind, lease)
        self.candidates = Candidates(finder)

    async def claim(
        self,
        demand: Demand,
        new_stamp: Callable[[Sequence[ItemT], datetime], StampT],
        take: Callable[[Sequence[ItemT], StampT, datetime], Taken[TakenT]],
    ) -> Granted[TakenT]:
        """Claim up to the demanded number of items. `take` is the guarded write, called in a thread."""
        now = await self._time.refreshed(self._db_threads, Channel.CLAIMS)
        chosen = await self.candidates.choose(demand, now)
        # If as many were chosen as are demanded, nothing more could start, so there is no reason to ask again at once.
        may_be_more = len(chosen) < demand.total and self.candidates.may_be_more(demand, chosen)
        if not chosen:
            return Granted([], more=may_be_more)
        stamp = new_stamp(chosen, now)
        # While the claim is in flight, another claim does not choose these. The answer shows how many other instances
        # took first. It does not count if the claim raises.
        with self.candidates.asking_for(chosen) as answer:
            taken = await self._take(partial(take, chosen, stamp, now), stamp, len(chosen))
            answer.tried = len(chosen) if taken.tried is None else taken.tried
            answer.won = len(taken.items)
        exhausted = self.candidates.exhausted(demand)
        return Granted(taken.items, more=taken.more or may_be_more, exhausted=exhausted)
