"""How long a loop waits after a fault of the source before it tries again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from ..hold import real_timeout
from .progress import OUTAGE_IS_OVER_AFTER

PATIENCE: Final = 5.0
"""Seconds of one outage, in real time, that virtual time stands still for."""


class Pauses:
    """Pauses are real, and hold virtual time: an outage of a third of a second must not burn a virtual hour.

    But not for ever: where a source goes on failing, time must pass, or no lease would end, and no bound
    of the engine's end would come.
    """

    def __init__(self) -> None:
        self._patience = PATIENCE
        self._last_fault = time.monotonic()

    async def after_fault(self, seconds: float) -> None:
        with self.timeout_after_fault(seconds):
            await trio.Event().wait()

    @contextmanager
    def timeout_after_fault(self, seconds: float) -> Iterator[None]:
        """Ends its body after so long."""
        now = time.monotonic()
        if now - self._last_fault > OUTAGE_IS_OVER_AFTER:
            self._patience = PATIENCE
        self._last_fault = now
        self._patience -= seconds
        with real_timeout(seconds) if self._patience > 0 else trio.move_on_after(seconds):
            yield
