"""JobSources: the parts of the engine's port for jobs, and what works beside them. Nothing runs yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ..client.local_wakeups import Announcer, watch_claims
from ..client.rescuer import Rescued
from ..engine.lease import Beats
from ..engine.nursery import Engine
from ..engine.source import Control, Sources
from ..host.transaction_turns import Transactions
from ..jobs.job import Job
from ..loop_time import loop_time
from .claiming import JobClaims
from .context import SchedulerContext
from .follow_up_loop import FollowUps
from .nursery_sweeper import NurserySweeper
from .renewals import JobRenewals
from .rescues import JobRescues
from .run_nurseries import RunNurseries
from .run_reports import RunReports
from .runs import JobRuns
from .settlement import JobSettlement
from .settling import Batch, JobSettling
from .unstarted_jobs import UnstartedJobs
from .worker import MakeRunningJob

JobEngine = Engine[Job, JobSettlement, Batch, Job, Rescued]
"""The engine with the types of jobs."""


@dataclass(frozen=True, kw_only=True)
class JobSources(Sources[Job, JobSettlement, Batch, Job, Rescued]):
    """What the engine calls, and what else works on jobs.

    Attributes:
        reports: Writes checkpoints, progress and transactions of running jobs.
        follow_ups: Enqueues the follow-ups of ended jobs. A service of the engine.
        unstarted: Ends jobs that were not started in time. A chore of the engine.
        sweeper: Ends the children of job nurseries whose parents are over. A chore of the engine.
    """

    claims: JobClaims
    reports: RunReports
    follow_ups: FollowUps
    unstarted: UnstartedJobs
    sweeper: NurserySweeper


def job_sources(
    shared: SchedulerContext, running_job: MakeRunningJob, control: Control[Job, JobSettlement]
) -> JobSources:
    """Make the parts for this engine."""
    context, db_threads = shared.client, shared.db_threads
    namespace = context.jobs.collection.full_name
    announcer = Announcer(namespace)

    def announce(jobs: Sequence[Job] | None) -> None:
        """Announce these jobs to the schedulers of this run; None for unknown jobs. May be called from any thread."""
        control.post(announcer.announce_unknown if jobs is None else partial(announcer.announce, jobs))

    beats = Beats()
    follow_ups = FollowUps(context, db_threads, shared.workers, announce)
    unstarted = UnstartedJobs(shared, control)
    # In real time, schedulers look for dead claims by themselves.
    claimed = partial(watch_claims, namespace, control.is_idle) if loop_time().is_event_driven else None
    claims = JobClaims(shared, beats, announce, claimed, unstarted)
    nurseries = RunNurseries(shared, control, announcer.deliver)
    runs = JobRuns(shared, running_job, nurseries)
    sweeper = NurserySweeper(
        context,
        db_threads,
        lambda caused: control.post(partial(announcer.deliver, caused)),
        lambda: unstarted.indexes,
        shared.config.heartbeat_interval,
    )
    unstarted.learned = sweeper.look
    settling = JobSettling(shared, announce, follow_ups.jobs_ended, sweeper.ended)
    transactions: Transactions[Job, JobSettlement] = Transactions(db_threads, context, control, beats)
    # If a new measurement of the server's clock differs from the last, all timers are wrong: look at once.
    context.when_clock_moves(partial(announce, None))
    return JobSources(
        claims=claims,
        runs=runs,
        settlements=settling,
        renewals=JobRenewals(shared, beats),
        rescues=JobRescues(shared, announce, follow_ups.jobs_ended, control, sweeper.ended),
        orphans=claims.claiming,
        reports=RunReports(shared, runs, transactions, settling.announce_written, nurseries),
        follow_ups=follow_ups,
        unstarted=unstarted,
        sweeper=sweeper,
    )
