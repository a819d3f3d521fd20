"""Claims documents that match the filter and are free, as fast as the rate limit allows.

The guarded write is in `store/documents/claiming.py`; `host/claim_answers.py` handles answers that are lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any

import trio

from ..engine.contention import Contention
from ..engine.demand import Demand, Due, FoundItems, Granted, Reading
from ..engine.lease import Beats
from ..engine.source import Control
from ..error_types import FilterStillMatchesError
from ..host.claim_answers import Claiming, Taken
from ..host.one_group import GROUP, NamesNoItems
from ..locks_and_dead_letters import LockStamp, renewed_until
from ..options_and_defaults import LEASE_IN_BEATS
from ..store import documents
from ..store.documents.claiming import TakenDocument
from ..store.driver.database_threads import Channel
from ..store.driver.types import ObjectId
from .context import ClaimsContext
from .locked_document import Cycle, HeldDocument
from .rate_limit import RateLimit
from .reclaim_guard import ReclaimGuard
from .settlement import DocumentSettlement

ClaimedDocument = tuple[TakenDocument, Cycle]
"""A document that a claim has taken, and the cycle of that claim."""


class DocumentClaims(NamesNoItems):
    """The `ClaimSource` of documents: finds the ids of free ones, and claims these. On the thread of the trio run.

    Args:
        control: What it may ask of the engine.

    Attributes:
        claiming: Claims for these documents, and releases orphaned claims.
    """

    def __init__(
        self,
        shared: ClaimsContext,
        beats: Beats,
        reclaim_guard: ReclaimGuard,
        control: Control[HeldDocument, DocumentSettlement],
    ) -> None:
        self._locked = shared.locked
        self._leased = shared.leased
        self._db_threads = shared.db_threads
        self._time = shared.time
        self._config = config = shared.config
        self._beats = beats
        self._reclaim_guard = reclaim_guard
        self._control = control
        self._rate_limit = RateLimit(config.rate_limit)
        lease = LEASE_IN_BEATS * config.heartbeat_interval
        self.claiming: Claiming[Any, Cycle, ClaimedDocument] = Claiming(
            shared.db_threads, shared.time, self, self, lease
        )
        self._numbers = count()

    @property
    def contention(self) -> Contention:
        """How many of the documents that this instance saw it did not get."""
        return self.claiming.candidates.contention

    # --- The finder: see Finder ---

    def key_of(self, document_id: Any) -> Hashable:
        # Most ids are ObjectIds. For these the key costs nothing; `LockedCollection.key_of` encodes the id as BSON.
        return document_id if type(document_id) is ObjectId else self._locked.key_of(document_id)

    def group_of(self, _document_id: Any) -> str:
        return GROUP

    def priority_of(self, _group: str) -> int:
        return 0

    def groups(self, demand: Demand) -> Mapping[str, int]:
        return demand.groups

    def accepts(self, demand: Demand) -> Callable[[Any], bool] | None:
        return None

    def choose(self, found: Sequence[Any], demand: Demand) -> Sequence[Any]:
        return found

    async def look(self, reading: Reading, demand: Demand, now: datetime) -> FoundItems[Any]:
        # It reads ids alone: nothing here is large, and the look reads all that is wanted.
        wanted, passed_over = reading.wanted, reading.passed_over
        look: Callable[[], documents.due.SeenIds] = partial(
            documents.due.survey, self._leased, wanted[GROUP], now, passed_over=passed_over.get(GROUP, 0)
        )
        seen = await self._db_threads.call(look, channel=Channel.CLAIMS, abandon_on_cancel=True)
        return FoundItems(seen.ids, wanted, (GROUP,) if seen.is_all else (), (GROUP,) if seen.is_short else ())

    # --- Claims ---

    async def claim(self, demand: Demand) -> Granted[HeldDocument]:
        # Starts are counted before the claim is sent, because another claim may begin while this one is in flight.
        most = self._rate_limit.begin(trio.current_time(), demand.total)
        if most < demand.total:
            demand = replace(demand, total=most, groups={GROUP: most})
        granted: Granted[HeldDocument] = Granted([])
        try:
            if most:
                granted = self._granted(await self.claiming.claim(demand, self._new_cycle, self._take))
        finally:
            # The claim may bring fewer documents than the limit admits.
            self._rate_limit.not_begun(most - len(granted.claims))
        if self._rate_limit.next_at > trio.current_time():
            self._control.expect(self._rate_limit.next_at)
        return granted

    def _take(self, chosen: Sequence[Any], cycle: Cycle, now: datetime) -> Taken[ClaimedDocument]:
        """In a thread."""
        taken = documents.claiming.take(self._leased, chosen, now, cycle.stamp)
        return Taken([(one, cycle) for one in taken.documents], more=taken.more)

    def _granted(self, granted: Granted[ClaimedDocument]) -> Granted[HeldDocument]:
        held = [
            HeldDocument(one.id, one.key, one.document, one.tries, cycle, next(self._numbers))
            for one, cycle in granted.claims
        ]
        again = next((one for one in held if self._reclaim_guard.is_repeat(one.key)), None)
        if again is None:
            return Granted(held, more=granted.more)
        # A finished document still matches the filter. This instance would claim it again and again, so the claims end
        # with an error. As an orphan, each document of this claim is released, and none of them runs.
        self.claiming.orphan(again.cycle, ())
        self._control.end_with(FilterStillMatchesError(again.id, self._locked.shown_filter))
        return Granted([])

    def _new_cycle(self, chosen: Sequence[Any], now: datetime) -> Cycle:
        self._beats.claimed(now)
        config = self._config
        stamp = LockStamp.new(config.instance_id, now, config.heartbeat_interval, secrets.token_hex(6))
        return Cycle(stamp, chosen, trio.current_time())

    # --- The kind of claim: see ClaimKind ---

    def resolving(self, cycle: Cycle) -> Callable[[], Sequence[ClaimedDocument]]:
        stamp = cycle.stamp
        until = renewed_until(self._beats.next(self._time.clock.now()), stamp.every)
        # Noted before it is sent: if this answer is lost as well, the locks may have the old date or the new one, and
        # every fenced write must accept both.
        cycle.renewing(until)

        def resolve() -> Sequence[ClaimedDocument]:
            found = documents.claiming.resolve(self._leased, stamp, until, ids=cycle.asked)
            return [(one, cycle) for one in found]

        return resolve

    def release(self, cycle: Cycle, held: Sequence[ClaimedDocument], now: datetime) -> int:
        but = [one.id for one, _ in held]
        return documents.claiming.release_all(self._locked, cycle.stamp, now, but=but, ids=cycle.asked)

    def released(self) -> None:
        """In a thread: the released documents are due now."""
        self._control.post(lambda: self._control.expect(trio.current_time()))

    # --- What is due later ---

    async def next_due(self, groups: Set[str]) -> Due | None:
        # After the last look, and not after now: a document that became free in between was too early for the look, and
        # too late for a question about the time after now.
        ask = partial(documents.due.next_due, self._locked, self.claiming.candidates.looked_at)
        due = await self._db_threads.call(ask, channel=Channel.CLAIMS, abandon_on_cancel=True)
        if due is None:
            return None
        # But not earlier than the rate limit admits a start. A document that is due by now would be the answer to every
        # question until then, and the engine would ask in a tight loop.
        return Due(max(self._time.clock.on_run_clock(due), self._rate_limit.next_at))

    async def is_anything_left(self) -> bool:
        """Whether a document can be claimed now, or later without a repair. Dead letters do not count."""
        now = await self._time.refreshed(self._db_threads, Channel.CLAIMS)
        ask = partial(documents.due.is_anything_left, self._locked, now)
        return await self._db_threads.call(ask, abandon_on_cancel=True)
