"""How items are claimed, whatever they are: choose candidates, take them, and account for each answer that is lost.

A claim is one guarded write. Four things can happen to its answer, and each has its own way here:

- *It arrives.* What it granted is held from the moment at which the write was sent.
- *The caller was cancelled meanwhile.* The write may have been applied, and the thread still runs: what it grants is
  released in that thread (`DatabaseThreads.hand_over`). Otherwise it would bear a live instance's name, and no handler.
- *It is lost* (a timeout, an election), so that the outcome is unknown. A read alone proves nothing: on a primary that
  was cut off, it shows a claim that is then rolled back, and two handlers run. So `resolving` renews by the whole
  fence, acknowledged by a majority: what that finds is held.
- *It is lost, and some items are not found.* The write may still be on its way, and be applied after the resolution.
  These are orphaned claims: whatever bears the stamp, except for what is held, is released at each heartbeat for one
  lease. After that, the observation of any other instance is over, and its reaper takes them.

The stamp of a claim is new each time. A repeated write with the same stamp could be applied twice, the second time
after a release: two claims would be one to every fence.
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
        more: Whether it is worth claiming again at once.
        tried: How many it asked for, and could have got if no other instance had been faster; None for all that were
            chosen.
    """

    items: Sequence[TakenT]
    more: bool = False
    tried: int | None = None


class ClaimKind(Protocol[ItemT_contra, StampT, TakenT]):
    """What differs between kinds of work: how a claim is stamped, found again, and released."""

    def stamp(self, chosen: Sequence[ItemT_contra], now: datetime) -> StampT:
        """A new stamp for a claim of these, which is about to be sent."""
        ...

    def resolving(self, stamp: StampT) -> Callable[[], Sequence[TakenT]]:
        """A blocking function that renews by the whole fence, and returns what bears the stamp and is held."""
        ...

    def release(self, stamp: StampT, held: Sequence[Any], now: datetime) -> int:
        """In a thread: releases all that bears the stamp, except for these ids; returns how many."""
        ...

    def released(self) -> None:
        """In a thread, after `release` may have released something: it can be claimed again."""
        ...

    def id_of(self, taken: TakenT) -> Any:
        """The id by which `release` excepts it."""
        ...


class Claiming(Generic[ItemT, StampT, TakenT]):
    """Claims for one source. Used on the run's own thread; the commands go through the door.

    Args:
        lease: Seconds for which a claim lives without a renewal.
    """

    def __init__(
        self,
        door: DatabaseThreads,
        time: ServerTime,
        candidates: Candidates[ItemT],
        kind: ClaimKind[ItemT, StampT, TakenT],
        lease: float,
    ) -> None:
        self._door = door
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
        """Claims as many as there are, at most what is demanded; `take` is the guarded write, called in a thread."""
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
        """What `take` took, which asks for that number of items; resolved where the answer was lost."""
        try:
            return await self._hand_over(take, stamp)
        except MonqueConnectionError as error:
            if not error.unknown_outcome:
                raise
            held = await self._resolve(stamp, number)
            if not held:
                raise
            # What was not found can be claimed as before, as far as is known.
            return Taken(held, more=len(held) < number)

    async def _resolve(self, stamp: StampT, number: int) -> Sequence[TakenT]:
        held: Sequence[TakenT] = ()
        with suppress(MonqueConnectionError):
            held = await self._hand_over(self._kind.resolving(stamp), stamp)
        if len(held) < number:
            self.orphan(stamp, held, for_seconds=self._lease)
        return held

    def orphan(self, stamp: StampT, held: Sequence[TakenT], *, for_seconds: float = 0.0) -> None:
        """Of what bears the stamp, only these are held: the others are released, once at least, and for that long."""
        ids = [self._kind.id_of(one) for one in held]
        self._orphaned.add(stamp, ids, until=trio.current_time() + for_seconds)

    async def _hand_over(self, call: Callable[[], AnswerT], stamp: StampT) -> AnswerT:
        return await self._door.hand_over(call, partial(self._release_late, stamp), channel=Channel.CLAIMS)

    def _release_late(self, stamp: StampT, _late: object) -> None:
        """In a thread whose caller was cancelled."""
        self._kind.release(stamp, (), self._time.clock.now())
        self._kind.released()

    # --- Orphaned claims ---

    def has_orphaned(self) -> bool:
        return bool(self._orphaned)

    async def release_orphaned(self) -> None:
        """About once per heartbeat. Measures the server's time as well: the thread asks the server anyway."""
        if self._orphaned or virtual_time() is None:
            release = partial(self._release_orphaned, trio.current_time())
            await self._door.call(release, channel=Channel.CLAIMS, abandon_on_cancel=True)

    def _release_orphaned(self, moment: float) -> None:
        if virtual_time() is None:
            self._time.measure_clock_offset()
        if self._orphaned.release(moment):
            self._kind.released()
