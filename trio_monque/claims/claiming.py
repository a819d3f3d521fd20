"""How documents are claimed, through the door: in pace, and what an answer hides is resolved."""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any

import trio

from ..client.server_time import ServerTime
from ..document_lock import LockStamp, renewed_until
from ..engine.beats import Beats
from ..engine.candidates import Candidates
from ..engine.demand import Demand, Due, Granted
from ..engine.disowned import DisownedClaims
from ..engine.source import Control
from ..errors import FilterStillMatchesError, MonqueConnectionError
from ..options import LEASE_IN_BEATS
from ..store import documents
from ..store.database_threads import Channel, DatabaseThreads
from ..store.documents.claiming import TakenDocument, TakenDocuments
from ..store.documents.locked_collection import LockedCollection
from .candidates import LANE, DocumentFinder
from .held import Cycle, HeldDocument
from .options import ClaimConfig
from .pace import Pace
from .repeats import Repeats
from .settlement import DocumentSettlement


class DocumentClaims:
    """Takes what is claimable. What an answer hides is resolved, and what is not found is disowned.

    Args:
        leased: The collection, for whatever must be answered within a beat.
        control: The engine's.
    """

    def __init__(
        self,
        locked: LockedCollection,
        leased: LockedCollection,
        door: DatabaseThreads,
        time: ServerTime,
        config: ClaimConfig,
        beats: Beats,
        repeats: Repeats,
        control: Control[HeldDocument, DocumentSettlement],
    ) -> None:
        self._locked = locked
        self._leased = leased
        self._door = door
        self._time = time
        self._config = config
        self._beats = beats
        self._repeats = repeats
        self._control = control
        self._pace = Pace(config.rate_limit)
        self._finder = DocumentFinder(leased, door)
        self._candidates: Candidates[Any] = Candidates(self._finder)
        self._disowned: DisownedClaims[Cycle] = DisownedClaims(
            lambda cycle, held: documents.claiming.release_all(
                locked, cycle.stamp, time.now(), but=held, ids=cycle.asked
            )
        )
        self._places = count()

    def key_of(self, document_id: Any) -> Hashable:
        """What tells the document from all others."""
        return self._finder.key_of(document_id)

    async def claim(self, demand: Demand) -> Granted[HeldDocument]:
        now = await self._time.refreshed(self._door, Channel.CLAIMS)
        most = self._pace.begin(trio.current_time(), demand.total)
        if most < demand.total:
            demand = replace(demand, total=most, lanes={LANE: most})
        granted: Granted[HeldDocument] = Granted([])
        try:
            chosen = await self._candidates.choose(demand, now) if most else []
            if chosen:
                granted = await self._take(chosen, now)
        finally:
            self._pace.not_begun(most - len(granted.claims))
        if self._pace.next_at > trio.current_time():
            self._control.expect(self._pace.next_at)
        may_be_more = len(chosen) < most and self._candidates.may_be_more(demand)
        return replace(granted, more=granted.more or may_be_more)

    async def _take(self, chosen: Sequence[Any], now: datetime) -> Granted[HeldDocument]:
        self._beats.claimed(now)
        config = self._config
        stamp = LockStamp.new(config.instance_id, now, config.heartbeat_interval, secrets.token_hex(6))
        cycle = Cycle(stamp, chosen, trio.current_time())
        with self._candidates.asking_for(chosen) as answer:
            taken = await self._taken(chosen, now, cycle)
            answer.won = len(taken.documents)
        held = [
            HeldDocument(one.id, one.key, one.document, one.tries, cycle, next(self._places)) for one in taken.documents
        ]
        again = next((one for one in held if self._repeats.is_repeat(one.key)), None)
        if again is None:
            return Granted(held, more=taken.more)
        # The one that was finished before, and the others of its claim, are given back unrun.
        self._disowned.add(cycle, [], until=trio.current_time())
        self._control.end_with(FilterStillMatchesError(again.id, self._locked.shown_filter))
        return Granted([])

    async def _taken(self, chosen: Sequence[Any], now: datetime, cycle: Cycle) -> TakenDocuments:
        try:
            return await self._door.hand_over(
                partial(documents.claiming.take, self._leased, chosen, now, cycle.stamp),
                orphan=partial(self._give_back, cycle),
                channel=Channel.CLAIMS,
            )
        except MonqueConnectionError as error:
            if not error.unknown_outcome:
                raise
            found = await self._resolve(chosen, cycle)
            if not found:
                raise
            # What was not found is claimable as before, as far as anybody knows.
            return TakenDocuments(found, more=len(found) < len(chosen))

    def _give_back(self, cycle: Cycle, _late: object) -> None:
        """In a thread that nobody waits for: what was granted too late."""
        documents.claiming.release_all(self._locked, cycle.stamp, self._time.clock.now(), ids=cycle.asked)

    async def _resolve(self, chosen: Sequence[Any], cycle: Cycle) -> Sequence[TakenDocument]:
        """What a claim holds whose answer was lost. What is not found is disowned: it may be applied later."""
        stamp, found = cycle.stamp, list[TakenDocument]()
        until = renewed_until(self._beats.next(self._time.clock.now()), stamp.every)
        cycle.renewing(until)
        with suppress(MonqueConnectionError):
            found += await self._door.hand_over(
                partial(documents.claiming.resolve, self._leased, stamp, until, ids=chosen),
                orphan=partial(self._give_back, cycle),
                channel=Channel.CLAIMS,
            )
        if len(found) < len(chosen):
            lease = LEASE_IN_BEATS * stamp.every
            self._disowned.add(cycle, [one.id for one in found], until=trio.current_time() + lease)
        return found

    async def next_due(self, lanes: Set[str]) -> Due | None:
        # Not after now: what came to be free since the look would be neither claimed nor told.
        ask = partial(documents.due.next_due, self._locked, self._candidates.looked_at)
        due = await self._door.call(ask, channel=Channel.CLAIMS, abandon_on_cancel=True)
        if due is None:
            return None
        # Nor before the pace allows a look: what has come to be due since the last one would be asked for, and be the
        # answer, again and again until then.
        return Due(max(self._time.clock.on_run_clock(due), self._pace.next_at))

    async def is_anything_left(self) -> bool:
        """Whether there is, or may be again, something to claim."""
        now = await self._time.refreshed(self._door, Channel.CLAIMS)
        ask = partial(documents.due.is_anything_left, self._locked, now)
        return await self._door.call(ask, abandon_on_cancel=True)

    # --- Orphaned claims ---

    def has_orphaned_claims(self) -> bool:
        return bool(self._disowned)

    def release_orphaned_claims(self, moment: float) -> int:
        """In a thread: gives back what was disowned and has been applied since; how many."""
        return self._disowned.give_back(moment)
