"""Presence: renews this instance's entry in the fleet, and removes the entries of dead instances.

The entries show operators which instances live, and keep two instances from using one id. No job depends on them:
claims have their own fences and leases. So a heartbeat of the entry that fails is logged and retried, and harms no run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from ..client.client_context import ClientContext
from ..engine.guard import Stop
from ..engine.progress import Progress
from ..error_types import ClientClosedError, InstanceCollisionError, MonqueConnectionError
from ..jobs.instance import Instance, clamped
from ..log import logger_of
from ..loop_time import loop_time
from ..observations import Observations, Sighting
from ..options_and_defaults import SchedulerConfig
from ..store.driver.database_threads import Channel, DatabaseThreads
from ..store.jobs import instances
from .instance_entry import InstanceEntry
from .instance_state import InstanceState
from .minute_writer import MinuteWriter

logger = logger_of("scheduler")

PRUNED_AFTER_BEATS: Final = 10
"""An entry is removed when it was not seen to change for this number of its own heartbeat intervals."""

# A failed heartbeat is sent again after this share of the interval, at most after LONGEST_RETRY seconds.
RETRY_SHARE: Final = 1 / 10
LONGEST_RETRY: Final = 1.0

LOOK_FOR_NEWS: Final = 5.0
"""Seconds between looks whether something blocked a loop, or a thread goes on after its run was cancelled. Operators
look for that in the entry, and a heartbeat may be half a minute away. At most a sixth of the interval, which bounds how
often an instance in trouble writes its entry."""

# Seconds to remove the entry at the end. After a cut, well before the engine's hard end; a drain has more time.
LEAVE_TIMEOUT_IN_A_CUT: Final = 0.5
LEAVE_TIMEOUT: Final = 2.0


class Presence:
    """The loop that renews the entry. `enter` and `leave` block: call them in a database thread.

    Args:
        state: Returns what the scheduler does now.
        minutes: Writes what was done in each minute; None if that is turned off.
    """

    def __init__(
        self,
        context: ClientContext,
        db_threads: DatabaseThreads,
        config: SchedulerConfig,
        stop: Stop,
        state: Callable[[], InstanceState],
        minutes: MinuteWriter | None = None,
    ) -> None:
        self.progress = Progress("presence")
        self._context = context
        self._db_threads = db_threads
        self._interval = config.heartbeat_interval
        self._id = config.instance_id
        self._stop = stop
        self._state = state
        self._minutes = minutes
        # In virtual time no heartbeats are sent, because every instance of this process is alive there.
        self._time = loop_time()
        self._entry = InstanceEntry(context, config)
        self._others: Observations[Instance] = Observations()
        self._ending = trio.CancelScope()
        self._is_beating = self._is_ending = False
        self._ended = trio.Event()
        # What the last heartbeat wrote of blocked loops and of threads that go on.
        self._trouble_written = _NO_TROUBLE

    def enter(self) -> None:
        """Write the entry; see `InstanceEntry.enter`."""
        self._entry.enter(self._state())

    def leave(self) -> None:
        """Remove the entry. If that fails, it is logged, and another instance removes the entry later."""
        self._entry.leave()

    @property
    def is_there(self) -> bool:
        """Whether the entry was written, and this instance has not removed it."""
        return self._entry.is_there

    async def run(self) -> None:
        """Send heartbeats until `end`, or until another instance has taken the id, which drains the scheduler."""
        try:
            with self._ending:
                await self._run()
        finally:
            self._ended.set()

    async def end(self) -> None:
        """End `run` and remove the entry, in bounded time."""
        with trio.move_on_after(self._leave_timeout):
            self._is_ending = True
            # Await a heartbeat that is on its way: after the removal, it would insert the entry again.
            if not self._is_beating:
                self._ending.cancel(reason="the instance leaves")
            await self._ended.wait()
            await self._db_threads.call(self.leave, channel=Channel.RENEWALS, abandon_on_cancel=True)
            if self._minutes is not None:
                await self._minutes.write_all()

    @property
    def _leave_timeout(self) -> float:
        if self._time.is_event_driven:
            return math.inf  # A call that is on its way freezes the virtual clock.
        return LEAVE_TIMEOUT_IN_A_CUT if self._stop.cutting.is_set() else LEAVE_TIMEOUT

    async def _run(self) -> None:
        beat_at, failed = trio.current_time(), False
        while not self._is_ending:
            beat_at = max(beat_at + self._pause(after_fault=failed), trio.current_time())
            with trio.move_on_at(beat_at) as until_it_is_time:
                await self._news()
            if not until_it_is_time.cancelled_caught:
                beat_at = trio.current_time()  # An early one: the next comes one interval after it.
            failed = not await self._try_to_beat(again=failed)

    async def _news(self) -> None:
        """Return when the entry should be written early."""
        draining, trouble = self._stop.draining, self._trouble_written
        # The beginning of a drain is written at once; after that, heartbeats come at their interval again.
        news = trio.Event() if draining.is_set() else draining
        while not news.is_set() and trouble == self._trouble_written:
            with trio.move_on_after(self._seconds_between_looks):
                await news.wait()
            trouble = _trouble_of(self._state())

    @property
    def _seconds_between_looks(self) -> float:
        return math.inf if self._time.is_event_driven else min(LOOK_FOR_NEWS, self._interval / 6)

    def _pause(self, *, after_fault: bool) -> float:
        if after_fault:
            return min(self._interval * RETRY_SHARE, LONGEST_RETRY)
        return self._time.poll_interval(self._interval)

    async def _try_to_beat(self, *, again: bool) -> bool:
        self._is_beating = True
        self.progress.ask()
        try:
            await self._beat_and_look()
        except ClientClosedError:
            raise  # No heartbeat can follow: it ends the scheduler, with one line.
        except MonqueConnectionError as error:
            self.progress.fail(error)
            logger.log(
                logging.DEBUG if again else logging.WARNING,
                "%s; retrying (no job is affected)",
                error,
            )
            return False
        finally:
            self._is_beating = False
        self.progress.answered()
        return True

    async def _beat_and_look(self) -> None:
        now = await self._context.refreshed(self._db_threads, Channel.CLAIMS)
        state = self._state()
        self._trouble_written = _trouble_of(state)
        entry = self._entry.renewed(state, now, draining=self._stop.draining.is_set())
        other = await self._db_threads.hand_over(
            partial(self._entry.beat, entry),
            # The caller was cancelled, so this instance may have left: the heartbeat must not leave an entry behind.
            orphan=lambda _: self.leave(),
            channel=Channel.CLAIMS,
        )
        if other is not None:
            # This instance was silent for too long. Claims and log lines name an instance by its id, so it drains.
            self._lost(other)
            return
        if self._minutes is not None:
            await self._minutes.write_what_is_over(now)
        if not self._time.is_event_driven:
            await self._remove_the_dead()

    def _lost(self, other: Instance) -> None:
        error = InstanceCollisionError(
            self._id, f"{other} took it, as this instance sent no heartbeat for too long; this instance drains"
        )
        logger.error("%s", error)
        # `end` then removes nothing: the entry of the other instance has another incarnation.
        self._is_ending = True
        self._stop.end_with(error)

    async def _remove_the_dead(self) -> None:
        """Remove entries that did not change for long, as observed by this process. Wall clocks are not compared."""
        jobs = self._context.jobs
        seen = await self._db_threads.call(
            partial(instances.read_all, jobs), channel=Channel.CLAIMS, abandon_on_cancel=True
        )
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
            # Unless its last heartbeat is another now: the instance has woken up.
            if await self._db_threads.call(remove, channel=Channel.CLAIMS, abandon_on_cancel=True):
                logger.info("removed the entry of %s, which is dead", dead.claim)


_NO_TROUBLE: Final = (0, 0)


def _trouble_of(state: InstanceState) -> tuple[int, int]:
    """How often a loop was blocked, and how many threads go on although their runs were cancelled."""
    return state.loop_blocked, len(state.overdue)
