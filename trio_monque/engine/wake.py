"""The wake signal: "there may be work". Coalescing, and re-armed before the look."""

from __future__ import annotations

import trio


class WakeSignal:
    """Level-triggered: set any number of times before it is waited for, it wakes once."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Returns when set; re-armed then.

        Before the caller looks, that is: a wake that arrives during the look must survive it.
        """
        await self._event.wait()
        self._event = trio.Event()
