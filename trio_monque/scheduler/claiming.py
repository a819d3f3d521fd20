"""How a scheduler claims jobs: candidates of names that are not paused, or one job that it knows to be due.

The condition of a claim stands in `store/claiming.py` and `jobs/claimable.py`; the account of lost answers in
`host/claiming.py`. Two races are closed here. A name may be paused between the look and the write: the pause is looked
up in the thread of the write. And another instance may claim, run and put off a job after it was seen to be due:
`claim_one` repeats how often the job had been claimed by then (`attempts`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence, Set
from datetime import datetime
from functools import partial
from typing import Final

from ..engine.candidates import Candidates
from ..engine.contention import Contention
from ..engine.demand import HEAD_START, Demand, Due, Granted, KnownItem
from ..engine.lease import Beats
from ..errors import MonqueConnectionError
from ..host.claiming import Claiming, Taken
from ..jobs.claimable import is_suspect
from ..jobs.fences import ClaimStamp
from ..jobs.job import Job
from ..options import LEASE_IN_BEATS
from ..store import claiming, due, refused_claims
from ..store.database_threads import Channel
from ..store.due import NextDue
from ..store.refused_claims import SetAside
from ..store.types import ObjectId
from .candidates import JobFinder, JobKey
from .context import SchedulerContext

# In its thread, a claim waits so many seconds for its moment: the timer was set by clocks that are read one by one.
LONGEST_WAIT: Final = 2 * HEAD_START


class JobClaims:
    """Claims what is due. See `host.claiming` for what becomes of answers that are lost.

    What is special for jobs: a pause is looked up in the thread of the claim, right before the write, and so holds for
    every claim that begins after it was known; and a job on which the server refuses every claim is set aside.

    Attributes:
        leased: The collection, for whatever must be answered within a beat.
    """

    def __init__(
        self, shared: SchedulerContext, beats: Beats, announce: Callable[[None], None], claimed: Callable[[], None]
    ) -> None:
        self._shared = shared
        self._context = shared.client
        self._door = shared.door
        self._workers = shared.workers
        self._paused = shared.paused
        self._beats = beats
        self._announce = announce
        self._claimed = claimed
        self.leased = shared.leased
        self._candidates = Candidates(JobFinder(shared))
        lease = LEASE_IN_BEATS * shared.config.heartbeat_interval
        self._claiming: Claiming[Job, ClaimStamp, Job] = Claiming(
            shared.door, shared.client, self._candidates, self, lease
        )
        self.has_orphaned = self._claiming.has_orphaned
        self.release_orphaned = self._claiming.release_orphaned

    @property
    def contention(self) -> Contention:
        """How much other instances take of what is seen here."""
        return self._candidates.contention

    async def claim(self, demand: Demand) -> Granted[Job]:
        now = await self._context.refreshed(self._door, Channel.CLAIMS)
        aside = list[SetAside]()

        def take(chosen: Sequence[Job], stamp: ClaimStamp) -> Taken[Job]:
            # Where the collection was dropped or renamed, its indexes are made first; that costs nothing otherwise.
            return self._context.with_indexes(lambda: self._take(chosen, stamp, now, aside))

        taken = await self._claiming.claim(demand, now, take)
        self._shared.reporter.jobs_set_aside(aside)
        return self._granted(taken)

    def _take(self, chosen: Sequence[Job], stamp: ClaimStamp, now: datetime, aside: list[SetAside]) -> Taken[Job]:
        """In a thread."""
        asked = chosen
        if paused := self._paused.look_up(self.leased):
            asked = [job for job in chosen if job.name not in paused]
        taken = claiming.take(self.leased, asked, now, stamp) if asked else claiming.Taken([])
        if taken.refused:
            aside += self._set_aside(taken, now)
        # Behind those that were paused since they were seen, others may wait. And what the server refuses was not
        # lost to another instance.
        more = taken.more or len(asked) < len(chosen)
        return Taken(taken.jobs, more=more, tried=len(asked) - len(taken.refused))

    def _set_aside(self, taken: claiming.Taken, now: datetime) -> Sequence[SetAside]:
        """In a thread. What cannot be written now is refused again, and set aside, by a later claim."""
        try:
            return refused_claims.set_jobs_aside(self.leased, taken.refused, now, others_were_claimed=bool(taken.jobs))
        except MonqueConnectionError:
            return []

    async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[Job]:
        key, now = item.key, await self._context.refreshed(self._door, Channel.CLAIMS)
        assert isinstance(key, JobKey)
        if self._context.clock.seconds_until(key.due) > LONGEST_WAIT:
            return Granted([], more=True)  # The server's time was measured anew.
        if demand.withholds(key.id):
            return Granted([])
        now = max(now, key.due)
        stamp = self.stamp((), now)

        def take() -> Taken[Job]:
            if item.group in self._paused.look_up(self.leased):
                return Taken([])
            time.sleep(max(0.0, self._context.clock.seconds_until(key.due)))
            taken = claiming.take_one(self.leased, key.id, item.group, key.attempts, now, stamp)
            return Taken(taken.jobs, more=taken.more)

        return self._granted(await self._claiming.take(lambda: self._context.with_indexes(take), stamp, 1))

    def _granted(self, taken: Taken[Job]) -> Granted[Job]:
        if taken.items:
            self._claimed()
        # A suspect was claimed alone: others may wait behind it.
        return Granted(taken.items, more=taken.more or any(map(is_suspect, taken.items)))

    # --- The kind of claim: see ClaimKind ---

    def stamp(self, _chosen: Sequence[Job], now: datetime) -> ClaimStamp:
        self._beats.claimed(now)
        config = self._shared.config
        return ClaimStamp.new(config.instance_id, now, config.heartbeat_interval, secrets.token_hex(6))

    def resolving(self, stamp: ClaimStamp) -> Callable[[], Sequence[Job]]:
        return partial(claiming.resolve, self.leased, stamp, self._beats.next(self._context.clock.now()))

    def release(self, stamp: ClaimStamp, held: Sequence[ObjectId], now: datetime) -> int:
        return claiming.release_all(self._context.jobs, stamp, now, but=held)

    def released(self) -> None:
        self._announce(None)

    @staticmethod
    def id_of(taken: Job) -> ObjectId:
        return taken.id

    # --- What is due later ---

    async def next_due(self, groups: Set[str]) -> Due | None:
        # Not after now: what came to be due since the look would be neither claimed nor told.
        found = await self._next_due(groups, self._candidates.looked_at)
        if found is None:
            return None
        one, moment = found.alone, self._context.clock.on_run_clock(found.moment)
        return Due(moment, None if one is None else KnownItem(JobKey(one.id, found.moment, one.attempts), one.name))

    async def earliest_pending(self) -> datetime | None:
        """When the first job is or was due of all that could be claimed here."""

        def ask() -> datetime | None:
            names = sorted(set(self._workers.names) - self._paused.look_up(self.leased))
            return due.earliest(self._context.jobs, names, self._context.clock.now())

        return await self._door.call(ask, channel=Channel.CLAIMS, abandon_on_cancel=True)

    async def _next_due(self, groups: Iterable[str], after: datetime) -> NextDue | None:
        def ask() -> NextDue | None:
            # Looked up: a resume is told while the claim before is under way, which has not seen it, and the next
            # claim may see it after this question.
            names = sorted(set(groups) - self._paused.look_up(self.leased))
            return due.next_due(self._context.jobs, names, after)

        return await self._door.call(ask, channel=Channel.CLAIMS, abandon_on_cancel=True)
