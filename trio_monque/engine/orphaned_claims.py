"""Orphaned claims: those that the database may record for this instance although no run here belongs to them.

The race: the answer to a claim is lost. The server may have applied the claim, or may apply it later: a command can
wait in a socket, or in a server that elects. This instance does not know the claim, and does not renew it. After one
lease a rescuer would take it away, and would count that as the death of its holder.

So for one lease this instance releases such claims again and again, whenever the server has applied one. After that
lease a rescuer has taken them. The claims of one command have the same *stamp*. The source may have found some of
them by another command: these are *confirmed*, have runs, and are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import trio

from ..error_types import MonqueConnectionError
from ..log import logger_of
from ..loop_time import loop_time
from .pauses import Pauses
from .progress import Progress
from .runner import Runner
from .source import OrphanSource

logger = logger_of("engine")

StampT = TypeVar("StampT", bound=Hashable)
HeldT = TypeVar("HeldT")


@dataclass(frozen=True, slots=True)
class _Orphans(Generic[HeldT]):
    """Until that moment, all claims with one stamp are released, except the confirmed ones."""

    until: float
    confirmed: Sequence[HeldT]


class OrphanedClaims(Generic[StampT, HeldT]):
    """Which claims a source has to release, by their stamps.

    Args:
        release: Releases the claims with that stamp, except the confirmed ones; returns how many. Blocking.
    """

    def __init__(self, release: Callable[[StampT, Sequence[HeldT]], int]) -> None:
        self._release = release
        # The thread of the run adds. Database threads take out what is over: one, or two that overlap.
        self._claims: dict[StampT, _Orphans[HeldT]] = {}

    def __bool__(self) -> bool:
        return bool(self._claims)

    def add(self, stamp: StampT, confirmed: Sequence[HeldT], until: float) -> None:
        """Of the claims with that stamp only the confirmed ones have runs. `until` is on trio's clock."""
        self._claims[stamp] = _Orphans(until, confirmed)

    def release(self, moment: float) -> int:
        """Releases the claims that the server has applied since; returns how many. Blocking; two calls may overlap.

        `moment` is the time on trio's clock, before the call.
        """
        released = 0
        for stamp, orphans in list(self._claims.items()):
            try:
                released += self._release(stamp, orphans.confirmed)
            except MonqueConnectionError:
                # Moved behind the others: without this, one stamp whose release always fails would stand before all of
                # them. Only if it is still there: a call that overlaps may have removed it.
                # A stamp is added once, so this is what stood there.
                if self._claims.pop(stamp, None) is not None:
                    self._claims[stamp] = orphans
                raise
            # Only after a release that was sent after the lease: before, the server could still apply the claim.
            if moment > orphans.until:
                self._claims.pop(stamp, None)
        return released


class OrphanReleaser:
    """The loop that makes the source release them, once per heartbeat. A loop of its own, so that no renewal waits for
    it.

    Args:
        interval: Seconds from one heartbeat to the next.
    """

    def __init__(self, source: OrphanSource, runner: Runner[Any, Any], pauses: Pauses, interval: float) -> None:
        self.progress = Progress("orphan releaser")
        self._source = source
        self._runner = runner
        self._pauses = pauses
        self._interval = interval
        self._time = loop_time()

    async def run(self) -> NoReturn:
        while True:
            if self._time.is_event_driven and not self._source.has_orphaned_claims():
                self.progress.wait_for_others()
                await self._runner.wait_changed()
                continue
            self.progress.plan(trio.current_time() + self._interval)
            await trio.sleep(self._interval)
            while not await self._do():
                await self._pauses.after_failed_beat(self._interval)
            self._runner.changed()  # A task may wait until the engine is idle: without orphaned claims, too.

    async def do_last(self) -> None:
        """The last attempt, when the engine ends: no further heartbeat will come."""
        if self._source.has_orphaned_claims():
            await self._do()

    async def _do(self) -> bool:
        """Whether the source answered."""
        self.progress.ask()
        try:
            await self._source.release_orphaned_claims()
        except Exception as error:
            if not self._pauses.is_transient(error):
                raise
            if self.progress.fail(error):
                logger.warning("could not release orphaned claims: %s; retrying until it succeeds", error)
            return False
        self.progress.go_on()  # Not `answered`: the source may have had nothing to ask its database.
        return True
