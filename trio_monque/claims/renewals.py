"""DocumentRenewals: renews the locks of this instance, and learns which were lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from ..engine.demand import ClaimState
from ..engine.lease import Beats
from ..locks_and_dead_letters import renewed_until
from ..store import documents
from ..store.driver.database_threads import Channel
from .context import ClaimsContext
from .locked_document import Cycle, HeldDocument


class DocumentRenewals:
    """The `RenewalSource` of documents. Used on the thread of the trio run; the command runs in a database thread."""

    def __init__(self, shared: ClaimsContext, beats: Beats) -> None:
        self._leased = shared.leased
        self._db_threads = shared.db_threads
        self._time = shared.time
        self._heartbeat_interval = shared.config.heartbeat_interval
        self._beats = beats

    async def renew(self, claims: Sequence[HeldDocument]) -> Sequence[ClaimState]:
        every = self._heartbeat_interval
        # Programs that know only `by` and `until` take a lock when its date has passed by their clock. So the date
        # comes from the server's time, measured again if it is stale.
        now = await self._time.refreshed(self._db_threads, Channel.RENEWALS)
        until = renewed_until(self._beats.next(now), every)
        sent = trio.current_time()
        cycles: dict[Cycle, list[HeldDocument]] = {}
        for claim in claims:
            cycles.setdefault(claim.cycle, []).append(claim)
        fences = [(cycle.fence, [one.id for one in of_cycle]) for cycle, of_cycle in cycles.items()]
        for cycle in cycles:
            # Before the command is sent: if its answer is lost, the locks have the old date or the new one.
            cycle.renewing(until)
        lost = await self._db_threads.call(
            partial(documents.leases.renew, self._leased, fences, until),
            channel=Channel.RENEWALS,
            abandon_on_cancel=True,
        )
        for cycle, of_cycle in cycles.items():
            # One lock of a claim may be gone and others held. Only those that were found held are safe for longer.
            cycle.renewed(until, sent, [one.key for one in of_cycle if one.key not in lost])
        return [ClaimState.LOST if claim.key in lost else ClaimState.HELD for claim in claims]
