"""JobSettlement: the end of a run on its way to the database, and what is written for it. No I/O.

The outcome of a run is final. How it is written may change until the database accepts it: see `settling.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from ..error_types import ScheduleEndedError, UnknownTimeZoneError
from ..foreign_errors import safe_error
from ..jobs.claim_stamps_and_fences import ClaimId
from ..jobs.conditional_write import LIGHTEST, Transition, applied, lightened
from ..jobs.error_history import Failure
from ..jobs.follow_ups import OWING
from ..jobs.job import Job, JobStatus, log_extra, made_of
from ..jobs.job_parts import FollowUpOwed
from ..jobs.outcomes import CutShort, Discarded, Outcome
from ..jobs.retries_and_next_occurrences import (
    RetryPolicy,
    ambiguous_schedule,
    decide,
    end_of_schedule,
    failed_for_good,
    left_to_others,
)
from ..log import logger_of
from ..safe_text import name_of
from ..store.jobs.settling import Fate

logger = logger_of("scheduler")


@dataclass(slots=True, eq=False)
class JobSettlement:
    """The outcome of one run, and what becomes of it.

    Attributes:
        job: The job as it was claimed.
        outcome: What the end of the run means for the job.
        policy: The retry policy of the worker.
        duration: How long the run took, in seconds.
        claim: The claim that it ends.
        transition, receipt: How it is written; set when its batch is prepared.
        fate: What became of the write; None until that is known.
        refusals: How often the server has refused to write it. Each time it is made lighter; see `lightened`.
        doubled_field: The name of a field of its schedule that the document contains twice. The job fails for good, as
            it is unknown which one is meant.
        schedule_ended: Why the next occurrence cannot be computed: the job fails for good, with any outcome.
    """

    job: Job
    outcome: Outcome
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
        job = self.job
        self.claim = job.id, None if job.claim is None else job.claim.token  # As `claim_id` makes it.


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
            "could not decide the outcome of job %s; it failed for good",
            settlement.job,
            extra=log_extra(settlement.job),
        )
        settlement.outcome = Discarded(safe_error(error))
        reason = f"{name_of(error)} while the end of the run was being decided"
        return failed_for_good(settlement.job, now, Failure(reason))


def _decided(settlement: JobSettlement, now: datetime) -> Transition:
    job, outcome = settlement.job, settlement.outcome
    try:
        if settlement.doubled_field is not None and not isinstance(outcome, CutShort):
            raise ambiguous_schedule(job, outcome, settlement.doubled_field, settlement.policy.error_text)
        return decide(job, outcome, now, settlement.policy, settlement.duration)
    except UnknownTimeZoneError as error:
        logger.warning("left job %s to another instance: %s", job, error, extra=log_extra(job))
        # The outcome changes too: what is reported must be what is written.
        settlement.outcome = CutShort()
        return left_to_others(job, now)
    except ScheduleEndedError as ended:
        settlement.schedule_ended = ended
        return end_of_schedule(job, outcome, now, ended, settlement.policy.error_text)


def is_pending_again(settlement: JobSettlement) -> bool:
    """Whether the job runs again: a retry, a snooze, a release or the next occurrence."""
    return settlement.transition is not None and settlement.transition.set.get("status") is JobStatus.PENDING


def needs_follow_up(settlement: JobSettlement) -> bool:
    """Return whether this settlement left a follow-up to enqueue."""
    # The claim has written the mark, and this end has left it: only an end that stays, and that was written by us,
    # owes.
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
    # Computed and not read: the guard held, so the document is exactly this. A read would cost a round trip for each
    # end.
    left = applied(settlement.job, transition)
    return made_of({**vars(left), "internals": replace(left.internals, receipt=settlement.receipt)})
