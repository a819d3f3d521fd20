"""JobSource: the engine's port for jobs. It claims, runs, settles, renews and rescues them through the store."""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from ..client.local_wakeups import Announcer, local_schedulers
from ..client.rescuing import Rescued
from ..engine.demand import ClaimState, Demand, Due, Granted, KnownItem
from ..engine.lease import Beats
from ..engine.run import Run
from ..engine.run_end import CancelReason, RunEnd
from ..engine.source import Control
from ..error_types import (
    BrokenDocumentError,
    ClaimLostError,
    DocumentRefusedError,
    InvalidPayloadError,
    MonqueError,
    is_outage,
)
from ..foreign_errors import safe_error
from ..host.missed_leases import MissedLeases
from ..host.transactions import Transactions
from ..jobs import rescue_policy, transitions
from ..jobs.fences import ClaimId, claim_id
from ..jobs.follow_ups import owes
from ..jobs.job import Job, log_extra
from ..jobs.run_again import AGAIN
from ..jobs.stored_value_limits import snapshot
from ..jobs.verdicts import CutShort, Failed, Succeeded
from ..log import logger_of
from ..observations import Sighting
from ..store import doubled_fields, job_changes, leases, settling
from ..store.database_threads import Channel
from ..store.settling import Fate, Statement
from ..store.types import ClientSession, ObjectId
from ..threads import HoldingLimiter
from .claiming import JobClaims
from .context import SchedulerContext
from .follow_ups import FollowUps
from .job_run import Policies, call_handler, lack_of_module, verdict_of
from .rescues import Rescues
from .settlement import (
    MOST_ROUNDS,
    Batch,
    JobSettlement,
    has_made_owe,
    is_pending_again,
    is_undecided,
    prepared,
    refused_once_more,
    settled,
)
from .transactions import JobTransaction
from .unstarted_jobs import UnstartedJobs
from .worker import MakeRunningJob, Worker

R = TypeVar("R")

logger = logger_of("scheduler")

# A run may hold its job for this share of `lock_timeout`. The rest allows for clocks that differ: a Node process takes
# a job away after `lock_timeout` by its own clock.
SHARE_OF_LOCK_TIMEOUT: Final = 0.9


class JobSource:
    """The `Source` of jobs. Used on the thread of the trio run; commands run in database threads.

    Attributes:
        claims, follow_ups, unstarted: Available from `attach` on.
    """

    claims: JobClaims
    follow_ups: FollowUps
    unstarted: UnstartedJobs
    _announcer: Announcer
    _control: Control[Job, JobSettlement]
    _rescues: Rescues
    _transactions: Transactions[Job, JobSettlement]

    def __init__(self, shared: SchedulerContext, running_job: MakeRunningJob) -> None:
        self._shared = shared
        self._context = shared.client
        self._db_threads = shared.db_threads
        self._workers = shared.workers
        self._config = config = shared.config
        self._running_job = running_job
        self._threads = HoldingLimiter(math.inf)  # The slots limit the number of threads.
        self._policies = Policies(config)
        lock_timeout = config.lock_timeout
        self._longest_hold = math.inf if lock_timeout is None else SHARE_OF_LOCK_TIMEOUT * lock_timeout
        self._longest_run = self._longest_hold - config.cleanup_timeout
        self._beats = Beats()
        self._missed_leases = MissedLeases()

    def attach(self, control: Control[Job, JobSettlement]) -> None:
        self._control = control
        self._announcer = Announcer(self._context.jobs.collection.full_name)
        self._rescues = Rescues(self._shared, self._announce, control)
        self._transactions = Transactions(self._db_threads, self._context, control, self._beats)
        self.follow_ups = FollowUps(self._context, self._db_threads, self._workers, self._announce)
        self.unstarted = UnstartedJobs(self._shared, control)
        self.claims = JobClaims(self._shared, self._beats, self._announce, self._has_claimed, self.unstarted)
        # If a new measurement of the server's clock differs from the last, all timers are wrong: look at once.
        self._context.when_clock_moves(partial(self._announce, None))

    def _announce(self, jobs: Sequence[Job] | None) -> None:
        """Announce these jobs to the schedulers of this run; None for unknown jobs. May be called from any thread."""
        announcer = self._announcer
        announce = announcer.announce_unknown if jobs is None else partial(announcer.announce, jobs)
        self._control.post(announce)

    def _has_claimed(self) -> None:
        """Ask the other schedulers of this trio run to look for dead claims until this one holds none."""
        for scheduler in local_schedulers(self._context.jobs.collection.full_name):
            scheduler.watch(self._control.is_idle)

    # --- What a claim is ---

    def key_of(self, claim: Job) -> ObjectId:
        return claim.id

    def group_of(self, claim: Job) -> str:
        return claim.name

    def is_suspect(self, claim: Job) -> bool:
        return rescue_policy.is_suspect(claim)

    def time_limit(self, claim: Job) -> float:
        worker = self._worker(claim)
        own = worker.settings.timeout if claim.timeout is None else claim.timeout
        return self._longest_run if own is None else min(own, self._longest_run)

    def renewal_limit(self, claim: Job) -> float:
        return self._longest_hold

    def start_limit(self, claim: Job) -> float:
        return math.inf if claim.start_by is None else self._context.clock.on_run_clock(claim.start_by)

    def _worker(self, claim: Job) -> Worker[Any]:
        worker = self._workers.get(claim.name)
        assert worker is not None, "only jobs with a worker are claimed, and workers are never removed"
        return worker

    # --- Claiming ---

    async def claim(self, demand: Demand) -> Granted[Job]:
        return await self.claims.claim(demand)

    async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[Job]:
        return await self.claims.claim_one(item, demand)

    async def next_due(self, groups: Set[str]) -> Due | None:
        return await self.claims.next_due(groups)

    # --- Running ---

    def execute(self, run: Run[Job]) -> Awaitable[object]:
        worker = self._worker(run.claim)
        return call_handler(worker, self._running_job(run, worker), run, self._threads, self._db_threads)

    # --- Settling ---

    def conclude(self, claim: Job, end: RunEnd) -> JobSettlement:
        worker = self._worker(claim)
        settings, policy = worker.settings, self._policies.policy_of(worker)
        if not end.has_begun and (lack := lack_of_module(end.error)) is not None:
            # Its payload needs what is not installed here. Another instance may have it.
            self._context.jobs.leave_to_others(claim, lack)
            return JobSettlement(claim, CutShort(has_begun=False), policy, end.duration)
        most = self._config.max_rescues if claim.max_rescues is None else claim.max_rescues
        end = self._missed_leases.counted(claim.id, end, most)
        try:
            verdict = verdict_of(end, self.time_limit(claim), policy, store_result=settings.store_result)
            if isinstance(verdict, Succeeded) and settings.store_result:
                # Encode the result before it joins a batch. A result that cannot be stored fails its own job only, and
                # the handler's object may change until the batch is sent without changing what is stored.
                verdict = self._encoded(worker, verdict.result)
        except BaseException as error:  # noqa: BLE001  # A fault in code or values of the user fails its own job only.
            verdict = Failed(safe_error(error))
        return JobSettlement(claim, verdict, policy, end.duration)

    def _encoded(self, worker: Worker[Any], value: Any) -> Succeeded:
        result = worker.stored_result(value)
        return Succeeded(None if result is None else self.snapshot(result, "result"))

    def success(self, run: Run[Job], value: Any) -> JobSettlement:
        """Return the settlement of a run that has succeeded with this value. In any thread.

        Raises:
            InvalidPayloadError, PayloadTooLargeError: The worker stores results, and this one cannot be stored.
        """
        worker = self._worker(run.claim)
        verdict = self._encoded(worker, value) if worker.settings.store_result else Succeeded()
        return JobSettlement(run.claim, verdict, self._policies.policy_of(worker), run.duration)

    def snapshot(self, value: Any, name: str) -> Any:
        """Return a value of a handler as it will be stored. In any thread."""
        what = "saved state" if name == "saved" else name
        return snapshot(value, self._config.max_payload_size, self._context.jobs.codec.callers, what)

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
            fates = await self._settle(batch.statements)
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
                        "could not settle job %s, as it kept changing; it runs again when its lease expires",
                        settlement.job,
                        extra=log_extra(settlement.job),
                    )
                    settlement.fate = Fate.LOST
        self._written([one for one in batch.settlements if one.fate is Fate.WRITTEN])
        return [settlement.fate in (Fate.WRITTEN, Fate.CANCELLED) for settlement in batch.settlements]

    def _written(self, settlements: Sequence[JobSettlement]) -> None:
        """Announce the jobs that run again, and have the follow-ups enqueued that others owe now."""
        again = [settled(one) for one in settlements if is_pending_again(one)]
        if again:
            self._announce(again)
        self.follow_ups.jobs_ended([one.job for one in settlements if has_made_owe(one)])

    async def _decide_again(self, batch: Batch) -> None:
        """Decide the undecided settlements, and make the statements that write them. A call after an outage goes on."""
        while batch.undecided:
            settlement, fate = batch.undecided[-1]
            if fate is Fate.REFUSED:
                refused_once_more(settlement)
            else:
                try:
                    await self.bring_up_to_date(settlement)
                except BrokenDocumentError as error:
                    # Without its schedule no other end can be decided.
                    logger.warning("%s; releasing its claim without counting an attempt", error)
                    settlement.verdict = CutShort()
            # Each is decided once, also if the next one meets an outage: a refusal must not be counted twice.
            batch.decided.append(settlement)
            batch.undecided.pop()
        batch.statements = (await self.prepare(batch.decided)).statements
        batch.decided = []

    async def bring_up_to_date(self, settlement: JobSettlement) -> None:
        """Read the schedule of the job again, and what a call has left in it for another run.

        The guard of the next write compares exactly what is read here.
        """
        found = await self._db_threads.call(
            partial(doubled_fields.current_schedule, self._context.jobs, settlement.job.id),
            channel=Channel.RENEWALS,
            abandon_on_cancel=True,
        )
        if found is None:
            return  # The job was deleted: the next write finds the claim lost.
        current, settlement.doubled_field = found
        settlement.job = replace(
            settlement.job,
            repeat_interval=current.repeat_interval,
            timezone=current.timezone,
            on_exhausted=current.on_exhausted,
            **{name: getattr(current, name) for name in AGAIN},
        )

    async def _settle(self, statements: Sequence[Statement]) -> Mapping[ClaimId, Fate]:
        return await self._db_threads.call(
            partial(settling.settle, self._context.jobs, statements),
            channel=Channel.RENEWALS,
            abandon_on_cancel=True,
        )

    # --- Renewing ---

    async def renew(self, claims: Sequence[Job]) -> Sequence[ClaimState]:
        found = await self._db_threads.call(
            partial(leases.renew, self._shared.leased, claims, self._beats.next(self._context.clock.now())),
            channel=Channel.RENEWALS,
            abandon_on_cancel=True,
        )
        return [
            ClaimState.LOST
            if claim_id(claim) in found.lost
            else ClaimState.NOT_RENEWED
            if claim_id(claim) in found.refused
            else ClaimState.CANCEL_REQUESTED
            if claim_id(claim) in found.cancel_requested
            else ClaimState.HELD
            for claim in claims
        ]

    # --- Rescuing ---

    async def observe(self, held: Sequence[Job]) -> Sequence[Sighting[Job]]:
        return await self._rescues.observe({claim_id(job) for job in held})

    async def rescue(self, claims: Sequence[Job]) -> Sequence[Rescued]:
        rescued = await self._rescues.rescue(claims)
        self.follow_ups.jobs_ended([one.after for one in rescued if owes(one.after)])
        return rescued

    def rescue_abandoned(self) -> None:
        self._announce(None)

    def has_orphaned_claims(self) -> bool:
        return self.claims.has_orphaned()

    async def release_orphaned_claims(self) -> None:
        await self.claims.release_orphaned()

    # --- Reporting ---

    async def report(self, run: Run[Job], name: str, value: Any) -> None:
        """Write a checkpoint or progress, as `snapshot` returned it, under the claim; see `RunningJob.save`."""
        if run.is_settling_early:
            raise MonqueError(f"job {run.claim} is in its transaction, which ends it: save before that")
        if run.is_settled_early:
            raise MonqueError(f"job {run.claim} has ended with its transaction: nothing more can be saved")
        if run.reason is CancelReason.LOST:
            raise ClaimLostError(
                f"the claim on job {run.claim} was lost or could not be renewed in time: nothing was saved"
            )
        transition = transitions.report(run.claim, self._context.clock.now(), **{name: value})
        try:
            is_held = await self._db_threads.call(partial(job_changes.report_if_held, self._context.jobs, transition))
        except DocumentRefusedError as error:
            what = "checkpoint" if name == "saved" else name
            raise InvalidPayloadError(f"the {what} cannot be stored in job {run.claim}: {error}") from error
        if not is_held:
            run.lose()
            raise ClaimLostError(f"the claim on job {run.claim} was lost: nothing was saved")

    async def transaction(self, run: Run[Job], function: Callable[[ClientSession], R]) -> R:
        """Commit the writes of the function and the end of the job together; see `RunningJob.transaction`."""
        transaction = JobTransaction(run, self._context, self._db_threads, self)
        value, settlement = await transaction.commit(self._transactions, function)
        self._written([settlement])
        return value

    # --- Errors ---

    def is_transient(self, error: Exception) -> bool:
        return is_outage(error)
