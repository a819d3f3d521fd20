"""How long the engine waits after a fault of the database before it tries again: each loop, and the start."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from ..error_types import MonqueConnectionError, is_outage
from ..log import logger_of
from ..real_time import real_timeout
from ..safe_text import text_of
from .progress import OUTAGE_IS_OVER_AFTER

logger = logger_of("engine")

FIRST_RETRY: Final = 0.1
LONGEST_RETRY: Final = 2.0
"""Seconds between two attempts at a claim, a settlement or a start: doubled from the first to the longest. Long enough
not to hammer a server that elects, short enough to be in time for its return. Not measured."""

RETRY_SHARE: Final = 1 / 10
LONGEST_BEAT_RETRY: Final = 1.0
"""What is done once per heartbeat is tried again after this share of the interval, and after at most this many seconds:
a lease has only three intervals."""

REAL_TIME_BUDGET: Final = 5.0
"""Seconds of real time in one outage for which pauses freeze virtual time."""


class Pauses:
    """The pauses of all loops of one engine. They take real time, and freeze virtual time (see `loop_time`) meanwhile.

    Without the hold, an outage of a third of a second would burn hours of virtual time. But the hold has a limit: if a
    source goes on failing, virtual time must pass, or no lease and no deadline of the shutdown would ever come.

    Attributes:
        is_transient: After which faults the loops pause and try again; see `Sources.is_transient`.
    """

    def __init__(self, is_transient: Callable[[Exception], bool] = is_outage) -> None:
        self.is_transient = is_transient
        self._real_time_left = REAL_TIME_BUDGET
        self._last_fault = time.monotonic()

    async def after_fault(self, seconds: float) -> None:
        with self.timeout_after_fault(seconds):
            await trio.Event().wait()

    async def after_failed_beat(self, interval: float) -> None:
        """The pause of a loop that works once per heartbeat `interval`."""
        await self.after_fault(min(interval * RETRY_SHARE, LONGEST_BEAT_RETRY))

    @contextmanager
    def timeout_after_fault(self, seconds: float) -> Iterator[None]:
        """Cancels its body when the pause is over; the body may leave earlier."""
        now = time.monotonic()
        if now - self._last_fault > OUTAGE_IS_OVER_AFTER:
            self._real_time_left = REAL_TIME_BUDGET
        self._last_fault = now
        # One budget for all loops, and the whole pause also if it is left early: a bound, no account.
        self._real_time_left -= seconds
        with real_timeout(seconds) if self._real_time_left > 0 else trio.move_on_after(seconds):
            yield


async def start_within(seconds: float, get_ready: Callable[[], Awaitable[object]]) -> None:
    """Calls `get_ready` until it succeeds, and at least once.

    An attempt that is under way when the time is over is not cancelled: it takes as long as its commands may.

    Raises:
        MonqueConnectionError: The time is over, and the last attempt failed in this way. `get_ready`'s other errors are
            raised at once, also a `permanent` MonqueConnectionError: it would fail in every attempt.
    """
    until = trio.current_time() + seconds
    pauses, delay = Pauses(), FIRST_RETRY
    has_warned = False
    while True:
        try:
            await get_ready()
            return
        except Exception as error:
            if not is_outage(error):
                raise
            left = until - trio.current_time()
            if left <= 0:
                if not seconds:
                    raise  # No time was given to wait, so the error itself says the most.
                problem = f"could not start within start_timeout={seconds:g} s: {str(error) or text_of(error)}"
                raise MonqueConnectionError(problem, transient=getattr(error, "transient", True)) from error
            if not has_warned:
                has_warned = True
                logger.warning("could not start: %s; retrying for another %.1f s", text_of(error), left)
        await pauses.after_fault(min(delay, left))
        delay = min(2 * delay, LONGEST_RETRY)
