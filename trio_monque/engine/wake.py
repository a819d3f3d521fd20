"""The wake signal: "there may be work". Coalescing, and re-armed before the look."""

from __future__ import annotations

import trio


class WakeSignal:
    """Level-triggered: set any number of times before it is waited for, it wakes once."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout: float) -> None:
        """Returns when set, or after `timeout` seconds; re-armed then.

        Before the caller looks, that is: a wake that arrives during the look must survive it.
        """
        with trio.move_on_after(timeout):
            await self._event.wait()
        self._event = trio.Event()
