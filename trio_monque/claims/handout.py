"""Claims given out one by one, to whoever asks for the next."""

from __future__ import annotations

import heapq
from typing import Any

import trio

from .claim import Claim


class Handout:
    """Between the engine, whose run waits until the work on its claim is over, and the loop that takes claims."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        # In the order in which they were claimed: the tasks that offer them start in any.
        self._offered: list[tuple[int, Claim[Any]]] = []
        self._taken: dict[Claim[Any], None] = {}
        self._lot = trio.lowlevel.ParkingLot()
        self._is_closed = False

    async def offer(self, claim: Claim[Any]) -> None:
        """What the engine runs: returns when the work is over, and raises what that raised."""
        claim.wait_to_begin()
        if self._is_closed:
            claim.give_back()
        else:
            heapq.heappush(self._offered, (claim.place, claim))
            self._lot.unpark()
        try:
            await claim.wait_worked_on()
        finally:
            if claim in self._taken:
                del self._taken[claim]
                self._lot.unpark()

    async def take(self) -> Claim[Any] | None:
        """The next one that is still held, when fewer than `concurrency` are out; None when there will be no other."""
        await trio.lowlevel.checkpoint()
        while True:
            while self._offered and len(self._taken) < self._concurrency:
                _, claim = heapq.heappop(self._offered)
                if not claim.has_ended:
                    self._taken[claim] = None
                    claim.begin()
                    return claim
            if self._is_closed:
                return None
            await self._lot.park()

    def close(self) -> None:
        """No more are taken: those that nobody took are given back."""
        self._is_closed = True
        offered, self._offered = self._offered, []
        for _, claim in offered:
            claim.give_back()
        self._lot.unpark_all()

    def give_back_idle(self) -> None:
        """Those that were taken, and that nobody works on, are given back, too."""
        for claim in tuple(self._taken):
            claim.give_back()
