"""When to look next: when the next item is due, as far as anybody knows, and when the next poll is."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import Any, Final, NoReturn

import trio

from . import notices
from .pauses import Pauses
from .progress import Progress
from .source import Source, Tip
from .wake import WakeSignal

# After a failed question: a server that elects returns within seconds.
RETRY: Final = 1.0

# A question costs as much as a poll. Where polls are closer than this, not each of them is followed by one.
SECONDS_BETWEEN_QUESTIONS: Final = 5.0


class Waker:
    """Wakes the claimer when something is due, and not before.

    It knows the earliest moment of all that it was told of since it asked the source, and what the
    source answered. That is asked once after each moment that has come, and after each poll: whatever
    else changes in this run is told (`expect`). What others change is found by polls.

    Attributes:
        is_told: What others change is told, too, at once: then polls are for safety, or there is no need for any.
        rests: Nothing is done only because time has passed: in virtual time.

    Args:
        poll_interval: Seconds from one poll to the next; infinity for none. Jobs of open transactions
            are polled for all the same, every `transaction_interval`, until these have ended. So is what could
            not be taken.
    """

    def __init__(
        self,
        source: Source[Any, Any],
        wake: WakeSignal,
        pauses: Pauses,
        *,
        poll_interval: float,
        transaction_interval: float,
    ) -> None:
        self._source = source
        self._pauses = pauses
        self._wake = wake
        self._poll_interval = poll_interval
        self._transaction_interval = transaction_interval
        self.is_told = self.rests = math.isinf(poll_interval)
        self._open: list[Callable[[], bool]] = []
        self._next = math.inf
        self._poll_at = math.inf
        self._is_known = False
        self._asked_at = -math.inf
        self._asked_for: Set[str] = frozenset()
        self._lanes: Set[str] = frozenset()
        self._changed = trio.Event()
        self._looked = trio.Event()
        self.progress = Progress("waker")

    def look(self) -> None:
        """Something may be due now, and later, too: nobody knows."""
        self._is_known = False
        if self._looked.is_set():
            self._looked = trio.Event()
        self._changed.set()
        self._wake.set()

    def poll_every(self, seconds: float, *, is_told: bool = False) -> None:
        """From now on, and first of all now."""
        self.is_told = is_told
        self._poll_interval = seconds
        self._poll_at = math.inf
        self.look()

    def expect(self, moment: float, tip: Tip | None = None) -> None:
        """Something is due then, on trio's clock: this one, where only one is."""
        if moment <= trio.current_time():
            if tip is None:
                self._wake.set()
            else:
                self._wake.tip(tip)
        elif moment < self._next:
            self._next = moment
            self._changed.set()

    def look_while(self, is_open: Callable[[], bool]) -> None:
        """Something may appear untold for as long as `is_open`, and right after."""
        self._open.append(is_open)
        self._changed.set()

    def look_again(self) -> None:
        """Something was seen and could not be taken: soon, also where polls are rare; but not where all rests."""
        if not self.rests:
            self.expect(trio.current_time() + self._transaction_interval)

    def looked(self, lanes: Set[str]) -> None:
        """The claimer has found what is due now, and these lanes have room for what is due later.

        Nothing is asked for the others: when one of them has room again, there is a look, too.
        """
        if not lanes <= self._asked_for:
            self._is_known = False
            self._changed.set()
        self._lanes = frozenset(lanes)
        self._looked.set()

    async def run(self) -> NoReturn:
        while True:
            if not self._is_known:
                if not self._looked.is_set():
                    self.progress.wait_for_others()
                await self._looked.wait()
                await self._ask()
                continue
            self._changed = trio.Event()
            interval = self._transaction_interval if self._open else self._poll_interval
            self._poll_at = min(self._poll_at, trio.current_time() + interval)
            self.progress.plan(min(self._next, self._poll_at))
            with trio.move_on_at(min(self._next, self._poll_at)):
                await self._changed.wait()
            self.progress.go_on()
            now = trio.current_time()
            if now >= self._next or (now >= self._poll_at and self._is_worth_asking(now)):
                self._poll_at = self._next = math.inf
                # One that has just ended was open when the look before this one was made.
                self._open = [is_open for is_open in self._open if is_open()]
                self.look()
            elif now >= self._poll_at:
                self._poll_at = math.inf
                self._wake.set()

    def _is_worth_asking(self, now: float) -> bool:
        return bool(self._open) or now >= self._asked_at + SECONDS_BETWEEN_QUESTIONS

    async def _ask(self) -> None:
        # Before the question: what is told while it is under way may or may not be in the answer.
        self._is_known = True
        self._asked_at = trio.current_time()
        self._asked_for = self._lanes
        self.progress.ask()
        try:
            due = await self._source.next_due(self._lanes) if self._lanes else None
        except Exception as error:
            if not self._source.is_transient(error):
                raise
            self.progress.fail(error)
            self._source.tell(notices.ClaimFailed(error))
            self._is_known = False
            self._changed = trio.Event()
            with self._pauses.timeout_after_fault(RETRY):
                await self._changed.wait()
            return
        if self._lanes:
            self.progress.answered()
        else:
            self.progress.go_on()
        if due is not None:
            self._next = min(self._next, due)
