"""The ends of runs, on their way to the database: what each means, and the batches that write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ..client.rescued import Rescued
from ..engine.nursery import Engine
from ..errors import ScheduleEndedError
from ..jobs import transitions
from ..jobs.conditional_write import LIGHTEST, Transition, applied, lightened
from ..jobs.error_history import Failure, reason_of
from ..jobs.fences import ClaimId, claim_id
from ..jobs.job import Job, JobStatus, log_extra
from ..jobs.retry_policy import RetryPolicy, ambiguous_schedule, decide, end_of_schedule
from ..jobs.verdicts import CutShort, Discarded, Failed, Succeeded, Verdict
from ..log import logger_of
from ..safe_text import name_of
from ..store import settling
from ..store.settling import Fate, Statement

logger = logger_of("scheduler")


MOST_REFUSALS: Final = LIGHTEST + 1


@dataclass(slots=True, eq=False)
class JobSettlement:
    """One run's verdict, on its way to the database. The verdict is final; how it is written follows.

    Attributes:
        job: As it was claimed.
        verdict: What the run's end means.
        policy: By which the verdict is written.
        duration: The run's, in seconds.
        claim: Which claim it ends.
        transition, receipt: How it is written; set when its batch is prepared.
        fate: What became of it.
        refusals: How often the server has refused to write it. Each time it is made lighter; see `lightened`.
        doubled_field: The name of a field of its schedule that the document has twice. Which one is meant, nothing
            tells: the job fails for good.
        schedule_ended: The job fails for good, whatever the verdict: its next occurrence cannot be computed.
    """

    job: Job
    verdict: Verdict
    policy: RetryPolicy
    duration: float
    claim: ClaimId = field(init=False)
    transition: Transition | None = None
    receipt: str | None = None
    fate: Fate | None = None
    refusals: int = 0
    doubled_field: str | None = None
    schedule_ended: ScheduleEndedError | None = None

    def __post_init__(self) -> None:
        self.claim = claim_id(self.job)


class SettlementRefusedError(Exception):
    """The server refuses what a run's end would store; it becomes the reason of the failure that is stored instead."""

    def __init__(self, verdict: Verdict) -> None:
        what = reason_of(verdict.error)[:200] if isinstance(verdict, Failed | Discarded) else "it had succeeded"
        super().__init__(f"the database refused to store the run's end ({what})")


@dataclass(slots=True)
class Batch:
    """Settlements and the statements that write them; sent again as it is after an unknown outcome."""

    settlements: Sequence[JobSettlement]
    statements: list[Statement]


JobEngine = Engine[Job, JobSettlement, Batch, Job, Rescued]
"""The engine, for jobs."""


def prepared(settlements: Sequence[JobSettlement], now: datetime, receipt_prefix: str) -> Batch:
    """Decides what is written for each, and the fewest statements that write it.

    One-off jobs that succeed with nothing to store end alike where one cycle claimed them, and most jobs are such:
    for these it is decided once.
    """
    completions: dict[str | None, Transition] = {}
    ends = []
    for settlement in settlements:
        job = settlement.job
        is_usual = not settlement.refusals and settlement.doubled_field is None
        if job.repeat_interval is None and is_usual and _stores_nothing(settlement.verdict):
            transition = completions.get(job.claim_token)
            if transition is None:
                transition = completions[job.claim_token] = transitions.complete_claimed_with(job, now)
        else:
            transition = decided(settlement, now)
        settlement.transition = transition
        ends.append((settlement.claim, transition))
    statements = settling.statements_for(ends, receipt_prefix)
    for settlement, statement in zip(settlements, statements, strict=True):
        settlement.receipt = statement.receipt
    return Batch(settlements, list(dict.fromkeys(statements)))


def _stores_nothing(verdict: Verdict) -> bool:
    return isinstance(verdict, Succeeded) and verdict.result is None


def decided(settlement: JobSettlement, now: datetime) -> Transition:
    """What is written. An error of a user's making must not be able to spoil the batch that its job is in."""
    settlement.schedule_ended = None  # It may have been corrected since it was decided first.
    try:
        transition = _decided(settlement, now)
        return lightened(transition, min(settlement.refusals, LIGHTEST)) if settlement.refusals else transition
    except MemoryError:
        raise  # It is not about the job: the settler tries again.
    except BaseException as error:  # Also what a user's exception raises that is no Exception.
        logger.exception(
            "could not decide the end of job %s; it has failed", settlement.job, extra=log_extra(settlement.job)
        )
        settlement.verdict = Discarded(error)
        reason = f"{name_of(error)} while the end of the run was being decided"
        return transitions.fail(settlement.job, now, Failure(reason))


def _decided(settlement: JobSettlement, now: datetime) -> Transition:
    job, verdict = settlement.job, settlement.verdict
    try:
        if settlement.doubled_field is not None and not isinstance(verdict, CutShort):
            raise ambiguous_schedule(job, verdict, settlement.doubled_field, settlement.policy.error_text)
        return decide(job, verdict, now, settlement.policy)
    except ScheduleEndedError as ended:
        settlement.schedule_ended = ended
        return end_of_schedule(job, verdict, now, ended, settlement.policy.error_text)


def is_undecided(settlement: JobSettlement, fate: Fate) -> bool:
    return fate is Fate.SCHEDULE_CHANGED or (fate is Fate.REFUSED and settlement.refusals < MOST_REFUSALS)


def refused_once_more(settlement: JobSettlement) -> None:
    """The next attempt is lighter. What cannot be stored however light it is becomes a failure that can."""
    settlement.refusals += 1
    if settlement.refusals == MOST_REFUSALS:
        settlement.verdict = Failed(SettlementRefusedError(settlement.verdict))


def is_pending_again(settlement: JobSettlement) -> bool:
    return settlement.transition is not None and settlement.transition.set.get("status") is JobStatus.PENDING


def settled(settlement: JobSettlement) -> Job:
    """The job as the settlement left it in the database."""
    assert settlement.transition is not None, "it was written, so it was prepared"
    transition = settlement.transition
    if settlement.fate is Fate.CANCELLED and transition.otherwise is not None:
        transition = transition.otherwise
    # The statement is signed with its receipt, beside what the transition says.
    left = applied(settlement.job, transition)
    return Job.of({**vars(left), "receipt": settlement.receipt})
