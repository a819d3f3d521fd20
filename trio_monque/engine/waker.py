"""When to claim next: when something is announced, when the next item is due, and when the next poll is.

Two classes: `WakeSignal` is what the claimer waits for, and `Waker` is the loop that sets it on time. Other parts of
the engine set the signal too: the runner when a slot is free, and the engine at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import trio

from .demand import HEAD_START, Due, KnownItem
from .observer import LoopObserver
from .pauses import Pauses
from .progress import Progress
from .source import DueSource

# Seconds after a failed question: a server that elects returns within seconds.
RETRY: Final = 1.0

# A question ("what is due next?") costs as much as a poll. If polls are closer than this, not each has a question.
SECONDS_BETWEEN_QUESTIONS: Final = 5.0

NOTHING_DUE: Final = Due(math.inf)


@dataclass(frozen=True, slots=True)
class Wake:
    """Why the claimer was woken. Without any of these it goes on with what it had begun.

    Attributes:
        look: Something may be due; a look must find out what.
        item: This item is due, and no other if `look` is false.
        room: A slot is free again.
    """

    look: bool = False
    item: KnownItem | None = None
    room: bool = False


LOOK: Final = Wake(look=True)
ROOM: Final = Wake(room=True)
GO_ON: Final = Wake()


class WakeSignal:
    """Coalescing signal: any number of `set` calls before a wait wake one waiter once."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._wake = GO_ON

    def set(self) -> None:
        """Something may be due."""
        self._wake = LOOK
        self._event.set()

    def set_item(self, item: KnownItem) -> None:
        """This item is due. Two items in one wake become a look."""
        if self._wake.item not in (None, item):
            self.set()
        elif not self._wake.look:
            self._wake = Wake(item=item, room=self._wake.room)
            self._event.set()

    def make_room(self) -> None:
        """A slot is free: items that were left behind for lack of slots may be claimed."""
        if self._wake is GO_ON:
            self._wake = ROOM
        elif self._wake.item is not None and not self._wake.room:
            self._wake = replace(self._wake, room=True)
        self._event.set()

    def go_on(self) -> None:
        """The claimer has more to do, for a reason that it knows."""
        self._event.set()

    async def wait(self) -> Wake:
        """Returns when set, and re-arms the signal.

        Before the caller looks: without this, a wake that arrives during the look would be lost with it.
        """
        while True:
            event = self._event
            await event.wait()
            # Otherwise another task has been woken by this event before, and has taken the wake.
            if event is self._event:
                return self.take()

    def take(self) -> Wake:
        """Returns what has been set until now, and re-arms the signal. Does not wait."""
        # Only a set event is replaced: other tasks may wait for this one.
        if self._event.is_set():
            self._event = trio.Event()
        wake, self._wake = self._wake, GO_ON
        return wake


class Waker:
    """The loop that wakes the claimer when something is due, and not before.

    It keeps one moment: the earliest that the source answered when it was asked, or that was announced since then
    (`expect`). It asks the source after each such moment and after each poll. Changes that are not announced, such as
    those by other processes, are found by polls.

    If one known item alone is due at that moment, the claimer takes it by its key, without a look. The question that
    follows finds items that have come due meanwhile, and a look then takes them.

    Attributes:
        signal: Wakes the claimer.
        hears_others: Other instances' changes are announced at once too. Then polls are rare, or there are none.
        never_polls: The engine waits for announcements alone, in virtual time.

    Args:
        poll_interval: Seconds from one poll to the next; infinity for no polls.
        transaction_interval: Seconds from one poll to the next while a transaction is open (see `look_while`), and
            after due items could not be taken.
    """

    def __init__(
        self,
        source: DueSource,
        observer: LoopObserver,
        signal: WakeSignal,
        pauses: Pauses,
        *,
        poll_interval: float,
        transaction_interval: float,
    ) -> None:
        self._source = source
        self._observer = observer
        self._pauses = pauses
        self.signal = signal
        self._poll_interval = poll_interval
        self._transaction_interval = transaction_interval
        self.hears_others = self.never_polls = math.isinf(poll_interval)
        self._open: list[Callable[[], bool]] = []
        self._next = NOTHING_DUE
        # The item that was last claimed by its key. If it turns up again, a look must take it.
        self._tried: KnownItem | None = None
        self._poll_at = math.inf
        # Whether `_next` is the earliest moment. If not, the loop asks the source, but only after `_looked`: the answer
        # leaves out what the claimer's last look could see.
        self._is_known = False
        self._looked = trio.Event()
        self._asked_at = -math.inf
        # The groups that had free slots at the last look, and those that the last question was for.
        self._groups: Set[str] = frozenset()
        self._asked_for: Set[str] = frozenset()
        self._changed = trio.Event()
        self.progress = Progress("waker")

    def look(self) -> None:
        """Something may be due now or later: a look and a question must find out."""
        self._ask_after_claim()
        self._changed.set()
        self.signal.set()

    def poll_every(self, seconds: float, *, hears_others: bool = False) -> None:
        """Polls now, and from now on at this interval."""
        self.hears_others = hears_others
        self._poll_interval = seconds
        self._poll_at = math.inf
        self.look()

    def expect(self, moment: float, item: KnownItem | None = None) -> None:
        """Something is due at that moment on trio's clock; only this item, if one is named."""
        if moment <= trio.current_time():
            if item is None:
                self.signal.set()
            else:
                self.signal.set_item(item)
        else:
            self._plan(Due(moment, item))

    def _plan(self, due: Due) -> None:
        if due.moment < self._next.moment:
            self._next = due
            self._changed.set()
        elif due.moment == self._next.moment and due.item != self._next.item:
            self._next = Due(due.moment)  # Two items at one moment: a look takes both.

    def look_while(self, is_open: Callable[[], bool]) -> None:
        """Items may appear without an announcement while `is_open`, and right after it: a transaction commits them."""
        self._open.append(is_open)
        self._changed.set()

    def look_again(self) -> None:
        """Items were seen and could not be taken: plans a look soon, although polls may be rare. Not without polls."""
        if not self.never_polls:
            self.expect(trio.current_time() + self._transaction_interval)

    def looked(self, groups: Set[str]) -> None:
        """The claimer has looked, and these groups have free slots.

        The question is for these groups only: when another group has a free slot again, the claimer looks.
        """
        if not groups <= self._asked_for:
            self._is_known = False
            self._changed.set()
        self._groups = frozenset(groups)
        self._looked.set()

    def took(self) -> None:
        """The claimer has claimed the one announced item by its key, and not looked for others.

        The question is for the groups of the last look, even if this claim has filled one of them. When that group has
        a free slot again, the claimer does not look: without the question, its next item would wait for a poll.
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
        has_head_start = self._next.item is not None and not self.never_polls
        return self._next.moment - HEAD_START if has_head_start else self._next.moment

    def _wake_for_what_has_come(self, now: float) -> None:
        is_due, is_poll, item = now >= self._wake_for_next_at, now >= self._poll_at, self._next.item
        if is_due and item is not None and not is_poll:
            # The next poll is not put off, as a claim of one item does not look for others.
            self._tried, self._next = item, NOTHING_DUE
            self._ask_after_claim()
            self.signal.set_item(item)
        elif is_due or (is_poll and self._is_worth_asking(now)):
            self._poll_at, self._next = math.inf, NOTHING_DUE
            # A transaction that has ended is dropped only here, where one more look follows: the look before this one
            # may have come before its commit.
            self._open = [is_open for is_open in self._open if is_open()]
            self.look()
        elif is_poll:
            self._poll_at = math.inf
            self.signal.set()

    def _ask_after_claim(self) -> None:
        self._is_known = False
        # Only a set event is replaced: `run` may wait for this one.
        if self._looked.is_set():
            self._looked = trio.Event()

    def _is_worth_asking(self, now: float) -> bool:
        return bool(self._open) or now >= self._asked_at + SECONDS_BETWEEN_QUESTIONS

    async def _ask(self) -> None:
        # Before the question: its answer may miss an announcement that comes meanwhile, which must then cause another
        # question. Set after it, this would overwrite the False of that announcement.
        self._is_known = True
        self._asked_at = trio.current_time()
        self._asked_for = self._groups
        self.progress.ask()
        try:
            due = await self._source.next_due(self._groups) if self._groups else None
        except Exception as error:
            if not self._pauses.is_transient(error):
                raise
            if self.progress.fail(error):
                self._observer.claiming_failed(error)
            self._is_known = False
            # A new one: an announcement that came before would make this a busy loop. What comes later ends the pause.
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
        # A look must take it, and not a claim by its key: other items may be due by now, or that claim has just failed.
        if due.moment <= trio.current_time() or due.item == self._tried:
            due = Due(due.moment)
        self._plan(due)
