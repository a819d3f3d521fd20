"""When to look next: when the next item is due, as far as anybody knows, and when the next poll is."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import Final, NoReturn

import trio

from .demand import HEAD_START, Due, KnownItem
from .observer import LoopObserver
from .pauses import Pauses
from .progress import Progress
from .source import DueSource
from .wake import WakeSignal

# After a failed question: a server that elects returns within seconds.
RETRY: Final = 1.0

# A question costs as much as a poll. Where polls are closer than this, not each of them is followed by one.
SECONDS_BETWEEN_QUESTIONS: Final = 5.0

NEVER: Final = Due(math.inf)


class Waker:
    """Wakes the claimer when something is due, and not before.

    It knows the earliest moment of all that was announced since it asked the source, and what the
    source answered. That is asked once after each moment that has come, and after each poll: whatever
    else changes in this run is announced (`expect`). What others change is found by polls.

    Where one item alone is due at that moment and is known, it is claimed by itself, without a look. What else has
    come to be due meanwhile is in the answer to the question that follows, and is looked for.

    Attributes:
        hears_others: What others change is announced at once, too: then polls are for safety, or not needed at all.
        never_polls: The engine waits for announcements alone: in virtual time.

    Args:
        poll_interval: Seconds from one poll to the next; infinity for none. Jobs of open transactions
            are polled for all the same, every `transaction_interval`, until these have ended. So is what could
            not be taken.
    """

    def __init__(
        self,
        source: DueSource,
        observer: LoopObserver,
        wake: WakeSignal,
        pauses: Pauses,
        *,
        poll_interval: float,
        transaction_interval: float,
    ) -> None:
        self._source = source
        self._observer = observer
        self._pauses = pauses
        self._wake = wake
        self._poll_interval = poll_interval
        self._transaction_interval = transaction_interval
        self.hears_others = self.never_polls = math.isinf(poll_interval)
        self._open: list[Callable[[], bool]] = []
        self._next = NEVER
        self._tried: KnownItem | None = None
        self._poll_at = math.inf
        self._is_known = False
        self._asked_at = -math.inf
        self._asked_for: Set[str] = frozenset()
        self._groups: Set[str] = frozenset()
        self._changed = trio.Event()
        self._looked = trio.Event()
        self.progress = Progress("waker")

    def look(self) -> None:
        """Something may be due now, and later, too: a look and a question must find out."""
        self._ask_after_claim()
        self._changed.set()
        self._wake.set()

    def poll_every(self, seconds: float, *, hears_others: bool = False) -> None:
        """From now on, and first of all now."""
        self.hears_others = hears_others
        self._poll_interval = seconds
        self._poll_at = math.inf
        self.look()

    def expect(self, moment: float, item: KnownItem | None = None) -> None:
        """Something is due then, on trio's clock: this one, where only one is."""
        if moment <= trio.current_time():
            if item is None:
                self._wake.set()
            else:
                self._wake.set_item(item)
        else:
            self._plan(Due(moment, item))

    def _plan(self, due: Due) -> None:
        if due.moment < self._next.moment:
            self._next = due
            self._changed.set()
        elif due.moment == self._next.moment and due.item != self._next.item:
            self._next = Due(due.moment)  # Two of them are worth a look.

    def look_while(self, is_open: Callable[[], bool]) -> None:
        """Something may appear without an announcement for as long as `is_open`, and right after."""
        self._open.append(is_open)
        self._changed.set()

    def look_again(self) -> None:
        """Something was seen and could not be taken: soon, also where polls are rare; not where there are none."""
        if not self.never_polls:
            self.expect(trio.current_time() + self._transaction_interval)

    def looked(self, groups: Set[str]) -> None:
        """The claimer has found what is due now, and these groups have room for what is due later.

        Nothing is asked for the others: when one of them has room again, there is a look, too.
        """
        if not groups <= self._asked_for:
            self._is_known = False
            self._changed.set()
        self._groups = frozenset(groups)
        self._looked.set()

    def took(self) -> None:
        """The claimer has asked for the one item that was announced, and not looked for others.

        The question is for the groups that had room at the last look, all of them: where one that is full now has room
        again, a look is not needed.
        """
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
            wake_at = min(self._wake_for_next_at, self._poll_at)
            self.progress.plan(wake_at)
            with trio.move_on_at(wake_at):
                await self._changed.wait()
            self.progress.go_on()
            self._wake_for_what_has_come(trio.current_time())

    @property
    def _wake_for_next_at(self) -> float:
        is_ahead = self._next.item is not None and not self.never_polls
        return self._next.moment - HEAD_START if is_ahead else self._next.moment

    def _wake_for_what_has_come(self, now: float) -> None:
        is_due, is_poll, item = now >= self._wake_for_next_at, now >= self._poll_at, self._next.item
        if is_due and item is not None and not is_poll:
            # The poll stays where it is: a claim of one item does not look for others.
            self._tried, self._next = item, NEVER
            self._ask_after_claim()
            self._wake.set_item(item)
        elif is_due or (is_poll and self._is_worth_asking(now)):
            self._poll_at, self._next = math.inf, NEVER
            # One that has just ended was open when the look before this one was made.
            self._open = [is_open for is_open in self._open if is_open()]
            self.look()
        elif is_poll:
            self._poll_at = math.inf
            self._wake.set()

    def _ask_after_claim(self) -> None:
        self._is_known = False
        if self._looked.is_set():
            self._looked = trio.Event()

    def _is_worth_asking(self, now: float) -> bool:
        return bool(self._open) or now >= self._asked_at + SECONDS_BETWEEN_QUESTIONS

    async def _ask(self) -> None:
        # Before the question: what is announced while it is under way may or may not be in the answer.
        self._is_known = True
        self._asked_at = trio.current_time()
        self._asked_for = self._groups
        self.progress.ask()
        try:
            due = await self._source.next_due(self._groups) if self._groups else None
        except Exception as error:
            if not self._source.is_transient(error):
                raise
            if self.progress.fail(error):
                self._observer.claiming_failed(error)
            self._is_known = False
            self._changed = trio.Event()
            with self._pauses.timeout_after_fault(RETRY):
                await self._changed.wait()
            return
        if self._groups:
            self.progress.answered()
        else:
            self.progress.go_on()
        if due is None:
            return
        if due.moment <= trio.current_time() or due.item == self._tried:
            due = Due(due.moment)  # A claim of it was in vain, or it has come to wait, perhaps with others.
        self._plan(due)
