"""Claims documents that match the filter and are free, as fast as the rate limit allows.

The guarded write is in `store/documents/claiming.py`, and the handling of lost answers in `host/claiming.py`. What is
special for documents, and the race that each part closes:

- A lock holds until the date in it, and foreign programs know only that date. A renewal moves it, and its answer may be
  lost. So the Cycle of the claim notes each renewal before it is sent, also the one that resolves a lost answer. From
  then on the lock may have either date, and every fenced write accepts both.
- A handler finishes a document, and the filter still matches. This instance would claim it again at once, and so
  without end. ReclaimGuard knows these documents. The first that is claimed again ends the claims with an error; the
  whole claim is orphaned, so that every document in it is released, and none of them runs.
- The rate limit admits five starts and the claim brings three. Starts are counted before the claim, as a second claim
  may begin while the first is in flight; those that did not happen are given back to the limit in `finally`.
- A document becomes free between the last look and the question what is due next. `next_due` is therefore counted from
  the moment of that look and not from now: otherwise the document would be neither claimed nor announced.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any

import trio

from ..document_lock import LockStamp, renewed_until
from ..engine.candidates import Candidates
from ..engine.demand import Demand, Due, Granted
from ..engine.lease import Beats
from ..engine.source import Control
from ..errors import FilterStillMatchesError
from ..host.claiming import Claiming, Taken
from ..options import LEASE_IN_BEATS
from ..store import documents
from ..store.database_threads import Channel
from ..store.documents.claiming import TakenDocument
from .candidates import GROUP, DocumentFinder
from .context import ClaimsContext
from .locked_document import Cycle, HeldDocument
from .rate_limit import RateLimit
from .reclaim_guard import ReclaimGuard
from .settlement import DocumentSettlement

ClaimedDocument = tuple[TakenDocument, Cycle]
"""A document that a claim has taken, and the cycle of that claim."""


class DocumentClaims:
    """The claiming half of DocumentSource. Used on the thread of the trio run.

    Args:
        control: What it may ask of the engine.
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
        self._db_threads = db_threads = shared.db_threads
        self._time = time = shared.time
        self._config = config = shared.config
        self._beats = beats
        self._reclaim_guard = reclaim_guard
        self._control = control
        self._rate_limit = RateLimit(config.rate_limit)
        self._finder = DocumentFinder(shared.leased, db_threads)
        self._candidates: Candidates[Any] = Candidates(self._finder)
        lease = LEASE_IN_BEATS * config.heartbeat_interval
        self._claiming: Claiming[Any, Cycle, ClaimedDocument] = Claiming(
            db_threads, time, self._candidates, self, lease
        )
        self.has_orphaned = self._claiming.has_orphaned
        self.release_orphaned = self._claiming.release_orphaned
        self._numbers = count()

    def key_of(self, document_id: Any) -> Hashable:
        """Return a hashable value that identifies the document."""
        return self._finder.key_of(document_id)

    async def claim(self, demand: Demand) -> Granted[HeldDocument]:
        now = await self._time.refreshed(self._db_threads, Channel.CLAIMS)
        most = self._rate_limit.begin(trio.current_time(), demand.total)
        if most < demand.total:
            demand = replace(demand, total=most, groups={GROUP: most})
        granted: Granted[HeldDocument] = Granted([])
        try:
            if most:
                granted = self._granted(await self._claiming.claim(demand, now, partial(self._take, now)))
        finally:
            self._rate_limit.not_begun(most - len(granted.claims))
        if self._rate_limit.next_at > trio.current_time():
            self._control.expect(self._rate_limit.next_at)
        return granted

    def _take(self, now: datetime, chosen: Sequence[Any], cycle: Cycle) -> Taken[ClaimedDocument]:
        """In a thread."""
        taken = documents.claiming.take(self._leased, chosen, now, cycle.stamp)
        return Taken([(one, cycle) for one in taken.documents], more=taken.more)

    def _granted(self, taken: Taken[ClaimedDocument]) -> Granted[HeldDocument]:
        held = [
            HeldDocument(one.id, one.key, one.document, one.tries, cycle, next(self._numbers))
            for one, cycle in taken.items
        ]
        again = next((one for one in held if self._reclaim_guard.is_repeat(one.key)), None)
        if again is None:
            return Granted(held, more=taken.more)
        # Orphaned: the document that was finished before is released, with all others of the same claim, and none runs.
        self._claiming.orphan(again.cycle, ())
        self._control.end_with(FilterStillMatchesError(again.id, self._locked.shown_filter))
        return Granted([])

    # --- The kind of claim: see ClaimKind ---

    def stamp(self, chosen: Sequence[Any], now: datetime) -> Cycle:
        self._beats.claimed(now)
        config = self._config
        stamp = LockStamp.new(config.instance_id, now, config.heartbeat_interval, secrets.token_hex(6))
        return Cycle(stamp, chosen, trio.current_time())

    def resolving(self, cycle: Cycle) -> Callable[[], Sequence[ClaimedDocument]]:
        stamp = cycle.stamp
        until = renewed_until(self._beats.next(self._time.clock.now()), stamp.every)
        # Noted before it is sent: if this answer is lost as well, the renewal may still have been applied.
        cycle.renewing(until)

        def resolve() -> Sequence[ClaimedDocument]:
            found = documents.claiming.resolve(self._leased, stamp, until, ids=cycle.asked)
            return [(one, cycle) for one in found]

        return resolve

    def release(self, cycle: Cycle, held: Sequence[Any], now: datetime) -> int:
        return documents.claiming.release_all(self._locked, cycle.stamp, now, but=held, ids=cycle.asked)

    def released(self) -> None:
        self._control.on_trio_thread(lambda: self._control.expect(trio.current_time()))

    @staticmethod
    def id_of(taken: ClaimedDocument) -> Any:
        return taken[0].id

    # --- What is due later ---

    async def next_due(self, groups: Set[str]) -> Due | None:
        # Counted from the last look, and not from now: see the top of this file.
        ask = partial(documents.due.next_due, self._locked, self._candidates.looked_at)
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
