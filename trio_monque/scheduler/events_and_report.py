"""JobReporter: turns what the engine observes into events, log records, counts and the report.

An event or a log line about a job states what the database has accepted, and never what the scheduler has only tried.
So a settlement is reported after its write was acknowledged, with the job as the write left it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from .. import events
from ..client.event_delivery import EventDelivery
from ..client.local_wakeups import WAITING, announce_ends
from ..client.rescuer import Rescued, log_and_events_of
from ..engine.exceptions import begin_at_handler
from ..error_types import DocumentRefusedError, InstanceCollisionError, ScheduleEndedError
from ..foreign_errors import is_a
from ..host.log_lines_of_jobs_and_documents import MOST_NAMED, HostEnd, Reporter, named
from ..jobs.error_history import kept_reason, logged_traceback
from ..jobs.job import Job, JobStatus, log_extra
from ..jobs.minutes import DONE, FAILED_ATTEMPTS
from ..jobs.outcomes import CutShort, Discard, Discarded, Failed, Snoozed, Succeeded, error_beside
from ..jobs.retries_and_next_occurrences import will_retry
from ..log import exc_info_of, logger_of
from ..safe_text import name_of
from ..store.jobs.refused_claims import SetAside
from ..store.jobs.settling import Fate
from .minute_counts import MinuteCounts
from .settlement import JobSettlement, settled
from .statistics import SchedulerTally

logger = logger_of("scheduler")


@dataclass(frozen=True, kw_only=True)
class SchedulerReport:
    """What a scheduler did; available when it has ended.

    Attributes:
        completed: Runs that succeeded.
        failed: Runs that failed, with or without tries left.
        released: Runs whose claims were released without counting an attempt, and runs that were snoozed.
        unfinished: Jobs whose claims were neither settled nor released; their leases expire, and other workers take
            them.
        crashed: The errors that ended the scheduler itself, as opposed to its handlers.
        loop_blocked: How many times something blocked the event loop for longer than a second. No claim is renewed
            meanwhile. Each time is logged with the frames that blocked it. Not counted in virtual time.
        undelivered_events: Events that listeners did not receive, because too many waited or the scheduler had to end.
    """

    completed: int = 0
    failed: int = 0
    released: int = 0
    unfinished: tuple[Job, ...] = ()
    crashed: tuple[BaseException, ...] = ()
    loop_blocked: int = 0
    undelivered_events: int = 0


NOT_ENDED: Final[HostEnd[Job]] = HostEnd(cause="")


class JobReporter(Reporter[Job, JobSettlement, Rescued, SchedulerReport]):
    """The engine's observer, for jobs. Called on the thread of the run, except where a method says otherwise."""

    def __init__(
        self,
        event_delivery: EventDelivery,
        instance: str = "",
        namespace: str = "",
        *,
        shows_errors: bool = True,
        full_tracebacks: bool = False,
        minutes: MinuteCounts | None = None,
    ) -> None:
        self._namespace = namespace
        self._shows_errors = shows_errors
        self._full_tracebacks = full_tracebacks
        self._minutes = minutes
        self._count = _not_counted if minutes is None else minutes.count
        super().__init__(event_delivery, logger, "scheduler", "job", instance)
        self.tally = SchedulerTally()
        # One sentence for each of the last schedules that ended: the warnings of `health()`.
        self.ended_schedules: deque[str] = deque(maxlen=MOST_NAMED)
        self._id_shared_until = -math.inf
        self._id_shared = ""

    def report(self, end: HostEnd[Job]) -> SchedulerReport:
        if end.unfinished:
            logger.error(
                "shut down before some jobs were settled or released (%d); "
                "other workers rescue them when their leases expire: %s",
                len(end.unfinished),
                named(end.unfinished),
            )
        return self.so_far(end)

    def so_far(self, end: HostEnd[Job] = NOT_ENDED) -> SchedulerReport:
        """The report of what the scheduler has done until now."""
        return SchedulerReport(
            completed=self.tally.completed,
            failed=self.tally.failed,
            released=self.tally.released + self.tally.snoozed,
            unfinished=end.unfinished,
            crashed=end.crashed,
            loop_blocked=end.loop_blocked,
            undelivered_events=self.event_delivery.undelivered,
        )

    def counts(self, report: SchedulerReport) -> Mapping[str, int]:
        return {
            "completed": report.completed,
            "failed": report.failed,
            "released": report.released,
            "unfinished": len(report.unfinished),
        }

    def id_shared(self, error: InstanceCollisionError, proof: Job, until: float) -> None:
        """Report that another process uses this instance's id.

        Args:
            error: Which id, and why this is sure.
            proof: A claim of the other process.
            until: A moment on trio's clock. Until then the scheduler is unhealthy, and the same finding is not logged
                again.
        """
        self._id_shared = str(error)  # Before the moment: another thread may ask for complaints in between.
        if trio.current_time() >= self._id_shared_until:
            logger.error("%s", error, extra=log_extra(proof))
            self.event_delivery.emit(events.SchedulerErrorOccurred(error, proof))
            self._id_shared_until = until

    def complaints(self, now: float) -> Sequence[str]:
        return (self._id_shared,) if now < self._id_shared_until else ()

    def jobs_set_aside(self, jobs: Sequence[SetAside]) -> None:
        """Report jobs on which the server refuses every claim. The store has logged them."""
        announce_ends(self._namespace)
        for one in jobs:
            error = DocumentRefusedError(one.reason)
            if one.job.status is JobStatus.FAILED:
                self.tally.unclaimable += 1
                if self._minutes is not None:
                    self._minutes.failed_without_run(one.job)
                self.event_delivery.emit(events.JobFailed(one.job, error, will_retry=False))
            else:
                self.event_delivery.emit(events.SchedulerErrorOccurred(error, one.job))

    def jobs_ended_unstarted(self, jobs: Sequence[Job]) -> None:
        """Report jobs that were cancelled because no run began by their `start_by`."""
        if not jobs:
            return
        announce_ends(self._namespace)
        for job in jobs:
            self.tally.cancelled += 1
            self.tally.ends[job.name, "cancelled"] += 1
            logger.info("job %s was cancelled: %s", job, job.fail_reason, extra=log_extra(job))
            self.event_delivery.emit(events.JobCancelled(job))

    # --- The observer of the engine ---

    def run_started(self, claim: Job) -> None:
        # Called for every run, so it must be cheap: without a listener no event is made.
        if self.event_delivery.is_heard and self.event_delivery.has_listener(events.JobStarted):
            self.event_delivery.emit(events.JobStarted(claim))

    def extra_of(self, claim: Job) -> Mapping[str, object]:
        return log_extra(claim)

    def claim_lost(self, claim: Job) -> None:
        super().claim_lost(claim)
        self.tally.claims_lost += 1
        self.event_delivery.emit(events.JobClaimLost(claim))

    def failed_after_settlement(self, claim: Job, error: Exception) -> None:
        logger.error(
            "the handler of job %s raised %s after its transaction had ended the job; the job does not change",
            claim,
            name_of(error),
            extra=log_extra(claim),
            exc_info=exc_info_of(error if self._full_tracebacks else begin_at_handler(error))
            if self._shows_errors
            else None,
        )

    def runs_cut_short(self, claims: Sequence[Job]) -> None:
        super().runs_cut_short(claims)
        self.event_delivery.emit(events.ShutdownTimedOut(tuple(claims)))

    def renewal_failed(self, error: Exception) -> None:
        super().renewal_failed(error)
        self.event_delivery.emit(events.HeartbeatFailed(error))

    def outage(self, error: Exception) -> None:
        super().outage(error)
        self.event_delivery.emit(events.SchedulerErrorOccurred(error))

    def claims_rescued(self, rescued: Sequence[Rescued]) -> None:
        announce_ends(self._namespace)
        if self._minutes is not None:
            for one in rescued:
                self._minutes.rescued(one.after)
        for event in log_and_events_of(rescued):
            self.event_delivery.emit(event)
            if isinstance(event, events.JobFailed) and isinstance(event.error, ScheduleEndedError):
                self._count_ended_schedule(event.job)

    def stream_connected(self) -> None:
        self.event_delivery.emit(events.ChangeStreamConnected())

    def stream_failed(self, error: Exception) -> None:
        logger.info("the change stream failed: %s; reopening it and polling meanwhile", error)
        self.event_delivery.emit(events.ChangeStreamFailed(error))

    def stream_closed(self) -> None:
        self.event_delivery.emit(events.ChangeStreamClosed())

    def stream_fallback(self, error: Exception) -> None:
        logger.warning("could not use a change stream; polling for jobs of other processes instead: %s", error)
        self.event_delivery.emit(events.ChangeStreamFallback(error))

    def run_settled(self, settlement: JobSettlement) -> None:
        if WAITING:
            announce_ends(self._namespace)
        if settlement.fate is Fate.CANCELLED:
            self.tally.cancelled += 1
            self.tally.ends[settlement.job.name, "cancelled"] += 1
            job = settlement.job
            logger.info("cancelled the run of job %s, as its cancellation was requested", job, extra=log_extra(job))
            if self.event_delivery.is_heard and self.event_delivery.has_listener(events.JobCancelled):
                self.event_delivery.emit(events.JobCancelled(settled(settlement)))
            return
        if settlement.schedule_ended is not None:
            self._report_schedule_ended(settlement, settlement.schedule_ended)
            return
        match settlement.outcome:
            case Succeeded():
                self.tally.completed += 1
                self.tally.ends[settlement.job.name, "completed"] += 1
                self._count(settlement, DONE)
                if self.event_delivery.is_heard and self.event_delivery.has_listener(events.JobCompleted):
                    self.event_delivery.emit(events.JobCompleted(settled(settlement), settlement.duration))
            case Failed(error) | Discarded(error):
                job = settled(settlement)
                self.tally.failed += 1
                self.tally.retried += will_retry(job)
                is_discarded = isinstance(settlement.outcome, Discarded)
                self.tally.discarded += is_discarded
                how = "discarded" if is_discarded else "retried" if will_retry(job) else "failed"
                self.tally.ends[job.name, how] += 1
                self._count(settlement, FAILED_ATTEMPTS)
                self._report_failed(job, error, settlement)
            case Snoozed(snooze):
                self.tally.snoozed += 1
                job = settled(settlement)
                self.tally.ends[job.name, "snoozed"] += 1
                logger.info("job %s was snoozed %s", job, snooze, extra=log_extra(job))
            case CutShort():
                self.tally.released += 1
                self.tally.ends[settlement.job.name, "released"] += 1

    def _report_schedule_ended(self, settlement: JobSettlement, error: ScheduleEndedError) -> None:
        """The job is stored as failed and never runs again, even if this run succeeded: it has no next occurrence."""
        job = settled(settlement)
        self.tally.failed += 1
        self.tally.ends[job.name, "failed"] += 1
        self._count(settlement, FAILED_ATTEMPTS)
        self._count_ended_schedule(job)
        cause = (
            logged_traceback(error, settlement.policy.error_text)
            if isinstance(settlement.outcome, Failed | Discarded)
            else None
        )
        logger.error("job %s failed for good: %s", job, error, extra=log_extra(job), exc_info=cause)
        self.event_delivery.emit(events.JobFailed(job, error, will_retry=False, duration=settlement.duration))

    def _count_ended_schedule(self, job: Job) -> None:
        self.tally.schedules_ended += 1
        self.ended_schedules.append(f"job {job.name} {job.id} failed for good: {job.fail_reason}")

    def _report_failed(self, job: Job, error: BaseException, settlement: JobSettlement) -> None:
        policy = settlement.policy
        reason = kept_reason(error, policy.error_text)
        # A retry leaves a recurring job with its failures; only the step to the next occurrence sets them to 0.
        exhausted = job.schedule is not None and will_retry(job) and job.fail_count == 0
        more: dict[str, Any] = {"extra": log_extra(job), "exc_info": logged_traceback(error, policy.error_text)}
        # A `Discard` is a decision of the handler: an alarm for errors in the log must not wake anyone for it.
        if is_a(error, Discard) and not will_retry(job):
            logger.warning("job %s was discarded: %s", job, reason, **more)
        elif is_a(error, Discard):
            logger.warning("job %s was discarded; it runs again at %s: %s", job, job.next_run_at, reason, **more)
        elif exhausted:
            at = job.next_run_at
            logger.error("job %s used up its retries; its schedule continues at %s: %s", job, at, reason, **more)
        elif will_retry(job) and job.fail_count == 0:
            logger.error(
                "job %s failed for good with data that has been replaced; it runs with the new data at %s: %s",
                job,
                job.next_run_at,
                reason,
                **more,
            )
        elif will_retry(job):
            most = policy.max_attempts if job.limits.max_attempts is None else job.limits.max_attempts
            logger.warning(
                "job %s failed (failure %d of %d); retrying at %s: %s",
                job,
                job.fail_count,
                most,
                job.next_run_at,
                reason,
                **more,
            )
        else:
            logger.error("job %s failed for good: %s", job, reason, **more)
        if (other := error_beside(settlement.outcome)) is not None:
            text, trace = kept_reason(other, policy.error_text), logged_traceback(other, policy.error_text)
            logger.error("beside that, job %s raised: %s", job, text, extra=log_extra(job), exc_info=trace)
        if exhausted:
            self.event_delivery.emit(events.ScheduleExhausted(job, error))
        self.event_delivery.emit(events.JobFailed(job, error, will_retry(job), settlement.duration))


def _not_counted(settlement: JobSettlement, what: int) -> None:
    pass
