"""JobRenewals: renews the claims of this instance, and learns which were lost or are to be cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..engine.demand import ClaimState
from ..engine.lease import Beats
from ..jobs.claim_stamps_and_fences import claim_id
from ..jobs.job import Job
from ..store.driver.database_threads import Channel
from ..store.jobs import leases
from .context import SchedulerContext


class JobRenewals:
    """The `RenewalSource` of jobs. Used on the thread of the trio run; the command runs in a database thread."""

    def __init__(self, shared: SchedulerContext, beats: Beats) -> None:
        self._leased = shared.leased
        self._clock = shared.client.clock
        self._db_threads = shared.db_threads
        self._beats = beats

    async def renew(self, claims: Sequence[Job]) -> Sequence[ClaimState]:
        # Through the channel of renewals, so that no command of a handler is before it. Abandoned by a cancelled
        # caller: a renewal that is applied late only prolongs what the next one renews anyway.
        found = await self._db_threads.call(
            partial(leases.renew, self._leased, claims, self._beats.next(self._clock.now())),
            channel=Channel.RENEWALS,
            abandon_on_cancel=True,
        )
        return [
            # The order matters. A lost claim is not renewed either, and its run must end at once. After a
            # refused renewal it is not known whether a cancellation was requested: the next one finds that.
            ClaimState.LOST
            if claim_id(claim) in found.lost
            else ClaimState.NOT_RENEWED
            if claim_id(claim) in found.refused
            else ClaimState.CANCEL_REQUESTED
            if claim_id(claim) in found.cancel_requested
            else ClaimState.HELD
            for claim in claims
        ]
