"""JobRescues: finds claims of dead instances and takes them away, for one scheduler.

Observation alone decides which claim is dead (`observations.py`). The write takes a claim away only if its owner,
token, date and last renewal are still those that were seen: an instance that renews after the look keeps its job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Final

import trio

from ..client.rescuer import RescueBatch, Rescued, Rescuer, pending_again
from ..engine.source import Control
from ..error_types import InstanceCollisionError, MonqueConnectionError
from ..jobs.claim_stamps_and_fences import ClaimId, claim_id
from ..jobs.follow_ups import owes
from ..jobs.instance import evidence_of, is_of_a_stranger
from ..jobs.job import Job
from ..jobs.job_parts import NO_CLAIM
from ..observations import Sighting
from ..store.driver.database_threads import Channel
from .context import SchedulerContext
from .settlement import JobSettlement

REMINDED_AFTER_BEATS: Final = 10
"""Heartbeat intervals for which a shared instance id makes the scheduler unhealthy, and is not logged again."""


class JobRescues:
    """The `RescueSource` of jobs.

    It reports and announces each rescue that the database accepted, also if its caller was cancelled meanwhile.

    Args:
        announce: Announces jobs to the schedulers of this trio run; None for unknown ones.
        jobs_ended: Enqueues the follow-ups of jobs.
        parents_ended: Ends the live children of these jobs, unless the jobs run again.
    """

    def __init__(
        self,
        shared: SchedulerContext,
        announce: Callable[[Sequence[Job] | None], None],
        jobs_ended: Callable[[Sequence[Job]], None],
        control: Control[Job, JobSettlement],
        parents_ended: Callable[[Sequence[Job]], None],
    ) -> None:
        self._parents_ended = parents_ended
        self._context = shared.client
        self._db_threads = shared.db_threads
        self._reporter = shared.reporter
        config = shared.config
        self._id = config.instance_id
        self._reminded_after = REMINDED_AFTER_BEATS * config.heartbeat_interval
        self._announce = announce
        self._jobs_ended = jobs_ended
        self._control = control
        self._rescuer = Rescuer(shared.client)
        # The batch itself belongs to the thread that runs it, and to the run again when that thread has answered.
        self._unanswered: RescueBatch | None = None

    async def observe(self, own: Sequence[Job]) -> Sequence[Sighting[Job]]:
        """Return a sighting of each claim that is not ours. Report another process that uses this instance's id."""
        look = partial(self._look, {claim_id(job) for job in own})
        sightings, proof = await self._db_threads.call(look, channel=Channel.CLAIMS, abandon_on_cancel=True)
        if proof is not None:
            error = InstanceCollisionError(self._id, evidence_of(proof))
            self._reporter.id_shared(error, proof, until=trio.current_time() + self._reminded_after)
        return sightings

    def _look(self, ours: Set[ClaimId]) -> tuple[Sequence[Sighting[Job]], Job | None]:
        """Runs in a database thread: for thousands of claims, even this would block the event loop."""
        # The clock is asked after the look: a claim's time begins with the answer that showed it, and not before.
        found = self._rescuer.look()
        now = self._context.now()
        # By id and token: this instance may have lost a claim without knowing it, and then the claim of the other
        # instance on the same job must be observed.
        sightings = [self._rescuer.sighting(job, now) for job in found if claim_id(job) not in ours]
        under_our_id = (job for job in found if (job.claim or NO_CLAIM).by == self._id)
        return sightings, next((job for job in under_our_id if is_of_a_stranger(job, now)), None)

    async def rescue(self, dead: Sequence[Job]) -> Sequence[Rescued]:
        """Take these claims away. After a transient error, call it again: it repeats what was sent."""
        # If the answer is lost, the same statements are sent again: the receipts that they leave in the documents prove
        # which changes were ours. New statements would match nothing, and the rescued jobs would never be reported.
        batch = self._unanswered = self._unanswered or self._rescuer.batch(dead)
        try:
            await self._db_threads.hand_over(
                batch.run, orphan=lambda _late: self._report_late(batch), channel=Channel.CLAIMS
            )
        except MonqueConnectionError:
            # Announce only the jobs whose fate is known. A scheduler that ran one of the others would overwrite the
            # receipt by which the next attempt recognises its own change.
            self._report(self._announced(batch))
            raise
        # Only now: an error above keeps the batch, and the next call sends the same statements.
        self._unanswered = None
        rescued = self._announced(batch)
        self._jobs_ended([one.after for one in rescued if owes(one.after)])
        self._parents_ended([one.before for one in rescued])
        return rescued

    def rescue_abandoned(self) -> None:
        self._announce(None)

    def _announced(self, batch: RescueBatch) -> Sequence[Rescued]:
        rescued = batch.collect()
        self._announce(pending_again(rescued))
        return rescued

    def _report_late(self, batch: RescueBatch) -> None:
        """Runs in a database thread whose caller was cancelled: the scheduler leaves.

        The other schedulers of this run must learn of the rescued jobs. Otherwise these would wait for a poll, and in
        virtual time for ever.
        """
        if batch.is_unknown:
            self._announce(None)
        self._control.post(partial(self._report, self._announced(batch)))

    def _report(self, rescued: Sequence[Rescued]) -> None:
        if rescued:
            self._reporter.claims_rescued(rescued)
