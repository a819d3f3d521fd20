"""Orphaned claims: those that this instance may hold in the database although no run belongs to them.

The answer to a claim was lost. The claim may have been applied, or may be applied later: a command can wait in a
socket, or in a server that elects. Its holder does not know it, and renews nothing. So after a lease a rescuer takes it
away, and counts that as the death of its holder. To prevent that, each such claim is released whenever it turns up, for
one lease. After that, a rescuer has done it.

The stamp of a claim tells it apart. What a resolved answer has shown to be held is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import trio

from ..errors import MonqueConnectionError
from ..log import logger_of
from ..loop_time import loop_time
from .heartbeat import LONGEST_RETRY, RETRY_SHARE
from .pauses import Pauses
from .progress import Progress
from .runner import Runner
from .source import OrphanSource

logger = logger_of("engine")

StampT = TypeVar("StampT", bound=Hashable)
HeldT = TypeVar("HeldT")


@dataclass(frozen=True, slots=True)
class _Orphans(Generic[HeldT]):
    """All claims with one stamp are released, except for those that are known to be held; until that moment."""

    until: float
    held: Sequence[HeldT]


class OrphanedClaims(Generic[StampT, HeldT]):
    """Which claims a source has to release, by their stamps.

    Args:
        release: Releases the claims with that stamp, except for these; returns how many there were. Blocking.
    """

    def __init__(self, release: Callable[[StampT, Sequence[HeldT]], int]) -> None:
        self._release = release
        self._claims: dict[StampT, _Orphans[HeldT]] = {}

    def __bool__(self) -> bool:
        return bool(self._claims)

    def add(self, stamp: StampT, held: Sequence[HeldT], until: float) -> None:
        """Of the claims with that stamp only these are held. `until` is on trio's clock."""
        self._claims[stamp] = _Orphans(until, held)

    def release(self, moment: float) -> int:
        """Releases what has been applied since; how many claims. In a thread; two such calls may overlap.

        `moment` is the time on trio's clock. A stamp whose release fails comes last in the next call: it must not stand
        in the way of the others.
        """
        released = 0
        for stamp, orphans in list(self._claims.items()):
            try:
                released += self._release(stamp, orphans.held)
            except MonqueConnectionError:
                if self._claims.pop(stamp, None) is not None:
                    self._claims[stamp] = orphans
                raise
            if moment > orphans.until:
                self._claims.pop(stamp, None)
        return released


class OrphanReleaser:
    """The loop that has the source release them, once per heartbeat. It stands beside the heartbeat: no renewal waits
    for it.

    A release that fails is tried again soon: a lease has three heartbeats only, and what a rescuer takes first counts
    as the death of its holder.

    Args:
        interval: Seconds, of the heartbeat.
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
                await self._pauses.after_fault(min(self._interval * RETRY_SHARE, LONGEST_RETRY))
            self._runner.changed()

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
            if not self._source.is_transient(error):
                raise
            if self.progress.fail(error):
                logger.warning("could not release orphaned claims: %s; retrying until that succeeds", error)
            return False
        self.progress.go_on()  # It may have had nothing to ask for.
        return True
