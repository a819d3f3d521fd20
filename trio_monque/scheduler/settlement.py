"""JobSettlement: the end of a run on its way to the database, and the batches that write many ends.

The verdict of a run is final. How it is written may change until the database accepts it: `is_undecided` says when.
Every statement has the claim as its fence (`store/settling.py`). If another instance took the claim, the fate is LOST,
and nothing of the run is written over the job of the new holder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from ..client.rescuer import Rescued
from ..engine.nursery import Engine
from ..error_types import ScheduleEndedError, UnknownTimeZoneError
from ..foreign_errors import safe_error
from ..jobs import transitions
from ..jobs.conditional_write import LIGHTEST, Transition, applied, lightened
from ..jobs.error_history import Failure, reason_of
from ..jobs.fences import ClaimId, claim_id
from ..jobs.follow_ups import OWING
from ..jobs.job import Job, JobStatus, log_extra, made_of
from ..jobs.job_parts import FollowUpOwed
from ..jobs.retry_policy import (
    RetryPolicy,
    ambiguous_schedule,
    decide,
    end_of_schedule,
    failed_for_good,
    left_to_others,
)
from ..jobs.verdicts import CutShort, Discarded, Failed, Succeeded, Verdict
from ..log import logger_of
from ..safe_text import name_of
from ..store import settling
from ..store.settling import Fate, Statement

logger = logger_of("scheduler")


MOST_ROUNDS: Final = 10
"""The schedule may change between the read and the write that depends on it. More rounds than this are not chance."""

MOST_REFUSALS: Final = LIGHTEST + 1
"""How many refusals of one settlement are answered with another write. The last of these writes stores a failure."""


@dataclass(slots=True, eq=False)
class JobSettlement:
    """The verdict of one run, and what becomes of it.

    Attributes:
        job: The job as it was claimed.
        verdict: What the end of the run means for the job.
        policy: The retry policy of the worker.
        duration: How long the run took, in seconds.
        claim: The claim that it ends.
        transition, receipt: How it is written; set when its batch is prepared.
        fate: What became of the write; None until that is known.
        refusals: How often the server has refused to write it. Each time it is made lighter; see `lightened`.
        doubled_field: The name of a field of its schedule that the document contains twice. The job fails for good, as
            it is unknown which one is meant.
        schedule_ended: Why the next occurrence cannot be computed: the job fails for good, with any verdict.
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
    """The server refuses to store the end of a run. This error is the reason of the failure that is stored instead."""

    def __init__(self, verdict: Verdict) -> None:
        what = reason_of(verdict.error)[:200] if isinstance(verdict, Failed | Discarded) else "it had succeeded"
        super().__init__(f"the database refused to store the run's end ({what})")


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


JobEngine = Engine[Job, JobSettlement, Batch, Job, Rescued]
"""The engine with the types of jobs."""


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
        if job.schedule is None and is_usual and _stores_nothing(settlement.verdict):
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


def _stores_nothing(verdict: Verdict) -> bool:
    return isinstance(verdict, Succeeded) and verdict.result is None


def decided(settlement: JobSettlement, now: datetime) -> Transition:
    """Return what is written. An error in code of the user fails its own job, and does not stop the batch."""
    settlement.schedule_ended = None  # The stored schedule may have been corrected since the last decision.
    try:
        transition = _decided(settlement, now)
        return lightened(transition, min(settlement.refusals, LIGHTEST)) if settlement.refusals else transition
    except MemoryError:
        raise  # The job is not the cause: the settler tries again.
    except BaseException as error:
        # Code of the user (a backoff function, the text of an exception) may raise anything. It fails its own job;
        # otherwise it would stop the settler, and the batch that many other jobs are in.
        logger.exception(
            "could not decide the end of job %s; it has failed", settlement.job, extra=log_extra(settlement.job)
        )
        settlement.verdict = Discarded(safe_error(error))
        reason = f"{name_of(error)} while the end of the run was being decided"
        return failed_for_good(settlement.job, now, Failure(reason))


def _decided(settlement: JobSettlement, now: datetime) -> Transition:
    job, verdict = settlement.job, settlement.verdict
    try:
        if settlement.doubled_field is not None and not isinstance(verdict, CutShort):
            raise ambiguous_schedule(job, verdict, settlement.doubled_field, settlement.policy.error_text)
        return decide(job, verdict, now, settlement.policy)
    except UnknownTimeZoneError as error:
        logger.warning("job %s is left to another instance: %s", job, error, extra=log_extra(job))
        settlement.verdict = CutShort()
        return left_to_others(job, now)
    except ScheduleEndedError as ended:
        settlement.schedule_ended = ended
        return end_of_schedule(job, verdict, now, ended, settlement.policy.error_text)


def is_undecided(settlement: JobSettlement, fate: Fate) -> bool:
    """Whether another write must follow: nothing is stored yet, and a different write can succeed."""
    # JOB_CHANGED: the next occurrence was computed from a schedule that changed while the job ran, or a call has
    # replaced the data meanwhile.
    # REFUSED (a full document, a validator): the next write stores less. Otherwise the job would run again each time
    # its lease expires.
    return fate is Fate.JOB_CHANGED or (fate is Fate.REFUSED and settlement.refusals < MOST_REFUSALS)


def refused_once_more(settlement: JobSettlement) -> None:
    """Make the next write lighter. After the lightest one, store a failure in place of the verdict."""
    settlement.refusals += 1
    if settlement.refusals == MOST_REFUSALS:
        settlement.verdict = Failed(SettlementRefusedError(settlement.verdict))


def is_pending_again(settlement: JobSettlement) -> bool:
    """Whether the job runs again: a retry, a snooze, a release or the next occurrence."""
    return settlement.transition is not None and settlement.transition.set.get("status") is JobStatus.PENDING


def has_made_owe(settlement: JobSettlement) -> bool:
    """Whether the job owes a follow-up now: this end was written, and its worker has a `then`."""
    is_marked = isinstance(settlement.job.follow_up, FollowUpOwed) and settlement.fate is Fate.WRITTEN
    return is_marked and settlement.transition is not None and settlement.transition.set.get("status") in OWING


def settled(settlement: JobSettlement) -> Job:
    """The job as the settlement left it in the database."""
    assert settlement.transition is not None, "it was written, so it was prepared"
    transition = settlement.transition
    # A client had requested the cancellation, so `otherwise` was written instead.
    if settlement.fate is Fate.CANCELLED and transition.otherwise is not None:
        transition = transition.otherwise
    # The statement writes its receipt in addition to the transition.
    left = applied(settlement.job, transition)
    return made_of({**vars(left), "internals": replace(left.internals, receipt=settlement.receipt)})
