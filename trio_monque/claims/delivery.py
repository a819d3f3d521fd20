"""How claims reach the code that works on them: one by one to an `async for`, or each to a call of a handler.

The engine claims ahead: while the results of some documents are being written, it claims the next ones. So these
classes count by themselves how many documents are worked on. Claims above that number wait here, under their locks:

- `ClaimQueue` hands at most `concurrency` claims to the tasks that iterate over `open_claims`.
- `HandlerSlots` lets at most `concurrency` handlers of `run_claims` run.
"""

from __future__ import annotations

import heapq
from typing import Any

import trio

from .claim import Claim
from .claim_work import ClaimWork
from .settlement import UncountedReleaseError


class ClaimQueue:
    """Hands claims to the tasks that iterate over `open_claims`.

    The engine's task of each claim is inside `offer` until the work is over; the tasks of the user call `take`.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        # A heap by the order of the claims: trio starts the tasks that offer them in any order.
        self._offered: list[tuple[int, ClaimWork, Claim[Any]]] = []
        self._taken: dict[ClaimWork, None] = {}
        self._lot = trio.lowlevel.ParkingLot()
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many claims no task has taken yet. May be read in any thread."""
        return len(self._offered)

    async def offer(self, claim: Claim[Any], work: ClaimWork) -> None:
        """Offer the claim; return when the work under it is over, or raise the error of that work."""
        work.wait_to_begin()
        # A claim that was in flight when the end began may be granted after `close`.
        if self._is_closed:
            work.release_unless_entered()
        else:
            heapq.heappush(self._offered, (work.order, work, claim))
            self._lot.unpark()
        try:
            await work.wait_over()
        finally:
            if work in self._taken:
                # A place is free for the next claim.
                del self._taken[work]
                self._lot.unpark()
            else:
                # The run was cancelled before a task took the claim: its lock was lost, or the claims end. Without
                # this, `take` would hand the claim out, and its place would never be free again.
                work.end()

    async def take(self) -> tuple[Claim[Any], ClaimWork] | None:
        """Wait for the next claim that is still held, and for a free place; None after `close`.

        The caller starts the clock of `timeout` when the claim has reached its task. On asyncio that may be much later,
        when its loop was blocked.
        """
        await trio.lowlevel.checkpoint()
        while True:
            while self._offered and len(self._taken) < self._concurrency:
                _, work, claim = heapq.heappop(self._offered)
                # If the lock was lost while the claim waited here, `offer` has ended the work: drop the claim.
                if not work.is_over:
                    self._taken[work] = None
                    return claim, work
            if self._is_closed:
                return None
            await self._lot.park()

    def close(self) -> None:
        """Hand out no more claims, and release those that no task has taken."""
        self._is_closed = True
        offered, self._offered = self._offered, []
        for _, work, _ in offered:
            work.release_unless_entered()
        self._lot.unpark_all()

    def release_idle(self) -> None:
        """Release also the claims that a task has taken, but has not entered with `async with claim`."""
        for work in tuple(self._taken):
            work.release_unless_entered()


class HandlerSlots:
    """Limits the handlers of `run_claims` that run at once.

    A handler starts when another has ended. Until then its document waits here, under its lock. Waiting is rare: most
    results are written before the next claim is answered.
    """

    def __init__(self, concurrency: int) -> None:
        self._limiter = trio.CapacityLimiter(concurrency)

    @property
    def waiting(self) -> int:
        """How many claims wait for a slot. May be read in any thread."""
        return self._limiter.statistics().tasks_waiting

    async def enter(self, work: ClaimWork) -> None:
        """Wait for a free slot. The wait does not count against `timeout`.

        Raises:
            UncountedReleaseError: The claims began to end during the wait. No handler starts any more.
        """
        try:
            self._limiter.acquire_on_behalf_of_nowait(work)
        except trio.WouldBlock:
            work.wait_to_begin()
            await self._limiter.acquire_on_behalf_of(work)
            # The end may have begun during the wait, and no handler starts after that.
            if work.is_draining:
                self.leave(work)
                raise UncountedReleaseError from None
            work.begin()

    def leave(self, work: ClaimWork) -> None:
        """The handler has ended."""
        self._limiter.release_on_behalf_of(work)
