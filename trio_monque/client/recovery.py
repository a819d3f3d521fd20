"""Rescue by hand: what a scheduler does by itself, as one call. Blocking."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Final

from ..checks import check_seconds
from ..clock import virtual_time
from ..events import Event
from ..jobs.job import Job
from ..observations import Observations, Sighting
from ..options_and_defaults import LEASE_IN_BEATS
from .client_context import ClientContext
from .operation import Operation
from .rescuer import Rescued, Rescuer, log_and_events_of, pending_again

MOST_AT_ONCE: Final = 100
SHORTEST_PAUSE: Final = 0.02


def recover_stale_jobs(context: ClientContext, older_than: float | None = None) -> Operation[int]:
    """Rescue the jobs of dead instances now; a scheduler does so by itself.

    The rules are the same: a claim is dead if it has not changed for three of its heartbeat intervals, which this call
    waits for (90 seconds with the default). It ends earlier if all claims that are left live.

    In virtual time the blocking call cannot wait: if it would have to, it raises MonqueError.

    Args:
        older_than: For claims of another library only: seconds since its claim after which a job may be rescued,
            instead of `lock_timeout`.

    Returns:
        How many jobs are pending again.

    Raises:
        InvalidOptionError: `older_than` is invalid.
        MonqueConnectionError: The database cannot be reached or used.
    """
    if older_than is not None:
        check_seconds("older_than", older_than, zero=True)
    return Recovery(context, older_than)


class Recovery(Operation[int]):
    """One call: it observes the claims that its first look showed, until they change or die.

    A step is a look at all claims, or the attempt to take away those that are dead. Their events are delivered at the
    end: one log line and one event count all of them.
    """

    def __init__(self, context: ClientContext, older_than: float | None) -> None:
        super().__init__()
        self._context = context
        self._rescuer = Rescuer(context)
        self._older_than = older_than
        self._observations: Observations[Job] = Observations()
        self._first: dict[Hashable, Hashable] = {}
        self._has_looked = False
        self._dead: Sequence[Sighting[Job]] = ()
        self._rescued: list[Rescued] = []

    def step(self) -> None:
        if self._dead:
            self._take(self._dead)
        else:
            self._look()
        self._dead = self._observations.due(_now(), MOST_AT_ONCE)
        if not self._dead and not self._observations:
            self.finish(len(pending_again(self._rescued)))
        # A holder that lives changes its claim within a beat or two: the next look is soon enough then.
        half_a_beat = self._observations.shortest_lease / LEASE_IN_BEATS / 2
        wait = min(self._observations.next_due - _now(), half_a_beat)
        self.pause = 0.0 if self._dead else max(wait, SHORTEST_PAUSE)

    def events(self) -> Sequence[Event]:
        return log_and_events_of(self._rescued)

    def _look(self) -> None:
        found = self._rescuer.look()
        answered, now = _now(), self._context.now()
        seen = [self._rescuer.sighting(job, now, self._older_than) for job in found]
        if not self._has_looked:
            # The caller asked for the claims that are old enough now, not for those that become so during the call.
            self._first = {one.key: one.mark for one in seen if one.protected_for <= 0}
        # `self` stands for "not in the first look": it equals no mark.
        same = [one for one in seen if self._first.get(one.key, self) == one.mark]
        self._observations.update(same, answered, at_start=not self._has_looked)
        self._has_looked = True

    def _take(self, dead: Sequence[Sighting[Job]]) -> None:
        batch = self._rescuer.batch([one.claim for one in dead])
        try:
            batch.run_with_retries()
        except BaseException:
            self.caused.may_be_due = True
            raise
        finally:
            # However it ends: what was rescued for certain is announced and counted.
            rescued = batch.collect()
            self.caused.jobs = pending_again(rescued)
            self._rescued += rescued
        self._observations.forget(dead)
        for one in dead:
            # Only once: if the server refuses to change a claim, it would be observed again, and the call never end.
            self._first.pop(one.key, None)


def _now() -> float:
    """Return the seconds of a clock that cannot be set: the run's virtual time, or this machine's monotonic clock."""
    virtual = virtual_time()
    return time.monotonic() if virtual is None else (virtual.now() - virtual.start).total_seconds()
