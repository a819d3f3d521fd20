"""Gives back what was disowned: beside the heartbeat, which waits for none of it."""

from __future__ import annotations

from typing import Any, NoReturn

import trio

from ..log import logger_of
from .heartbeat import LONGEST_RETRY, RETRY_SHARE
from .pauses import Pauses
from .progress import Progress
from .runner import Runner
from .source import OrphanSource

logger = logger_of("engine")


class Errands:
    """The loop that does the source's errands, at the pace of the heartbeat.

    What fails is tried again soon: a lease has three beats only, and what is given back later counts as a death.

    Args:
        interval: Seconds, of the heartbeat.
        rests: It waits for nothing while there are none.
    """

    def __init__(
        self, source: OrphanSource, runner: Runner[Any, Any], pauses: Pauses, interval: float, *, rests: bool
    ) -> None:
        self.progress = Progress("errand runner")
        self._source = source
        self._runner = runner
        self._pauses = pauses
        self._interval = interval
        self._rests = rests

    async def run(self) -> NoReturn:
        while True:
            if self._rests and not self._source.has_orphaned_claims():
                self.progress.wait_for_others()
                await self._runner.wait_changed()
                continue
            self.progress.plan(trio.current_time() + self._interval)
            await trio.sleep(self._interval)
            while not await self._do():
                await self._pauses.after_fault(min(self._interval * RETRY_SHARE, LONGEST_RETRY))
            self._runner.changed()

    async def do_last(self) -> None:
        """What is to be given back at every beat is given back once more, as there is no next one."""
        if self._source.has_orphaned_claims():
            await self._do()

    async def _do(self) -> bool:
        """Whether that was answered."""
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
