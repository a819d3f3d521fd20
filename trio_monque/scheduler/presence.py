"""This instance's entry among the instances: written at the start, on every beat, and removed at the end.

Nothing rests on it but who sees whom. A presence that fails harms no job; the fence needs none.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib import metadata
from typing import Final

import trio

from ..client.ground import Ground
from ..client.wake_board import instances_here
from ..engine.guard import Stop
from ..engine.progress import Progress
from ..errors import InstanceCollisionError, MonqueConnectionError
from ..jobs.instance import MOST_NAMES, Instance, clamped, is_alive, most_held
from ..jobs.job import Job
from ..observations import Observations, Sighting
from ..options import SchedulerConfig
from ..store import instances
from ..store.offload import Channel, Door
from .beats import Beats

logger = logging.getLogger("trio_monque.scheduler")

PRUNED_AFTER_BEATS: Final = 10
"""Heartbeat intervals of its own after which an entry that was not seen to change is removed, by whoever saw it."""

# A failed beat is tried again after this share of the interval.
RETRY_SHARE: Final = 1 / 10
LONGEST_RETRY: Final = 1.0

# Seconds to be off the list. In a cut well within the engine's hard bound; otherwise the shutdown's own time is left.
PATIENCE_IN_A_CUT: Final = 0.5
PATIENCE: Final = 2.0

# Others come and go with the same id between our two commands. It cannot go on for ever by chance.
MOST_ROUNDS: Final = 10


class Presence:
    """Keeps the entry. `enter` and `leave` block, in a thread; `run` is one of the scheduler's services.

    Args:
        names: What the scheduler runs now.
        held: What it holds now.
        rests: There is no beat: in virtual time, where whoever is on the wake board lives.
    """

    def __init__(
        self,
        ground: Ground,
        door: Door,
        config: SchedulerConfig,
        stop: Stop,
        *,
        names: Callable[[], Sequence[str]],
        held: Callable[[], Sequence[Job]],
        rests: bool,
    ) -> None:
        self.progress = Progress("presence")
        self._ground = ground
        self._door = door
        self._interval = config.heartbeat_interval
        self._id = config.scheduler_instance_id
        self._stop = stop
        self._names = names
        self._held = held
        self._rests = rests
        self._beats = Beats()
        self._entry: Instance | None = None
        self._others: Observations[Instance] = Observations()
        self._ending = trio.CancelScope()
        self._is_beating = self._is_ending = False
        self._ended = trio.Event()

    # --- In a thread ---

    def enter(self) -> None:
        """Writes the entry.

        Raises:
            InstanceCollisionError: Another instance that lives has this id, or holds a job under it.
        """
        now = self._ground.now()
        self._beats.claimed(now)
        entry = Instance(
            id=self._id,
            incarnation=secrets.token_hex(8),
            host=socket.gethostname(),
            pid=os.getpid(),
            names=tuple(sorted(self._names())[:MOST_NAMES]),
            started_at=now,
            last_heartbeat=now,
            heartbeat_interval=self._interval,
            version=_version(),
        )
        self._check_claims()
        for _ in range(MOST_ROUNDS):
            if self._has_entered(entry):
                return
        raise InstanceCollisionError(
            self._id,
            f"the document of that _id in {instances.name_of_collection(self._ground.jobs.collection.name)!r} is none "
            "of a dead instance",
        )

    def _check_claims(self) -> None:
        now = self._ground.now()
        for job in instances.claims_of(self._ground.jobs, self._id):
            if job.last_heartbeat is not None and is_alive(job.last_heartbeat, job.heartbeat_interval, now):
                ago = (now - job.last_heartbeat) / timedelta(seconds=1)
                raise InstanceCollisionError(
                    self._id, f"job {job} is processing under it, and its claim was renewed {ago:.1f} s ago"
                )

    def _has_entered(self, entry: Instance) -> bool:
        try:
            entered = self._enter(entry)
        except MonqueConnectionError as error:
            if error.unknown_outcome:
                # It may be there, and would keep the next start with this id off.
                self._entry = entry
                self.leave()
            raise
        if entered:
            self._entry = entry
        return entered

    def _enter(self, entry: Instance) -> bool:
        jobs = self._ground.jobs
        if instances.insert(jobs, entry):
            return True
        seen = instances.read(jobs, self._id)
        if seen is None:
            return False  # It has left meanwhile.
        if seen.incarnation == entry.incarnation:
            return True  # The driver had sent it twice.
        now = self._ground.now()
        if seen.id in instances_here(jobs.collection.full_name) or is_alive(
            seen.last_heartbeat, seen.heartbeat_interval, now
        ):
            ago = (now - seen.last_heartbeat) / timedelta(seconds=1)
            raise InstanceCollisionError(
                self._id, f"process {seen.pid} on {seen.host} has it, and gave a sign of life {ago:.1f} s ago"
            )
        if not instances.replace_if_unchanged(jobs, seen, entry):
            return False
        logger.info("the id of %s, which is dead, is taken over", seen)
        return True

    def leave(self) -> None:
        """Removes the entry. Never raises: one that stays is told as dead, and is removed by others."""
        entry = self._entry
        if entry is None:
            return
        try:
            instances.remove(self._ground.jobs, entry)
        except MonqueConnectionError as error:
            logger.info("the entry of this instance stays until it is seen to be dead: %s", error)
        else:
            self._entry = None

    def _beat(self, entry: Instance) -> Instance | None:
        """Whose the id is now, if not ours."""
        jobs = self._ground.jobs
        if instances.beat(jobs, entry):
            return None
        # It is gone: somebody took us for dead, or has dropped the collection.
        if not entry.draining and instances.insert(jobs, entry):
            return None
        seen = instances.read(jobs, entry.id)
        return None if seen is None or seen.incarnation == entry.incarnation else seen

    # --- On the run ---

    async def run(self) -> None:
        """Until `end`, or until the id was taken by somebody else, which is told and ends the scheduler in order."""
        try:
            with self._ending:
                await self._run()
        finally:
            self._ended.set()

    @property
    def is_there(self) -> bool:
        """The entry was written, and is not known to be removed."""
        return self._entry is not None

    async def end(self) -> None:
        """Ends `run`, and removes the entry; bounded. A beat that is under way is awaited: it must not come after."""
        with trio.move_on_after(self._patience):
            self._is_ending = True
            if not self._is_beating:
                self._ending.cancel(reason="the instance leaves")
            await self._ended.wait()
            await self._door.call(self.leave, channel=Channel.RENEWALS, abandon_on_cancel=True)

    @property
    def _patience(self) -> float:
        if self._rests:
            return math.inf  # What is under way holds the clock.
        return PATIENCE_IN_A_CUT if self._stop.cutting.is_set() else PATIENCE

    async def _run(self) -> None:
        beat_at, failed = trio.current_time(), False
        while not self._is_ending:
            beat_at = max(beat_at + self._pause(after_fault=failed), trio.current_time())
            draining = self._stop.draining
            is_told = draining.is_set()
            with trio.move_on_at(beat_at):
                # The end is told at once, and then from beat to beat.
                await (trio.Event() if is_told else draining).wait()
            failed = not await self._try_to_beat(again=failed)

    def _pause(self, *, after_fault: bool) -> float:
        if after_fault:
            return min(self._interval * RETRY_SHARE, LONGEST_RETRY)
        return math.inf if self._rests else self._interval

    async def _try_to_beat(self, *, again: bool) -> bool:
        self._is_beating = True
        self.progress.ask()
        try:
            await self._beat_and_look()
        except MonqueConnectionError as error:
            self.progress.fail(error)
            logger.log(logging.DEBUG if again else logging.WARNING, "%s; it is tried again", error)
            return False
        finally:
            self._is_beating = False
        self.progress.answered()
        return True

    async def _beat_and_look(self) -> None:
        assert self._entry is not None, "it enters first"
        held = self._held()
        self._entry = entry = replace(
            self._entry,
            last_heartbeat=self._beats.next(self._ground.clock.now()),
            names=tuple(sorted(self._names())[:MOST_NAMES]),
            draining=self._stop.draining.is_set(),
            held=len(held),
            held_by_name=most_held(job.name for job in held),
        )
        other = await self._door.hand_over(
            partial(self._beat, entry),
            # Too late: what it wrote would be the entry of somebody who has left.
            orphan=lambda _: self.leave(),
            channel=Channel.CLAIMS,
        )
        if other is not None:
            self._lost(other)
        elif not self._rests:
            await self._remove_the_dead()

    def _lost(self, other: Instance) -> None:
        error = InstanceCollisionError(
            self._id, f"this instance was silent for so long that {other} has taken it: this one ends"
        )
        logger.error("%s", error)
        self._is_ending = True
        self._stop.end_with(error)

    async def _remove_the_dead(self) -> None:
        """Removes entries that nobody has touched for long, as seen from here: no wall clock plays a part."""
        jobs = self._ground.jobs
        seen = await self._door.call(partial(instances.read_all, jobs), channel=Channel.CLAIMS, abandon_on_cancel=True)
        sightings = [
            Sighting(
                one,
                key=one.id,
                mark=(one.incarnation, one.last_heartbeat),
                lease=PRUNED_AFTER_BEATS * clamped(one.heartbeat_interval),
            )
            for one in seen
            if one.id != self._id
        ]
        moment = trio.current_time()
        self._others.update(sightings, moment)
        for dead in self._others.due(moment, len(sightings)):
            remove = partial(instances.remove_if_unchanged, jobs, dead.claim)
            if await self._door.call(remove, channel=Channel.CLAIMS, abandon_on_cancel=True):
                logger.info("the entry of %s is removed: it is dead", dead.claim)


def _version() -> str:
    try:
        return metadata.version("trio-monque")
    except metadata.PackageNotFoundError:
        return "unknown"
