"""Statistics: what a scheduler has done since its start, and does now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..engine.contention import Contention
from ..engine.nursery import Engine
from ..host.engine_numbers import EngineNumbers, engine_numbers
from ..jobs.job import Job


@dataclass(frozen=True, kw_only=True)
class Statistics(EngineNumbers):
    """What a scheduler has done since its start, and is doing now. Durations are in seconds.

    A run is counted once, when the database has accepted its end: as `completed`, `failed`, `snoozed`, `released` or
    `cancelled`. If the database did not accept it, the claim was lost.

    Attributes:
        uptime: Seconds since the start, until the end.
        claimed: Jobs claimed.
        candidates_lost: Due jobs that this scheduler had found and did not get, mostly because other instances claimed
            them first (contention).
        completed: Runs that succeeded.
        failed: Runs that failed, with or without tries left.
        retried: Failed runs whose jobs are pending again.
        discarded: Failed runs whose jobs get no more attempts although some were left, by `Discard` or `discard_on`.
        snoozed: Runs that asked to be run again later.
        released: Runs whose claims were released without counting an attempt. `SchedulerReport.released` includes the
            snoozed.
        cancelled: Runs whose jobs a client cancelled. Cancelled pending jobs are not counted.
        ended_by_name: The ends of runs by name and by what came of them, each run in one place: `completed`, `retried`
            (failed, and pending again), `discarded`, `failed` (no attempts are left), `snoozed`, `released` or
            `cancelled`.
        claims_lost: Runs that were cancelled because their claims were lost or could not be renewed in time. If such a
            claim could be released after all, the run is counted as released, too.
        schedules_ended: Recurring jobs that failed for good, as their stored cron expression or time zone is invalid
            for this library. Their runs are counted as failed, too.
        rescued: Claims of dead instances that this scheduler took away.
        unclaimable: Pending jobs that became failed without a run, as the server refuses every claim on them.
        broken: Documents that this scheduler has met and skips; see `Health.broken`.
        renewals: Renewed claims; each claim counts once per heartbeat.
        renewal_failures: Attempts to renew claims that the database did not answer or refused as a whole.
        held: Claims that this scheduler holds, and renews: their runs have not ended, or are not settled yet.
        running: Runs that occupy a slot and whose handlers have not ended.
        parked: Runs that wait for the children of their job nurseries, without a slot.
        running_by_name: The same by name, without names that have no running job.
        unsettled: Runs whose handlers have ended, and whose settlements are not written yet.
        free_slots: How many more runs could start now.
        claim_batches, largest_claim_batch: The number of commands that claimed something, and the most jobs in one.
        settlement_batches, largest_settlement_batch: The same for settlements.
        batches: The sizes of the commands for a "claim", a "settlement", a "renewal" and a "rescue"; see Batches.
        start_lag_average, start_lag_max: From the request of a claim to the start of its handler; 0 if none has
            started.
        loop_blocked: How many times something blocked an event loop for longer than a second: that of the scheduler,
            or on asyncio that of the program. Not counted in virtual time.
        overdue_threads: How many plain handlers go on for more than a second after their run was cancelled, for its
            time limit for example. Each holds a slot.
    """

    completed: int
    failed: int
    retried: int
    discarded: int
    snoozed: int
    released: int
    cancelled: int
    ended_by_name: Mapping[str, Mapping[str, int]]
    claims_lost: int
    schedules_ended: int
    unclaimable: int
    broken: int
    running: int
    running_by_name: Mapping[str, int]
    overdue_threads: int
    parked: int


@dataclass(slots=True)
class SchedulerTally:
    """How runs ended. Written by the reporter, on the run; the meaning of each is in Statistics.

    Attributes:
        ends: How many runs of a name ended in a way, by both.
    """

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
    ends: defaultdict[tuple[str, str], int] = field(default_factory=partial(defaultdict, int))

    def ended_by_name(self) -> Mapping[str, Mapping[str, int]]:
        """Return `ends` in two levels. From any thread: `copy` takes them at one moment."""
        found: dict[str, dict[str, int]] = {}
        for (name, how), number in self.ends.copy().items():
            found.setdefault(name, {})[how] = number
        return found


def statistics_of(
    engine: Engine[Job, Any, Any, Any, Any], tally: SchedulerTally, contention: Contention, broken: int
) -> Statistics:
    running = engine.slots.running_by_group()
    number_running = sum(running.values())
    return Statistics(
        **vars(engine_numbers(engine, number_running, contention)),
        completed=tally.completed,
        failed=tally.failed,
        retried=tally.retried,
        discarded=tally.discarded,
        snoozed=tally.snoozed,
        released=tally.released,
        cancelled=tally.cancelled,
        ended_by_name=tally.ended_by_name(),
        claims_lost=tally.claims_lost,
        schedules_ended=tally.schedules_ended,
        unclaimable=tally.unclaimable,
        broken=broken,
        running=number_running,
        running_by_name=running,
        overdue_threads=engine.overdue_threads,
        parked=engine.number_parked,
    )
