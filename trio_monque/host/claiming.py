"""Claims items of any kind: chooses candidates, takes them, and resolves answers that are lost.

A claim is one guarded write. Four things can happen to its answer, and this file has a case for each:

- *It arrives.* What it granted is held from the moment at which the write was sent.
- *The caller was cancelled meanwhile.* The write may have been applied, and the thread still runs. The thread releases
  what it grants (`DatabaseThreads.hand_over`). Otherwise the item would be claimed by a live instance, and never run.
- *It is lost* (a timeout, an election), so that the outcome is unknown. A read alone proves nothing: on a primary that
  was cut off, it shows a claim that is then rolled back, and two handlers run. So `resolving` renews by the whole
  fence, acknowledged by a majority. The items that this finds are held.
- *It is lost, and some items are not found.* The write may still be on its way, and be applied after the resolution.
  These are orphaned claims: for one lease, each heartbeat releases every item with this stamp that is not held. After
  that, any other instance has observed the claim for a whole lease, and its reaper takes the item.

Each claim has a new stamp. A repeated write with the same stamp could be applied twice, the second time after a
release. No fence could tell these two claims apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import trio

from ..client.server_time import ServerTime
from ..clock import virtual_time
from ..engine.candidates import Candidates
from ..engine.demand import Demand
from ..engine.orphaned_claims import OrphanedClaims
from ..errors import MonqueConnectionError
from ..store.database_threads import Channel, DatabaseThreads

ItemT = TypeVar("ItemT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)
TakenT = TypeVar("TakenT")
AnswerT = TypeVar("AnswerT")
StampT = TypeVar("StampT", bound=Hashable)


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


class ClaimKind(Protocol[ItemT_contra, StampT, TakenT]):
    """What each kind of work implements: how to stamp, resolve and release a claim."""

    def stamp(self, chosen: Sequence[ItemT_contra], now: datetime) -> StampT:
        """Make a new stamp for a claim of these items, which is about to be sent."""
        ...

    def resolving(self, stamp: StampT) -> Callable[[], Sequence[TakenT]]:
        """Return a blocking function: it renews by the whole fence, and returns the items held under the stamp."""
        ...

    def release(self, stamp: StampT, held: Sequence[Any], now: datetime) -> int:
        """In a thread: release all items with this stamp, except for these ids; return how many."""
        ...

    def released(self) -> None:
        """In a thread, after `release`: items may be claimable again."""
        ...

    def id_of(self, taken: TakenT) -> Any:
        """Return the id by which `release` excepts the item."""
        ...


class Claiming(Generic[ItemT, StampT, TakenT]):
    """Claims for one source. Used on the thread of the trio run; commands run in database threads.

    Args:
        lease: Seconds after which a claim without a renewal expires.
    """

    def __init__(
        self,
        db_threads: DatabaseThreads,
        time: ServerTime,
        candidates: Candidates[ItemT],
        kind: ClaimKind[ItemT, StampT, TakenT],
        lease: float,
    ) -> None:
        self._db_threads = db_threads
        self._time = time
        self._candidates = candidates
        self._kind = kind
        self._lease = lease
        self._orphaned: OrphanedClaims[StampT] = OrphanedClaims(
            lambda stamp, held: kind.release(stamp, held, time.now())
        )

    async def claim(
        self, demand: Demand, now: datetime, take: Callable[[Sequence[ItemT], StampT], Taken[TakenT]]
    ) -> Taken[TakenT]:
        """Claim up to the demanded number of items. `take` is the guarded write, called in a thread."""
        chosen = await self._candidates.choose(demand, now)
        may_be_more = len(chosen) < demand.total and self._candidates.may_be_more(demand)
        if not chosen:
            return Taken([], more=may_be_more)
        stamp = self._kind.stamp(chosen, now)
        with self._candidates.asking_for(chosen) as answer:
            taken = await self.take(partial(take, chosen, stamp), stamp, len(chosen))
            answer.tried = len(chosen) if taken.tried is None else taken.tried
            answer.won = len(taken.items)
        return replace(taken, more=taken.more or may_be_more)

    async def take(self, take: Callable[[], Taken[TakenT]], stamp: StampT, number: int) -> Taken[TakenT]:
        """Call `take`, which asks for that number of items; if its answer is lost, resolve which of them are held."""
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
        with suppress(MonqueConnectionError):
            held = await self._hand_over(self._kind.resolving(stamp), stamp)
        if len(held) < number:
            self.orphan(stamp, held, for_seconds=self._lease)
        return held

    def orphan(self, stamp: StampT, held: Sequence[TakenT], *, for_seconds: float = 0.0) -> None:
        """Release all items with this stamp except those that are held: once, and again for that many seconds."""
        ids = [self._kind.id_of(one) for one in held]
        self._orphaned.add(stamp, ids, until=trio.current_time() + for_seconds)

    async def _hand_over(self, call: Callable[[], AnswerT], stamp: StampT) -> AnswerT:
        return await self._db_threads.hand_over(call, partial(self._release_late, stamp), channel=Channel.CLAIMS)

    def _release_late(self, stamp: StampT, _late: object) -> None:
        """In a thread, after its caller was cancelled."""
        self._kind.release(stamp, (), self._time.clock.now())
        self._kind.released()

    # --- Orphaned claims ---

    def has_orphaned(self) -> bool:
        return bool(self._orphaned)

    async def release_orphaned(self) -> None:
        """Release orphaned claims and measure the server's time, in one call of a thread. About once per heartbeat."""
        if self._orphaned or virtual_time() is None:
            release = partial(self._release_orphaned, trio.current_time())
            await self._db_threads.call(release, channel=Channel.CLAIMS, abandon_on_cancel=True)

    def _release_orphaned(self, moment: float) -> None:
        if virtual_time() is None:
            self._time.measure_clock_offset()
        if self._orphaned.release(moment):
            self._kind.released()
