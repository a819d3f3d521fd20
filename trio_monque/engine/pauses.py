"""How long a loop waits after a fault of the source before it tries again."""

from __future__ import annotations

from typing import Final

import trio

from ..clock import real_pause
from .guard import Stop

PATIENCE_WHILE_LEAVING: Final = 5.0
"""Seconds of faults, in real time, that virtual time waits for while an engine ends."""


class Pauses:
    """Pauses are real, and hold virtual time: an outage of a third of a second must not burn a virtual hour.

    But not for ever: where an engine is to end and the source goes on failing, time must pass, or the
    bounds of the end would never come.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._patience = PATIENCE_WHILE_LEAVING

    async def after_fault(self, seconds: float) -> None:
        if self._patience <= 0:
            await trio.sleep(seconds)
            return
        if self._stop.draining.is_set():
            self._patience -= seconds
        await real_pause(seconds)
