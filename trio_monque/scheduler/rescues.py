"""What a scheduler sees of the claims of others, and how it takes dead ones away: through the door."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Final

import trio

from ..client.rescued import Rescued, pending_again
from ..client.rescuing import Rescuer, Taking
from ..engine.source import Control
from ..errors import InstanceCollisionError, MonqueConnectionError
from ..jobs.fences import ClaimId, claim_id
from ..jobs.instance import evidence_of, is_of_a_stranger
from ..jobs.job import Job
from ..observations import Sighting
from ..store.database_threads import Channel
from .context import SchedulerContext
from .settlement import JobSettlement

REMINDED_AFTER_BEATS: Final = 10
"""Heartbeat intervals after which a shared instance id is logged again, or is no longer a reason to be unhealthy."""


class Rescues:
    """Looks and takes; what the database has accepted is told and announced, whoever still waits for the answer."""

    def __init__(
        self,
        shared: SchedulerContext,
        announce: Callable[[Sequence[Job] | None], None],
        control: Control[Job, JobSettlement],
    ) -> None:
        self._context = shared.client
        self._door = shared.door
        self._reporter = shared.reporter
        config = shared.config
        self._id = config.instance_id
        self._reminded_after = REMINDED_AFTER_BEATS * config.heartbeat_interval
        self._announce = announce
        self._control = control
        self._rescuer = Rescuer(shared.client)
        self._unanswered: Taking | None = None

    async def observe(self, ours: Set[ClaimId]) -> Sequence[Sighting[Job]]:
        """All claims but ours. Reports another process that uses this instance's id."""
        look = partial(self._look, ours)
        sightings, proof = await self._door.call(look, channel=Channel.CLAIMS, abandon_on_cancel=True)
        if proof is not None:
            error = InstanceCollisionError(self._id, evidence_of(proof))
            self._reporter.id_shared(error, proof, until=trio.current_time() + self._reminded_after)
        return sightings

    def _look(self, ours: Set[ClaimId]) -> tuple[Sequence[Sighting[Job]], Job | None]:
        """In a thread: where there are thousands, even this would keep the loop busy."""
        found = self._rescuer.look()
        now = self._context.now()
        sightings = [self._rescuer.sighting(job, now) for job in found if claim_id(job) not in ours]
        under_our_id = (job for job in found if job.claimed_by == self._id)
        return sightings, next((job for job in under_our_id if is_of_a_stranger(job, now)), None)

    async def rescue(self, claims: Sequence[Job]) -> Sequence[Rescued]:
        """Takes these away; asked again after an error that passes, it sends the same: so it knows what was its own."""
        taking = self._unanswered = self._unanswered or self._rescuer.taking(claims)
        try:
            await self._door.hand_over(taking.run, orphan=lambda _late: self._tell_late(taking), channel=Channel.CLAIMS)
        except MonqueConnectionError:
            # Nobody is woken yet: who ran these jobs would overwrite the receipts by which the next try knows its own.
            self._tell(self._announced(taking))
            raise
        self._unanswered = None
        return self._announced(taking)

    def _announced(self, taking: Taking) -> Sequence[Rescued]:
        rescued = taking.collect()
        self._announce(pending_again(rescued))
        return rescued

    def _tell_late(self, taking: Taking) -> None:
        """In a thread that nobody waits for: the scheduler leaves."""
        if taking.is_unknown:
            self._announce(None)
        self._control.on_trio_thread(partial(self._tell, self._announced(taking)))

    def _tell(self, rescued: Sequence[Rescued]) -> None:
        if rescued:
            self._reporter.claims_rescued(rescued)
