"""How long the engine waits after a fault of the database before it tries again: each loop, and the start."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from ..autojump import real_timeout
from ..errors import MonqueConnectionError, is_outage
from ..log import logger_of
from ..safe_text import text_of
from .progress import OUTAGE_IS_OVER_AFTER

logger = logger_of("engine")

FIRST_RETRY: Final = 0.1
LONGEST_RETRY: Final = 2.0
"""Seconds between two attempts: doubled from the first to the longest."""

REAL_TIME_BUDGET: Final = 5.0
"""Seconds of real time, in one outage, for which virtual time stands still."""


class Pauses:
    """Pauses are real, and hold virtual time: an outage of a third of a second must not burn a virtual hour.

    But not for ever: where a source goes on failing, time must pass, or no lease would end, and no bound
    of the engine's end would come.
    """

    def __init__(self) -> None:
        self._real_time_left = REAL_TIME_BUDGET
        self._last_fault = time.monotonic()

    async def after_fault(self, seconds: float) -> None:
        with self.timeout_after_fault(seconds):
            await trio.Event().wait()

    @contextmanager
    def timeout_after_fault(self, seconds: float) -> Iterator[None]:
        """Ends its body after so long."""
        now = time.monotonic()
        if now - self._last_fault > OUTAGE_IS_OVER_AFTER:
            self._real_time_left = REAL_TIME_BUDGET
        self._last_fault = now
        self._real_time_left -= seconds
        with real_timeout(seconds) if self._real_time_left > 0 else trio.move_on_after(seconds):
            yield


async def start_within(seconds: float, get_ready: Callable[[], Awaitable[None]]) -> None:
    """Calls `get_ready` until it succeeds, and at least once.

    An attempt that is under way when the time is over may end: it takes as long as its commands may.

    Raises:
        MonqueConnectionError: The time was over, and this is how the last attempt failed; or the database can never be
            used so (`permanent`), which is raised at once. So is every other error.
    """
    until = trio.current_time() + seconds
    pauses, delay = Pauses(), FIRST_RETRY
    has_warned = False
    while True:
        try:
            return await get_ready()
        except Exception as error:
            if not is_outage(error):
                raise
            left = until - trio.current_time()
            if left <= 0:
                if not seconds:
                    raise
                problem = f"could not start within start_timeout={seconds:g} s: {str(error) or text_of(error)}"
                raise MonqueConnectionError(problem, transient=getattr(error, "transient", True)) from error
            if not has_warned:
                has_warned = True
                logger.warning("could not start yet: %s; retrying for %.1f s", text_of(error), left)
        await pauses.after_fault(min(delay, left))
        delay = min(2 * delay, LONGEST_RETRY)
