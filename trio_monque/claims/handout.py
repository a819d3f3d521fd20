"""Claims given out one by one, to whoever asks for the next."""

from __future__ import annotations

import math
from typing import Any

import trio

from .claim import Claim


class Handout:
    """Between the engine, whose run waits until the work on its claim is over, and the loop that takes claims."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Claim[Any]](math.inf)
        # Of those whose work is not over: whether somebody has taken it.
        self._is_taken: dict[Claim[Any], bool] = {}
        self._is_closed = False

    async def offer(self, claim: Claim[Any]) -> None:
        """What the engine runs: returns when the work is over, and raises what that raised."""
        self._is_taken[claim] = False
        claim.wait_to_begin()
        try:
            if self._is_closed:
                claim.give_back()
            else:
                self._send.send_nowait(claim)
            await claim.wait_worked_on()
        finally:
            del self._is_taken[claim]

    async def take(self) -> Claim[Any] | None:
        """The next one that is still held; None when there will be no other."""
        async for claim in self._receive:
            if claim in self._is_taken:
                self._is_taken[claim] = True
                claim.begin()
                return claim
        return None

    def close(self) -> None:
        """No more are taken: those that nobody took are given back."""
        self._is_closed = True
        self._send.close()
        self._give_back(taken=False)

    def give_back_idle(self) -> None:
        """Those that were taken, and that nobody works on, are given back, too."""
        self._give_back(taken=True)

    def _give_back(self, *, taken: bool) -> None:
        for claim, is_taken in tuple(self._is_taken.items()):
            if is_taken is taken:
                claim.give_back()
