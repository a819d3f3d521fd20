"""The life of this instance's entry among the instances: a beat, and a look at the others.

Nothing rests on it but who sees whom. A presence that fails harms no job; the fence needs none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from ..client.context import ClientContext
from ..engine.guard import Stop
from ..engine.progress import Progress
from ..errors import InstanceCollisionError, MonqueConnectionError
from ..jobs.instance import Instance, clamped
from ..jobs.job import Job
from ..log import logger_of
from ..loop_time import loop_time
from ..observations import Observations, Sighting
from ..options import SchedulerConfig
from ..store import instances
from ..store.database_threads import Channel, DatabaseThreads
from .instance_entry import InstanceEntry

logger = logger_of("scheduler")

PRUNED_AFTER_BEATS: Final = 10
"""Heartbeat intervals of its own after which an entry that was not seen to change is removed, by whoever saw it."""

# A failed beat is tried again after this share of the interval.
RETRY_SHARE: Final = 1 / 10
LONGEST_RETRY: Final = 1.0

# Seconds to be off the list. In a cut well within the engine's hard bound; otherwise the shutdown's own time is left.
PATIENCE_IN_A_CUT: Final = 0.5
PATIENCE: Final = 2.0


class Presence:
    """Keeps the entry. `enter` and `leave` block, in a thread; `run` is one of the scheduler's services.

    Args:
        names: What the scheduler runs now.
        held: What it holds now.
    """

    def __init__(
        self,
        context: ClientContext,
        door: DatabaseThreads,
        config: SchedulerConfig,
        stop: Stop,
        *,
        names: Callable[[], Sequence[str]],
        held: Callable[[], Sequence[Job]],
    ) -> None:
        self.progress = Progress("presence")
        self._context = context
        self._door = door
        self._interval = config.heartbeat_interval
        self._id = config.instance_id
        self._stop = stop
        self._names = names
        self._held = held
        self._time = loop_time()  # Without beats in virtual time: there, every instance of this process lives.
        self._entry = InstanceEntry(context, config)
        self._others: Observations[Instance] = Observations()
        self._ending = trio.CancelScope()
        self._is_beating = self._is_ending = False
        self._ended = trio.Event()

    def enter(self) -> None:
        """Writes the entry; see `InstanceEntry.enter`."""
        self._entry.enter(self._names())

    def leave(self) -> None:
        """Removes the entry. Never raises: one that stays is told as dead, and is removed by others."""
        self._entry.leave()

    @property
    def is_there(self) -> bool:
        """The entry was written, and is not known to be removed."""
        return self._entry.is_there

    async def run(self) -> None:
        """Until `end`, or until the id was taken by somebody else, which is told and ends the scheduler in order."""
        try:
            with self._ending:
                await self._run()
        finally:
            self._ended.set()

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
        if self._time.is_event_driven:
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
        return self._time.poll_interval(self._interval)

    async def _try_to_beat(self, *, again: bool) -> bool:
        self._is_beating = True
        self.progress.ask()
        try:
            await self._beat_and_look()
        except MonqueConnectionError as error:
            self.progress.fail(error)
            logger.log(
                logging.DEBUG if again else logging.WARNING,
                "could not renew the entry of this instance: %s; retrying",
                error,
            )
            return False
        finally:
            self._is_beating = False
        self.progress.answered()
        return True

    async def _beat_and_look(self) -> None:
        now = await self._context.refreshed(self._door, Channel.CLAIMS)
        entry = self._entry.renewed(self._names(), self._held(), now, draining=self._stop.draining.is_set())
        other = await self._door.hand_over(
            partial(self._entry.beat, entry),
            # Too late: what it wrote would be the entry of somebody who has left.
            orphan=lambda _: self.leave(),
            channel=Channel.CLAIMS,
        )
        if other is not None:
            self._lost(other)
        elif not self._time.is_event_driven:
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
        jobs = self._context.jobs
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
                logger.info("removed the entry of %s, which is dead", dead.claim)
