"""Rescue: what is seen of the claims of others, how dead ones are taken away, and the same by hand."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

import anyio

from ..clock import virtual_time
from ..errors import MonqueConnectionError, MonqueError
from ..jobs import events
from ..jobs.fences import ClaimId, claim_id
from ..jobs.job import Job, JobStatus
from ..jobs.rescues import Rescue, RescuePolicy, decide_rescue, is_stale, lease_of, mark_of, protected_for
from ..jobs.transition import applied
from ..observations import Observations, Sighting
from ..options import SchedulerConfig, check_seconds
from ..store import rescuing, settling
from ..store.offload import Door
from ..store.settling import Fate, Statement
from .bus import Bus
from .ground import Ground
from .wake_board import Announcer

logger = logging.getLogger("trio_monque")

# A schedule may be changed while it is decided what becomes of it. It cannot go on for ever by chance.
MOST_ROUNDS: Final = 10

# A lost answer is harmless, but nobody would be told of what was rescued: the same is sent again, soon.
MOST_TRIES: Final = 3
TRY_AGAIN_AFTER: Final = 0.2

MOST_AT_ONCE: Final = 100
SHORTEST_PAUSE: Final = 0.02
MOST_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Rescued:
    """A dead claim that was taken away.

    Attributes:
        before, after: The job, as it was observed and as it was left.
        error: Where the job was given up, or its occurrence: why.
    """

    before: Job
    after: Job
    error: BaseException | None


class Rescuer:
    """Looks at claims and takes dead ones away; every call blocks until the database has answered."""

    def __init__(self, ground: Ground) -> None:
        config = ground.config
        # A client that runs no jobs goes by a scheduler's defaults.
        self._config = config if isinstance(config, SchedulerConfig) else SchedulerConfig()
        self._policy = RescuePolicy.of(self._config)
        self._ground = ground

    def look(self) -> Sequence[Job]:
        """Every claim that there is."""
        return rescuing.look(self._ground.jobs)

    def sighting(self, job: Job, now: datetime, older_than: float | None = None) -> Sighting[Job]:
        """What an observer makes of a claim; `older_than` stands for `lock_timeout`."""
        return Sighting(
            job,
            key=job.id,
            mark=mark_of(job),
            lease=lease_of(job),
            protected_for=protected_for(job, now, self._config.lock_timeout if older_than is None else older_than),
            is_stale=is_stale(job, now),
        )

    def take(self, observed: Sequence[Job]) -> Sequence[Rescued]:
        """Takes away those of the claims that have not changed since; what each job then is, is decided now."""
        marks: dict[object, Hashable] = {job.id: mark_of(job) for job in observed}
        taken: list[Rescued] = []
        for _ in range(MOST_ROUNDS):
            found = rescuing.read(self._ground.jobs, [job.id for job in observed if job.id in marks]) if marks else ()
            dead = {claim_id(job): job for job in found if mark_of(job) == marks[job.id]}
            if not dead:
                break
            now = self._ground.clock.now()
            rescues = {claim: decide_rescue(job, now, self._policy) for claim, job in dead.items()}
            statements = settling.grouped([one.transition for one in rescues.values()], secrets.token_hex(8))
            fates = self._settle(statements)
            taken += _taken(dead, rescues, fates)
            # Where a schedule was changed meanwhile, it is decided again from what it is now.
            marks = {claim[0]: marks[claim[0]] for claim in dead if fates[claim] is Fate.SCHEDULE_CHANGED}
        return taken

    def _settle(self, statements: Sequence[Statement]) -> Mapping[ClaimId, Fate]:
        for _ in range(MOST_TRIES - 1):
            try:
                return settling.settle(self._ground.jobs, statements)
            except MonqueConnectionError as error:
                if not error.transient:
                    raise
            time.sleep(TRY_AGAIN_AFTER)
        return settling.settle(self._ground.jobs, statements)


def _taken(
    dead: Mapping[ClaimId, Job], rescues: Mapping[ClaimId, Rescue], fates: Mapping[ClaimId, Fate]
) -> Iterator[Rescued]:
    for claim, job in dead.items():
        transition, error = rescues[claim].transition, rescues[claim].error
        if fates[claim] is Fate.WRITTEN:
            yield Rescued(job, applied(job, transition), error)
        elif fates[claim] is Fate.CANCELLED and transition.otherwise is not None:
            yield Rescued(job, applied(job, transition.otherwise), None)
        elif fates[claim] is Fate.REFUSED:
            logger.error("the server refused to rescue job %s, and will be asked again", job)


def pending_again(rescued: Sequence[Rescued]) -> Sequence[Job]:
    """As they are now."""
    return [one.after for one in rescued if one.after.status is JobStatus.PENDING]


def log_and_events_of(rescued: Sequence[Rescued]) -> Sequence[events.Event]:
    """Logs what was rescued, and gives the events that tell of it."""
    told: list[events.Event] = []
    if pending := pending_again(rescued):
        by_name = dict(Counter(job.name for job in pending).most_common())
        holders = sorted({str(one.before.claimed_by) for one in rescued})
        logger.warning(
            "%d %s pending again that dead instances held (%s). Each of these was killed, out of memory, "
            "lost its database, or blocked its event loop for longer than its lease: %s",
            len(pending),
            "job is" if len(pending) == 1 else "jobs are",
            _listed(f"{name}: {count}" for name, count in by_name.items()),
            _listed(iter(holders)),
        )
        told.append(events.StaleJobsRecovered(len(pending), by_name))
    for one in rescued:
        told += _events_of(one)
    return told


def _events_of(rescued: Rescued) -> Sequence[events.Event]:
    job, error = rescued.after, rescued.error
    if job.status is JobStatus.CANCELLED:
        return [events.JobCancelled(job)]
    if error is None:
        return []
    goes_on = job.status is JobStatus.PENDING
    what = f"goes on at {job.next_run_at}" if goes_on else "is given up"
    logger.error("job %s %s: it %s", job, what, error)
    failed = events.JobFailed(job, error, will_retry=goes_on)
    return [events.ScheduleExhausted(job, error), failed] if goes_on else [failed]


def _listed(words: Iterator[str]) -> str:
    named = list(words)
    shown = ", ".join(named[:MOST_NAMED])
    return shown if len(named) <= MOST_NAMED else f"{shown} and {len(named) - MOST_NAMED} more"


class _ByHand:
    """What one call by hand has left to observe: the claims that its first look showed, until they change or die."""

    def __init__(self, rescuer: Rescuer, older_than: float | None) -> None:
        if older_than is not None:
            check_seconds("older_than", older_than, zero=True)
        self._rescuer = rescuer
        self._older_than = older_than
        self._observations: Observations[Job] = Observations()
        self._first: dict[object, Hashable] | None = None
        self.rescued: list[Rescued] = []

    def looked(self, found: Sequence[Job], now: datetime, answered: float) -> None:
        seen = [self._rescuer.sighting(job, now, self._older_than) for job in found]
        at_start = self._first is None
        if self._first is None:
            # One that is too young now is none of those that were asked for.
            self._first = {one.key: one.mark for one in seen if one.protected_for <= 0}
        first = self._first
        same = [one for one in seen if first.get(one.key, self) == one.mark]
        self._observations.update(same, answered, at_start=at_start)

    def dead(self, moment: float) -> Sequence[Sighting[Job]]:
        return self._observations.due(moment, MOST_AT_ONCE)

    def took(self, dead: Sequence[Sighting[Job]], rescued: Sequence[Rescued]) -> None:
        self._observations.forget(dead)
        self.rescued += rescued

    def pause(self, moment: float) -> float | None:
        """Seconds until the next look; None where nothing is left. Who lives changes within a beat or two."""
        if not self._observations:
            return None
        half_a_beat = self._observations.shortest_lease / 6
        return max(min(self._observations.next_due - moment, half_a_beat), SHORTEST_PAUSE)


class Recovering:
    """Rescue by hand, through the door, on any anyio backend. A base of Monque, which makes the attributes."""

    _ground: Ground
    _door: Door
    _bus: Bus
    _announcer: Announcer

    async def recover_stale_jobs(self, older_than: float | None = None) -> int:
        """Rescues the jobs of dead instances, now; a scheduler does so by itself.

        By the same rules: a claim is dead when it has not changed for three of its heartbeat intervals, which
        this call waits for (90 seconds, with the default). It ends earlier where all that are left live.

        Args:
            older_than: For claims of another library only: seconds since its claim from which one may be
                rescued, instead of `lock_timeout`.

        Returns:
            How many jobs are pending again.

        Raises:
            InvalidOptionError: `older_than` cannot be.
            MonqueConnectionError: The database cannot be reached or used.
        """
        rescuer = Rescuer(self._ground)
        by_hand = _ByHand(rescuer, older_than)
        pause: float | None = 0.0
        while pause is not None:
            await anyio.sleep(pause)
            found, now = await self._door.call(lambda: (rescuer.look(), self._ground.now()))
            by_hand.looked(found, now, anyio.current_time())
            while dead := by_hand.dead(anyio.current_time()):
                rescued = await self._door.call(partial(rescuer.take, [one.claim for one in dead]))
                by_hand.took(dead, rescued)
                self._announcer.announce(pending_again(rescued))
            pause = by_hand.pause(anyio.current_time())
        for event in log_and_events_of(by_hand.rescued):
            await self._bus.tell(event)
        return len(pending_again(by_hand.rescued))


class SyncRecovering:
    """The same, blocking."""

    def __init__(self, ground: Ground, tell: Callable[[events.Event], None], announcer: Announcer) -> None:
        self._ground = ground
        self._tell = tell
        self._announcer = announcer

    def recover_stale_jobs(self, older_than: float | None = None) -> int:
        """See `Monque.recover_stale_jobs`. Where it would have to wait in virtual time, it raises MonqueError."""
        rescuer = Rescuer(self._ground)
        by_hand = _ByHand(rescuer, older_than)
        pause: float | None = 0.0
        while pause is not None:
            if pause and virtual_time() is not None:
                raise MonqueError("a thread cannot wait for virtual time to pass: await Monque.recover_stale_jobs")
            time.sleep(pause)
            found = rescuer.look()
            by_hand.looked(found, self._ground.now(), time.monotonic())
            while dead := by_hand.dead(time.monotonic()):
                rescued = rescuer.take([one.claim for one in dead])
                by_hand.took(dead, rescued)
                self._announcer.announce(pending_again(rescued))
            pause = by_hand.pause(time.monotonic())
        for event in log_and_events_of(by_hand.rescued):
            self._tell(event)
        return len(pending_again(by_hand.rescued))
