"""JobClaims: claims jobs that are due, or the one job that is known to be due.

A look finds candidates, and a later write claims them; others act in between. What each condition closes:

- *A name is paused after the look.* The thread of the write looks the pauses up right before it. Otherwise jobs of a
  paused name would be claimed for as long as looks that began before the pause are on their way.
- *Another instance claims the job first.* The write repeats the whole condition of a claim (`store/claiming.py`,
  `jobs/claimable.py`), so only one instance matches. The other one looks again (`more`).
- *Another instance claims, runs and postpones the job.* It is pending again and looks unchanged to a timer that was set
  before. So `claim_one` also compares how often the job had been claimed by then (`JobKey.attempts`).
- *The server's clock is measured again while a timer runs.* The timer may end too early. `claim_one` sleeps in its
  thread for a few milliseconds, but leaves a job that is due later than LONGEST_WAIT to a new look.
- *The collection is dropped.* `with_indexes` creates the indexes again before the write. Without the unique index, two
  jobs with one key could be inserted.
- *The server refuses the claim on one job* (a validator, a full document). The job is set aside; otherwise it would be
  chosen first in every look, and the jobs behind it would never run.

Answers that are lost are the subject of `host/claiming.py`.
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
from ..jobs.fences import ClaimStamp
from ..jobs.job import Job
from ..jobs.rescue_policy import is_suspect
from ..options import LEASE_IN_BEATS
from ..store import claiming, due, refused_claims
from ..store.database_threads import Channel
from ..store.due import NextDue
from ..store.refused_claims import SetAside
from ..store.types import ObjectId
from .candidates import JobFinder, JobKey
from .context import SchedulerContext

# Seconds that `claim_one` sleeps in its thread, at most. Its timer was set from clocks that cannot be read at the same
# time, and so may end a little early.
LONGEST_WAIT: Final = 2 * HEAD_START


class JobClaims:
    """Claims jobs for one scheduler; the `ClaimKind` of `host.claiming` for jobs.

    Attributes:
        leased: The collection, with a timeout of at most one heartbeat interval: the lease of a claim begins when it is
            sent, so a later answer comes too late.
    """

    def __init__(
        self, shared: SchedulerContext, beats: Beats, announce: Callable[[None], None], claimed: Callable[[], None]
    ) -> None:
        self._shared = shared
        self._context = shared.client
        self._db_threads = shared.db_threads
        self._workers = shared.workers
        self._paused = shared.paused
        self._beats = beats
        self._announce = announce
        self._claimed = claimed
        self.leased = shared.leased
        self._candidates = Candidates(JobFinder(shared))
        lease = LEASE_IN_BEATS * shared.config.heartbeat_interval
        self._claiming: Claiming[Job, ClaimStamp, Job] = Claiming(
            shared.db_threads, shared.client, self._candidates, self, lease
        )
        self.has_orphaned = self._claiming.has_orphaned
        self.release_orphaned = self._claiming.release_orphaned

    @property
    def contention(self) -> Contention:
        """How many of the jobs that this instance saw were claimed by others first."""
        return self._candidates.contention

    async def claim(self, demand: Demand) -> Granted[Job]:
        now = await self._context.refreshed(self._db_threads, Channel.CLAIMS)
        aside = list[SetAside]()

        def take(chosen: Sequence[Job], stamp: ClaimStamp) -> Taken[Job]:
            # If the collection was dropped or renamed, this creates its indexes first. Otherwise it costs nothing.
            return self._context.with_indexes(lambda: self._take(chosen, stamp, now, aside))

        taken = await self._claiming.claim(demand, now, take)
        self._shared.reporter.jobs_set_aside(aside)
        return self._granted(taken)

    def _take(self, chosen: Sequence[Job], stamp: ClaimStamp, now: datetime, aside: list[SetAside]) -> Taken[Job]:
        """Runs in a database thread."""
        asked = chosen
        if paused := self._paused.look_up(self.leased):
            asked = [job for job in chosen if job.name not in paused]
        taken = claiming.take(self.leased, asked, now, stamp) if asked else claiming.Taken([])
        if taken.refused:
            aside += self._set_aside(taken, now)
        # More jobs may wait behind those whose names were paused since the look. Refused jobs do not count as tried: no
        # other instance took them, so they are not a sign of contention.
        more = taken.more or len(asked) < len(chosen)
        return Taken(taken.jobs, more=more, tried=len(asked) - len(taken.refused))

    def _set_aside(self, taken: claiming.Taken, now: datetime) -> Sequence[SetAside]:
        """Runs in a database thread. If this write fails, a later claim is refused again and sets the job aside."""
        try:
            return refused_claims.set_jobs_aside(self.leased, taken.refused, now, others_were_claimed=bool(taken.jobs))
        except MonqueConnectionError:
            return []

    async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[Job]:
        key, now = item.key, await self._context.refreshed(self._db_threads, Channel.CLAIMS)
        assert isinstance(key, JobKey)
        if self._context.clock.seconds_until(key.due) > LONGEST_WAIT:
            return Granted([], more=True)  # The server's clock was measured again.
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
        # A suspect is claimed alone, so other due jobs may wait behind it.
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
        # After the last look and not after now: the look did not see a job that became due in between, and a question
        # about the time after now would skip it as well.
        found = await self._next_due(groups, self._candidates.looked_at)
        if found is None:
            return None
        one, moment = found.alone, self._context.clock.on_run_clock(found.moment)
        return Due(moment, None if one is None else KnownItem(JobKey(one.id, found.moment, one.attempts), one.name))

    async def earliest_pending(self) -> datetime | None:
        """When the earliest job is or was due that this scheduler may claim; None if there is none."""

        def ask() -> datetime | None:
            names = sorted(set(self._workers.names) - self._paused.look_up(self.leased))
            return due.earliest(self._context.jobs, names, self._context.clock.now())

        return await self._db_threads.call(ask, channel=Channel.CLAIMS, abandon_on_cancel=True)

    async def _next_due(self, groups: Iterable[str], after: datetime) -> NextDue | None:
        def ask() -> NextDue | None:
            # Look the pauses up here too. A resume may be announced while the last claim is on its way, which did not
            # see it; the next claim may come after this question. With the cached answer, no timer would be set for
            # the resumed name.
            names = sorted(set(groups) - self._paused.look_up(self.leased))
            return due.next_due(self._context.jobs, names, after)

        return await self._db_threads.call(ask, channel=Channel.CLAIMS, abandon_on_cancel=True)
