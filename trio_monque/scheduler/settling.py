"""JobSettling: writes the ends of runs, in batches, until each is decided.

1. `prepare` decides what is written for each settlement, and makes the fewest statements that write all of it.
2. `settle` sends them. Every statement has the claim as its fence (`store/jobs/settling.py`). If another instance took
   the claim, the fate is LOST, and nothing of the run is written over the job of the new holder.
3. A settlement is undecided if nothing is stored yet and a different write can succeed. It is decided again: with the
   schedule that the job has now, or lighter than the write that the server refused. Then it is sent once more.

An outage may interrupt this anywhere. The batch keeps what has been done, and the next call goes on from there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Final

from ..client.client_context import ClientContext
from ..error_types import BrokenDocumentError
from ..jobs import transitions
from ..jobs.claim_stamps_and_fences import ClaimId
from ..jobs.conditional_write import LIGHTEST, Transition
from ..jobs.error_history import reason_of
from ..jobs.job import Job, log_extra
from ..jobs.outcomes import CutShort, Discarded, Failed, Outcome, Succeeded
from ..log import logger_of
from ..store.broken import doubled_fields
from ..store.driver.database_threads import Channel, DatabaseThreads
from ..store.jobs import settling
from ..store.jobs.settling import Fate, Statement
from .context import SchedulerContext
from .settlement import JobSettlement, decided, is_pending_again, needs_follow_up, settled

logger = logger_of("scheduler")

MOST_ROUNDS: Final = 10
"""The schedule may change between the read and the write that depends on it. More rounds than this are not chance."""

MOST_REFUSALS: Final = LIGHTEST + 1
"""How many refusals of one settlement are answered with another write. The last of these writes stores a failure."""


@dataclass(slots=True)
class Batch:
    """Settlements and the statements that write them.

    If its answer is lost, the batch is sent again exactly as it is: by the receipts in its statements, the source
    recognises what the first attempt has written. So it is not prepared a second time while its outcome is unknown.

    Attributes:
        statements: What is still to be sent.
        undecided: The settlements that the last answer left open, with their fates.
        decided: The settlements that were decided again since, and whose statements are not made yet.
    """

    settlements: Sequence[JobSettlement]
    statements: list[Statement]
    undecided: list[tuple[JobSettlement, Fate]] = field(default_factory=list)
    decided: list[JobSettlement] = field(default_factory=list)


class JobSettling:
    """The `SettlementSource` of jobs. Used on the thread of the trio run; commands run in database threads.

    Args:
        announce: Announces jobs to the schedulers of this trio run.
        jobs_ended: Enqueues the follow-ups of jobs.
        parents_ended: Ends the live children of these jobs.
    """

    def __init__(
        self,
        shared: SchedulerContext,
        announce: Callable[[Sequence[Job]], None],
        jobs_ended: Callable[[Sequence[Job]], None],
        parents_ended: Callable[[Sequence[Job]], None],
    ) -> None:
        self._context = shared.client
        self._db_threads = shared.db_threads
        self._announce = announce
        self._jobs_ended = jobs_ended
        self._parents_ended = parents_ended

    async def prepare(self, settlements: Sequence[JobSettlement]) -> Batch:
        now = await self._context.refreshed(self._db_threads, Channel.RENEWALS)
        return prepared(settlements, now, secrets.token_hex(8))

    async def settle(self, batch: Batch) -> Sequence[bool]:
        rounds = 0
        while batch.statements or batch.undecided or batch.decided:
            # The source is also called again after an outage in the middle of a decision: then some are decided, and
            # others are not.
            if batch.undecided or batch.decided:
                await self._decide_again(batch)
            fates = await self._write(batch.statements)
            rounds += 1
            # Whatever fails from here on, only the undecided ones are sent again. The next claim on a settled job may
            # have overwritten its receipt, and a second send would report it as lost.
            batch.statements = []
            for settlement in batch.settlements:
                fate = fates.get(settlement.claim)
                if fate is None:
                    continue  # An earlier round decided it.
                if fate is Fate.WRITTEN or not is_undecided(settlement, fate):
                    settlement.fate = fate
                elif rounds < MOST_ROUNDS:
                    batch.undecided.append((settlement, fate))
                else:
                    logger.error(
                        "could not settle job %s, because it kept changing; it runs again when its lease expires",
                        settlement.job,
                        extra=log_extra(settlement.job),
                    )
                    settlement.fate = Fate.LOST
        self.announce_written(batch.settlements)
        return [settlement.fate in (Fate.WRITTEN, Fate.CANCELLED) for settlement in batch.settlements]

    async def _decide_again(self, batch: Batch) -> None:
        """Decide the undecided settlements, and make the statements that write them. A call after an outage goes on."""
        while batch.undecided:
            settlement, fate = batch.undecided[-1]
            if fate is Fate.REFUSED:
                refused_once_more(settlement)
            else:
                try:
                    await bring_up_to_date(settlement, self._context, self._db_threads)
                except BrokenDocumentError as error:
                    # Without its schedule no other end can be decided.
                    logger.warning("%s; releasing its claim without counting an attempt", error)
                    settlement.outcome = CutShort()
            # Each is decided once, also if the next one meets an outage: a refusal must not be counted twice.
            batch.decided.append(settlement)
            batch.undecided.pop()
        batch.statements = (await self.prepare(batch.decided)).statements
        batch.decided = []

    async def _write(self, statements: Sequence[Statement]) -> Mapping[ClaimId, Fate]:
        return await self._db_threads.call(
            partial(settling.settle, self._context.jobs, statements),
            channel=Channel.RENEWALS,
            abandon_on_cancel=True,
        )

    def announce_written(self, settlements: Sequence[JobSettlement]) -> None:
        """Announce the jobs that run again, and let the follow-ups of the others be enqueued."""
        again = [one for one in settlements if one.fate is Fate.WRITTEN and is_pending_again(one)]
        if again:
            self._announce([settled(one) for one in again])
        if owing := [one.job for one in settlements if one.job.follow_up is not None and needs_follow_up(one)]:
            self._jobs_ended(owing)
        if parents := [one.job for one in settlements if one.job.nursery is not None]:
            self._parents_ended(parents)


async def bring_up_to_date(settlement: JobSettlement, context: ClientContext, db_threads: DatabaseThreads) -> None:
    """Read the schedule of the job again, and what a call has left in it for another run.

    The guard of the next write compares exactly what is read here.
    """
    found = await db_threads.call(
        partial(doubled_fields.current_schedule, context.jobs, settlement.job.id),
        channel=Channel.RENEWALS,
        abandon_on_cancel=True,
    )
    if found is None:
        return  # The job was deleted: the next write finds the claim lost.
    current, settlement.doubled_field = found
    settlement.job = replace(settlement.job, schedule=current.schedule, again=current.again)


def prepared(settlements: Sequence[JobSettlement], now: datetime, receipt_prefix: str) -> Batch:
    """Decide what is written for each settlement, and make the fewest statements that write all of it.

    Most jobs are one-off jobs that succeed without a result. Those of one claim end with the same write, which is
    decided once.
    """
    completions: dict[tuple[str | None, bool], Transition] = {}
    ends = []
    for settlement in settlements:
        job = settlement.job
        is_usual = not settlement.refusals and settlement.doubled_field is None and job.again is None
        is_usual = is_usual and job.nursery is None  # The end clears it.
        outcome = settlement.outcome
        if job.schedule is None and is_usual and type(outcome) is Succeeded and outcome.result is None:
            shared_by = settlement.claim[1], job.unique_key is None  # A job with a key may have been replaced.
            transition = completions.get(shared_by)
            if transition is None:
                transition = completions[shared_by] = transitions.complete_claimed_with(job, now)
        else:
            transition = decided(settlement, now)
        settlement.transition = transition
        ends.append((settlement.claim, transition))
    statements = settling.statements_for(ends, receipt_prefix)
    for settlement, statement in zip(settlements, statements, strict=True):
        settlement.receipt = statement.receipt
    return Batch(settlements, list(dict.fromkeys(statements)))


def is_undecided(settlement: JobSettlement, fate: Fate) -> bool:
    """Whether another write must follow: nothing is stored yet, and a different write can succeed."""
    # JOB_CHANGED: the next occurrence was computed from a schedule that changed while the job ran, or a call has
    # replaced the data meanwhile.
    # REFUSED (a full document, a validator): the next write stores less. Otherwise the job would run again each time
    # its lease expires.
    return fate is Fate.JOB_CHANGED or (fate is Fate.REFUSED and settlement.refusals < MOST_REFUSALS)


def refused_once_more(settlement: JobSettlement) -> None:
    """Make the next write lighter. After the lightest one, store a failure in place of the outcome."""
    settlement.refusals += 1
    if settlement.refusals == MOST_REFUSALS:
        settlement.outcome = Failed(SettlementRefusedError(settlement.outcome))


class SettlementRefusedError(Exception):
    """The server refuses to store the end of a run. This error is the reason of the failure that is stored instead."""

    def __init__(self, outcome: Outcome) -> None:
        what = reason_of(outcome.error)[:200] if isinstance(outcome, Failed | Discarded) else "it had succeeded"
        super().__init__(f"the database refused to store the run's end ({what})")
