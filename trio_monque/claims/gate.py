"""How many work at once: also those whose results are being written, although the next are claimed meanwhile."""

from __future__ import annotations

from typing import Any

import trio

from .claim import Claim
from .settlement import GivenBackError


class Gate:
    """A handler begins when another has ended, and not before: its document waits here, under its lock.

    Mostly nobody waits: what is being written is answered while the next claim is on its way.

    Attributes:
        draining: Set by whoever makes the engine: nothing new begins once it is set.
    """

    draining: trio.Event

    def __init__(self, concurrency: int) -> None:
        self._limiter = trio.CapacityLimiter(concurrency)

    async def enter(self, claim: Claim[Any]) -> None:
        """Returns when there is room; what it waits for takes none of the work's time.

        Raises:
            GivenBackError: The end was asked for meanwhile, and nothing new begins.
        """
        try:
            self._limiter.acquire_on_behalf_of_nowait(claim)
        except trio.WouldBlock:
            claim.wait_to_begin()
            await self._limiter.acquire_on_behalf_of(claim)
            if self.draining.is_set():
                self.leave(claim)
                raise GivenBackError from None
            claim.begin()

    def leave(self, claim: Claim[Any]) -> None:
        """It has ended."""
        self._limiter.release_on_behalf_of(claim)
