"""JobClaims: claims jobs that are due, or the one job that is known to be due.

A look finds candidates (`job_finder.py`), and a later write claims them. Other programs act in between, so the write
repeats the whole condition of a claim (`store/jobs/claiming.py`, `jobs/claimable.py`): of several instances, one claims
the job, and the others look again. `host/claim_answers.py` handles answers that are lost.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from ..engine.contention import Contention
from ..engine.demand import HEAD_START, Demand, Due, Granted, KnownItem
from ..engine.lease import Beats
from ..error_types import MonqueConnectionError
from ..host.claim_answers import Claiming, Taken
from ..jobs.claim_stamps_and_fences import ClaimStamp
from ..jobs.claimable import is_too_late
from ..jobs.job import Job
from ..jobs.rescue_policy import is_suspect
from ..options_and_defaults import LEASE_IN_BEATS
from ..store.driver.database_threads import Channel
from ..store.jobs import claiming, next_due, refused_claims
from ..store.jobs.next_due import NextDue
from ..store.jobs.refused_claims import SetAside
from .context import SchedulerContext
from .job_finder import JobFinder, JobKey
from .unstarted_jobs import UnstartedJobs

LONGEST_WAIT: Final = 2 * HEAD_START
"""Seconds that `claim_one` sleeps in its thread, at most. Its timer was set from two clocks that cannot be read at the
same time, so it may end a little early."""


class JobClaims:
    """The `ClaimSource` of jobs, and the `ClaimKind` of `host.claiming` for them.

    Args:
        announce: Announces jobs to the schedulers of this trio run; None for unknown ones.
        claimed: Called when jobs were claimed, if other schedulers of this run must be made to look for dead claims.
        unstarted: Ends jobs that must not start any more.

    Attributes:
        claiming: Claims these jobs, and releases orphaned claims.
    """

    def __init__(
        self,
        shared: SchedulerContext,
        beats: Beats,
        announce: Callable[[None], None],
        claimed: Callable[[], None] | None,
        unstarted: UnstartedJobs,
    ) -> None:
        self._unstarted = unstarted
        self._shared = shared
        self._context = shared.client
        self._db_threads = shared.db_threads
        self._workers = shared.workers
        self._paused = shared.paused
        self._beats = beats
        self._announce = announce
        self._claimed = claimed
        self._leased = shared.leased
        lease = LEASE_IN_BEATS * shared.config.heartbeat_interval
        self.claiming: Claiming[Job, ClaimStamp, Job] = Claiming(
            shared.db_threads, shared.client, JobFinder(shared), self, lease
        )
        self._candidates = self.claiming.candidates

    @property
    def contention(self) -> Contention:
        """How many of the jobs that this instance saw were claimed by others first."""
        return self._candidates.contention

    async def claim(self, demand: Demand) -> Granted[Job]:
        aside = list[SetAside]()

        def take(chosen: Sequence[Job], stamp: ClaimStamp, now: datetime) -> Taken[Job]:
            # If the collection was dropped or renamed, create its indexes first: without the unique index, two jobs
            # with one key could be inserted. Otherwise this costs nothing. A claim that meets this changes nothing, so
            # it may be sent again with the same stamp.
            return self._context.with_indexes(lambda: self._take(chosen, stamp, now, aside))

        granted = await self.claiming.claim(demand, self._stamp, take)
        self._shared.reporter.jobs_set_aside(aside)
        return self._granted(granted)

    def _take(self, chosen: Sequence[Job], stamp: ClaimStamp, now: datetime, aside: list[SetAside]) -> Taken[Job]:
        """Runs in a database thread."""
        asked = chosen
        # Names may be paused since the look. Without this question, their jobs would be claimed for as long as looks
        # that began before the pause are on their way.
        if paused := self._paused.look_up(self._leased):
            asked = [job for job in chosen if job.name not in paused]
        # A job that must have started by now is ended here, and not claimed. The write of the claim repeats this.
        if late := [job for job in asked if is_too_late(job, now)]:
            self._unstarted.end(self._leased, late, now)
            asked = [job for job in asked if not is_too_late(job, now)]
        followed = self._workers.followed
        taken = claiming.take(self._leased, asked, now, stamp, followed) if asked else claiming.TakenJobs([])
        if taken.refused:
            # A job on which the server refuses every claim (a validator, a full document) would be chosen first in
            # every look, and the jobs behind it would never run.
            aside += self._set_aside(taken, now)
        # More jobs may wait behind those whose names were paused since the look. Refused jobs do not count as tried: no
        # other instance took them, so they are not a sign of contention.
        more = taken.more or len(asked) < len(chosen)
        return Taken(taken.jobs, more=more, tried=len(asked) - len(taken.refused))

    def _set_aside(self, taken: claiming.TakenJobs, now: datetime) -> Sequence[SetAside]:
        """Runs in a database thread. If this write fails, a later claim is refused again and sets the job aside."""
        try:
            return refused_claims.set_jobs_aside(self._leased, taken.refused, now, others_were_claimed=bool(taken.jobs))
        except MonqueConnectionError:
            return []

    async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[Job]:
        key, now = item.key, await self._context.refreshed(self._db_threads, Channel.CLAIMS)
        assert isinstance(key, JobKey)
        if self._context.clock.seconds_until(key.due) > LONGEST_WAIT:
            # The server's clock was measured again while the timer ran, so the timer ended too early: leave the job to
            # a new look. A wait of this length would occupy a thread.
            return Granted([], more=True)
        if demand.is_running_here(key.id.binary):
            return Granted([])
        # The claim is sent when the job is due, and not now: its date must not be earlier than that.
        now = max(now, key.due)
        stamp = self._stamp((), now)

        def take() -> Taken[Job]:
            if item.group in self._paused.look_up(self._leased):
                return Taken([])
            time.sleep(max(0.0, self._context.clock.seconds_until(key.due)))
            # Another instance may have claimed, run and postponed the job since the timer was set. It is pending again
            # and looks unchanged, except for the number of its claims: the write compares `key.attempts`.
            followed = self._workers.followed
            taken = claiming.take_one(self._leased, key.id, item.group, key.attempts, now, stamp, followed)
            return Taken(taken.jobs, more=taken.more)

        return self._granted(await self.claiming.take(lambda: self._context.with_indexes(take), stamp, 1))

    def _granted(self, granted: Granted[Job]) -> Granted[Job]:
        if granted.claims and self._claimed is not None:
            self._claimed()
        # A suspect is claimed alone, so other due jobs may wait behind it.
        first = granted.claims[0] if granted.claims else None
        is_alone = first is not None and first.rescues > 0 and is_suspect(first)
        return replace(granted, more=granted.more or is_alone)

    def _stamp(self, _chosen: Sequence[Job], now: datetime) -> ClaimStamp:
        self._beats.claimed(now)
        config = self._shared.config
        return ClaimStamp.new(config.instance_id, now, config.heartbeat_interval, secrets.token_hex(6))

    # --- The kind of claim: see ClaimKind ---

    def resolving(self, stamp: ClaimStamp) -> Callable[[], Sequence[Job]]:
        return partial(claiming.resolve, self._leased, stamp, self._beats.next(self._context.clock.now()))

    def release(self, stamp: ClaimStamp, held: Sequence[Job], now: datetime) -> int:
        return claiming.release_all(self._context.jobs, stamp, now, but=[job.id for job in held])

    def released(self) -> None:
        self._announce(None)

    # --- What is due later ---

    async def next_due(self, groups: Set[str]) -> Due | None:
        # After the last look, and not after now: a job that became due in between was too early for the look, and too
        # late for a question about the time after now.
        found = await self._next_due(groups, self._candidates.looked_at)
        if found is None:
            return None
        one, moment = found.alone, self._context.clock.on_run_clock(found.moment)
        return Due(moment, None if one is None else KnownItem(JobKey(one.id, found.moment, one.attempts), one.name))

    async def earliest_pending(self) -> datetime | None:
        """When the earliest pending job of this scheduler is or was due; None if it has none. For virtual time."""

        def ask() -> datetime | None:
            names = sorted(set(self._workers.names) - self._paused.look_up(self._leased))
            return next_due.earliest(self._context.jobs, names, self._context.clock.now())

        return await self._db_threads.call(ask, channel=Channel.CLAIMS, abandon_on_cancel=True)

    async def _next_due(self, groups: Iterable[str], after: datetime) -> NextDue | None:
        def ask() -> NextDue | None:
            # Look the pauses up here, too. If a name was resumed while the last claim was on its way, the cached answer
            # still has it as paused, and no timer would be set for its jobs.
            names = sorted(set(groups) - self._paused.look_up(self._leased))
            return next_due.next_due(self._context.jobs, names, after)

        return await self._db_threads.call(ask, channel=Channel.CLAIMS, abandon_on_cancel=True)
