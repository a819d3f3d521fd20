"""How a scheduler claims jobs, through the door: candidates that nobody has paused, or one that it was told of."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

import trio

from ..client.context import ClientContext
from ..engine.beats import Beats
from ..engine.candidates import Candidates
from ..engine.contention import Contention
from ..engine.demand import HEAD_START, Demand, Due, Granted, Tip
from ..engine.disowned import DisownedClaims
from ..errors import MonqueConnectionError
from ..jobs.claimable import is_suspect
from ..jobs.fences import ClaimStamp
from ..jobs.job import Job
from ..options import LEASE_IN_BEATS, SchedulerConfig
from ..store import claiming, due, refused_claims
from ..store.claiming import Taken
from ..store.database_threads import Channel, DatabaseThreads
from ..store.due import NextDue
from ..store.refused_claims import SetAside
from ..store.types import ObjectId
from .candidates import JobFinder
from .paused_names import PausedNames
from .told import JobKey
from .workers import Workers

# In its thread, a claim waits so many seconds for its moment: the timer was set by clocks that are read one by one.
LONGEST_WAIT: Final = 2 * HEAD_START


class Claims:
    """Takes what is due. What an answer hides is resolved, and what is not found is disowned.

    Attributes:
        leased: The collection, for whatever must be answered within a beat.
    """

    def __init__(
        self,
        context: ClientContext,
        door: DatabaseThreads,
        workers: Workers,
        config: SchedulerConfig,
        paused: PausedNames,
        beats: Beats,
        disowned: DisownedClaims[ClaimStamp],
        announce: Callable[[Sequence[Job] | None], None],
        claimed: Callable[[], None],
        tell_set_aside: Callable[[Sequence[SetAside]], None],
    ) -> None:
        # An answer that takes longer than a beat would come too late for what it is asked for.
        self.leased = replace(context.jobs, operation_timeout=min(config.operation_timeout, config.heartbeat_interval))
        self._context = context
        self._door = door
        self._workers = workers
        self._config = config
        self._paused = paused
        self._beats = beats
        self._disowned = disowned
        self._announce = announce
        self._claimed = claimed
        self._tell_set_aside = tell_set_aside
        self._candidates = Candidates(JobFinder(context, door, workers, paused, self.leased))

    async def claim(self, demand: Demand) -> Granted[Job]:
        now = await self._context.refreshed(self._door, Channel.CLAIMS)
        chosen = await self._candidates.choose(demand, now)
        may_be_more = len(chosen) < demand.total and self._candidates.may_be_more(demand)
        if not chosen:
            return Granted([], more=may_be_more)
        stamp, asked, aside = self._stamp(now), list(chosen), list[SetAside]()

        def take() -> Taken:
            if paused := self._paused.look_up(self.leased):
                asked[:] = [job for job in chosen if job.name not in paused]
            taken = claiming.take(self.leased, asked, now, stamp) if asked else Taken([])
            if taken.refused:
                aside.extend(self._set_aside(taken, now))
            # Behind those that were paused since they were seen, others may wait.
            return taken if len(asked) == len(chosen) else replace(taken, more=True)

        with self._candidates.asking_for(chosen) as answer:
            taken = await self._taken(take, stamp, [job.id for job in chosen])
            # What the server refuses was not lost to another instance.
            answer.tried, answer.won = len(asked) - len(taken.refused), len(taken.jobs)
        self._tell_set_aside(aside)
        return self._granted(replace(taken, more=taken.more or may_be_more))

    def _set_aside(self, taken: Taken, now: datetime) -> Sequence[SetAside]:
        """In a thread. What cannot be written now is refused again, and set aside, by a later claim."""
        try:
            return refused_claims.set_jobs_aside(self.leased, taken.refused, now, others_were_claimed=bool(taken.jobs))
        except MonqueConnectionError:
            return []

    async def claim_one(self, tip: Tip, demand: Demand) -> Granted[Job]:
        key, now = tip.key, await self._context.refreshed(self._door, Channel.CLAIMS)
        assert isinstance(key, JobKey)
        if self._context.clock.seconds_until(key.due) > LONGEST_WAIT:
            return Granted([], more=True)  # The server's time was measured anew.
        if demand.withholds(key.id):
            return Granted([])
        now = max(now, key.due)
        stamp = self._stamp(now)

        def take() -> Taken:
            if tip.lane in self._paused.look_up(self.leased):
                return Taken([])
            time.sleep(max(0.0, self._context.clock.seconds_until(key.due)))
            return claiming.take_one(self.leased, key.id, tip.lane, key.attempts, now, stamp)

        return self._granted(await self._taken(take, stamp, [key.id]))

    @property
    def contention(self) -> Contention:
        """How much other instances take of what is seen here."""
        return self._candidates.contention

    def _stamp(self, now: datetime) -> ClaimStamp:
        self._beats.claimed(now)
        config = self._config
        return ClaimStamp.new(config.instance_id, now, config.heartbeat_interval, secrets.token_hex(6))

    async def _taken(self, take: Callable[[], Taken], stamp: ClaimStamp, tried: Sequence[ObjectId]) -> Taken:
        """What `take` took, which tried to take these; resolved where the answer was lost.

        Where the collection was dropped or renamed, its indexes are made first; that costs nothing otherwise.
        """
        try:
            return await self._door.hand_over(
                partial(self._context.with_indexes, take),
                orphan=partial(self._give_back, stamp),
                channel=Channel.CLAIMS,
            )
        except MonqueConnectionError as error:
            if not error.unknown_outcome:
                raise
            held = await self._resolve(stamp, tried)
            if not held:
                raise
            # What was not found is due as before, as far as anybody knows.
            return Taken(held, more=len(held) < len(tried))

    def _granted(self, taken: Taken) -> Granted[Job]:
        if taken.jobs:
            self._claimed()
        # A suspect was claimed alone: others may wait behind it.
        return Granted(taken.jobs, more=taken.more or any(map(is_suspect, taken.jobs)))

    def _give_back(self, stamp: ClaimStamp, _late: object) -> None:
        """In a thread that nobody waits for: what was granted too late."""
        claiming.release_all(self._context.jobs, stamp, self._context.clock.now())
        self._announce(None)

    async def _resolve(self, stamp: ClaimStamp, tried: Sequence[ObjectId]) -> Sequence[Job]:
        """What a claim holds whose answer was lost. What is not found is disowned: it may be applied later."""
        held: Sequence[Job] = ()
        with suppress(MonqueConnectionError):
            held = await self._door.hand_over(
                partial(claiming.resolve, self.leased, stamp, self._beats.next(self._context.clock.now())),
                orphan=partial(self._give_back, stamp),
                channel=Channel.CLAIMS,
            )
        if {job.id for job in held} == set(tried):
            return held
        lease = LEASE_IN_BEATS * self._config.heartbeat_interval
        self._disowned.add(stamp, [job.id for job in held], until=trio.current_time() + lease)
        return held

    # --- What is due later ---

    async def next_due(self, lanes: Set[str]) -> Due | None:
        # Not after now: what came to be due since the look would be neither claimed nor told.
        found = await self._next_due(lanes, self._candidates.looked_at)
        if found is None:
            return None
        one, moment = found.alone, self._context.clock.on_run_clock(found.moment)
        return Due(moment, None if one is None else Tip(JobKey(one.id, found.moment, one.attempts), one.name))

    async def earliest_pending(self) -> datetime | None:
        """When the first job is or was due of all that could be claimed here."""

        def ask() -> datetime | None:
            names = sorted(set(self._workers.names) - self._paused.look_up(self.leased))
            return due.earliest(self._context.jobs, names, self._context.clock.now())

        return await self._door.call(ask, channel=Channel.CLAIMS, abandon_on_cancel=True)

    async def _next_due(self, lanes: Iterable[str], after: datetime) -> NextDue | None:
        def ask() -> NextDue | None:
            # Looked up: a resume is told while the claim before is under way, which has not seen it, and the next
            # claim may see it after this question.
            names = sorted(set(lanes) - self._paused.look_up(self.leased))
            return due.next_due(self._context.jobs, names, after)

        return await self._door.call(ask, channel=Channel.CLAIMS, abandon_on_cancel=True)
