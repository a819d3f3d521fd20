"""What a scheduler has done since its start, and does now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .settlement import JobEngine


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What a scheduler has done since its start, and does now. Times are seconds.

    Each run is counted once by how it ended, when the database has accepted that: `completed`, `failed`, `snoozed`,
    `released` or `cancelled`. Where it has not, its claim was lost.

    Attributes:
        uptime: Seconds since the start, until the end.
        claimed: Jobs claimed.
        completed: Runs that succeeded.
        failed: Runs that failed, with or without tries left.
        retried: Of these: their jobs are pending again.
        discarded: Of these: given up although there were tries left, by `Discard` or `discard_on`.
        snoozed: Runs that asked to be run again later.
        released: Runs whose claims were given back uncounted. `SchedulerReport.released` counts the snoozed, too.
        cancelled: Runs whose jobs somebody cancelled. Pending jobs that were cancelled are not counted.
        claims_lost: Runs that were stopped since their claims were gone, or could not be renewed in time. Of the
            latter, those whose claims could be given back after all are counted there, too.
        schedules_ended: Recurring jobs that failed for good, as this library does not understand their stored cron
            expression or time zone. The runs are counted as failed too.
        rescued: Claims of dead instances that this one took away.
        unclaimable: Pending jobs that were failed because the server refuses every claim on them. They were not run.
        broken: Documents that are passed over, of those that this scheduler has met; see `Health.broken`.
        renewals: Claims renewed; each is counted at every heartbeat.
        running: Runs whose handlers have not ended.
        running_by_name: The same by the name of the job, without those of none.
        unsettled: Runs whose handlers have ended, and whose ends are not written yet.
        free_slots: How many more could start now.
        claim_batches, largest_claim_batch: In how many answers something was claimed, and how much at most in one.
        settlement_batches, largest_settlement_batch: The same of settlements.
        start_lag_average, start_lag_max: From asking for a claim to the start of its handler; 0 where none started.
    """

    uptime: float
    claimed: int
    completed: int
    failed: int
    retried: int
    discarded: int
    snoozed: int
    released: int
    cancelled: int
    claims_lost: int
    schedules_ended: int
    rescued: int
    unclaimable: int
    broken: int
    renewals: int
    running: int
    running_by_name: Mapping[str, int]
    unsettled: int
    free_slots: int
    claim_batches: int
    largest_claim_batch: int
    settlement_batches: int
    largest_settlement_batch: int
    start_lag_average: float
    start_lag_max: float


@dataclass(slots=True)
class Tally:
    """How runs ended. Written by the reporter, on the run; the meaning of each is in Statistics."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    discarded: int = 0
    snoozed: int = 0
    released: int = 0
    cancelled: int = 0
    claims_lost: int = 0
    schedules_ended: int = 0
    unclaimable: int = 0


def statistics_of(engine: JobEngine, tally: Tally, broken: int) -> Statistics:
    claims, settlements, renewals, rescues = (
        engine.vitals.progress_of(name).batches for name in ("claimer", "settler", "heartbeat", "reaper")
    )
    running = engine.slots.running_by_group()
    number_running = sum(running.values())
    return Statistics(
        uptime=engine.vitals.uptime,
        claimed=int(claims.total),
        completed=tally.completed,
        failed=tally.failed,
        retried=tally.retried,
        discarded=tally.discarded,
        snoozed=tally.snoozed,
        released=tally.released,
        cancelled=tally.cancelled,
        claims_lost=tally.claims_lost,
        schedules_ended=tally.schedules_ended,
        rescued=int(rescues.total),
        unclaimable=tally.unclaimable,
        broken=broken,
        renewals=int(renewals.total),
        running=number_running,
        running_by_name=running,
        unsettled=max(0, engine.held - number_running),
        free_slots=engine.slots.demand().total,
        claim_batches=claims.count,
        largest_claim_batch=int(claims.largest),
        settlement_batches=settlements.count,
        largest_settlement_batch=int(settlements.largest),
        start_lag_average=engine.start_lags.average,
        start_lag_max=engine.start_lags.largest,
    )
