"""The start waits for a database that does not answer yet: an election, a deploy that starts both, a full disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from ..errors import MonqueConnectionError, is_outage
from ..log import logger_of
from ..safe_text import text_of
from .pauses import Pauses

logger = logger_of("engine")

FIRST_RETRY: Final = 0.1
LONGEST_RETRY: Final = 2.0
"""Seconds between two tries: doubled from the first to the longest."""


async def start_within(seconds: float, get_ready: Callable[[], Awaitable[None]]) -> None:
    """Calls `get_ready` until it succeeds, and at least once.

    A try that is under way when the time is over may end: it takes as long as its commands may.

    Raises:
        MonqueConnectionError: The time was over, and this is how the last try failed; or the database can never be
            used so (`permanent`), which is raised at once. So is every other error.
    """
    until = trio.current_time() + seconds
    pauses, delay = Pauses(), FIRST_RETRY
    is_told = False
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
            if not is_told:
                is_told = True
                logger.warning("could not start yet: %s; retrying for %.1f s", text_of(error), left)
        await pauses.after_fault(min(delay, left))
        delay = min(2 * delay, LONGEST_RETRY)
