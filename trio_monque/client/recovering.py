"""Rescue by hand: what a scheduler does by itself, as one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final

import anyio

from .. import events
from ..call_context import async_calls
from ..checks import check_seconds
from ..clock import virtual_time
from ..errors import MonqueError
from ..jobs.job import Job
from ..observations import Observations, Sighting
from ..store.database_threads import DatabaseThreads
from .bus import Bus
from .context import ClientContext
from .enqueuing import IN_A_THREAD
from .rescued import Rescued, log_and_events_of, pending_again
from .rescuing import Rescuer, Taking
from .wake_board import Announcer

MOST_AT_ONCE: Final = 100
SHORTEST_PAUSE: Final = 0.02


class _ByHand:
    """What one call by hand has left to observe: the claims that its first look showed, until they change or die."""

    def __init__(self, rescuer: Rescuer, older_than: float | None, announcer: Announcer) -> None:
        if older_than is not None:
            check_seconds("older_than", older_than, zero=True)
        self._rescuer = rescuer
        self._older_than = older_than
        self._announcer = announcer
        self._observations: Observations[Job] = Observations()
        self._first: dict[Hashable, Hashable] = {}
        self._has_looked = False
        self.rescued: list[Rescued] = []

    def looked(self, found: Sequence[Job], now: datetime, answered: float) -> None:
        seen = [self._rescuer.sighting(job, now, self._older_than) for job in found]
        if not self._has_looked:
            # One that is too young now is none of those that were asked for.
            self._first = {one.key: one.mark for one in seen if one.protected_for <= 0}
        same = [one for one in seen if self._first.get(one.key, self) == one.mark]
        self._observations.update(same, answered, at_start=not self._has_looked)
        self._has_looked = True

    def dead(self, moment: float) -> Sequence[Sighting[Job]]:
        return self._observations.due(moment, MOST_AT_ONCE)

    @contextmanager
    def taking(self, dead: Sequence[Sighting[Job]]) -> Iterator[Taking]:
        """Around the attempt to take these away: however it ends, what is known of it is kept and announced."""
        taking = self._rescuer.taking([one.claim for one in dead])
        try:
            yield taking
        except BaseException:
            self._announcer.announce_unknown()
            raise
        finally:
            rescued = taking.collect()
            self._announcer.announce(pending_again(rescued))
            self.rescued += rescued
        self._observations.forget(dead)
        for one in dead:
            # Asked for once: what the server refuses would be observed anew, and this would not end.
            self._first.pop(one.key, None)

    def pause(self, moment: float) -> float | None:
        """Seconds until the next look; None where nothing is left. Who lives changes within a beat or two."""
        if not self._observations:
            return None
        half_a_beat = self._observations.shortest_lease / 6
        return max(min(self._observations.next_due - moment, half_a_beat), SHORTEST_PAUSE)


@async_calls(IN_A_THREAD)
class Recovering:
    """Rescue by hand, through the door, on any anyio backend. A base of Monque, which makes the attributes."""

    _context: ClientContext
    _door: DatabaseThreads
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
        rescuer = Rescuer(self._context)
        by_hand = _ByHand(rescuer, older_than, self._announcer)
        pause: float | None = 0.0
        try:
            while pause is not None:
                await anyio.sleep(pause)
                found, now = await self._door.call(lambda: (rescuer.look(), self._context.now()))
                by_hand.looked(found, now, anyio.current_time())
                while dead := by_hand.dead(anyio.current_time()):
                    with by_hand.taking(dead) as taking:
                        await self._door.call(taking.run_patiently)
                pause = by_hand.pause(anyio.current_time())
        except BaseException:
            # What was rescued before is told all the same.
            await self._bus.tell_all(log_and_events_of(by_hand.rescued), has_failed=True)
            raise
        await self._bus.tell_all(log_and_events_of(by_hand.rescued))
        return len(pending_again(by_hand.rescued))


class SyncRecovering:
    """The same, blocking."""

    def __init__(self, context: ClientContext, tell: Callable[[events.Event], None], announcer: Announcer) -> None:
        self._context = context
        self._tell = tell
        self._announcer = announcer

    def recover_stale_jobs(self, older_than: float | None = None) -> int:
        """See `Monque.recover_stale_jobs`. Where it would have to wait in virtual time, it raises MonqueError."""
        rescuer = Rescuer(self._context)
        by_hand = _ByHand(rescuer, older_than, self._announcer)
        pause: float | None = 0.0
        try:
            while pause is not None:
                if pause and virtual_time() is not None:
                    raise MonqueError("a thread cannot wait for virtual time to pass: await Monque.recover_stale_jobs")
                time.sleep(pause)
                found = rescuer.look()
                by_hand.looked(found, self._context.now(), time.monotonic())
                while dead := by_hand.dead(time.monotonic()):
                    with by_hand.taking(dead) as taking:
                        taking.run_patiently()
                pause = by_hand.pause(time.monotonic())
        finally:
            for event in log_and_events_of(by_hand.rescued):
                self._tell(event)
        return len(pending_again(by_hand.rescued))
