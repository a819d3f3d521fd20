"""Claims as many items as can start now, whenever some may be due.

Two tasks of this claimer share one signal, so up to two claims are *in flight* (sent, and not answered) at a time. Each
has reserved its slots (`Slots.reserved`), so both together never ask for more than is free.

A claim either *looks* (`Source.claim`: which items are due? take these), or takes one announced item by its key
(`Source.claim_one`). A look is needed after each announcement of an unknown item, but the look in flight does not
count: it may have read the database before the item was there, or without the slots that it needs. So announcements are
counted, and looks follow until one has begun after the last announcement with all free slots to itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import Final, Generic, TypeVar

import trio

from .demand import Demand, Granted, KnownItem
from .guard import Stop, guard
from .observer import LoopObserver
from .pauses import FIRST_RETRY, LONGEST_RETRY, Pauses
from .progress import Progress
from .run_end import CancelReason
from .runner import Runner
from .slots import Slots
from .source import ClaimSource
from .waker import GO_ON, LOOK, Wake, Waker

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")

# How many claims may be held whose runs have ended and are not settled yet. Beyond that, the settler is the bottleneck,
# and more claims would only wait for it. Four times what can run, plus enough for a fast handler at low concurrency.
UNSETTLED_PER_SLOT: Final = 4
UNSETTLED_AT_LEAST: Final = 400

# After this number of looks in a row that saw due items and got none of them, the claimer waits for a poll interval,
# also while a stream announces changes: other instances are faster and have taken them all, or an item cannot be taken.
MOST_FRUITLESS: Final = 10

# Higher without polls (in virtual time), because there only an announcement wakes it again. For each race that it loses
# another engine takes an item, so such races mostly end before that.
MOST_FRUITLESS_WITHOUT_POLLS: Final = 200

# While one claim is in flight, the runs of the other are started, which takes Python about as long.
AT_ONCE: Final = 2

# Seconds for which the claimer counts as behind after a look that left something. If all slots are taken for longer, no
# look comes that could end it.
JUST_NOW: Final = 0.25

# Turns of the event loop for which a claim waits for more free slots. Runs that end together do so in one turn, or in
# two if each begins in another's place. Without the wait, two small claims would share these slots from then on.
TURNS_TO_JOIN: Final = 2

# With fewer slots than this, half of them are too few for a round trip: with a hundred slots, halves cost the client a
# fifth more and gain nothing.
WORTH_HALVING: Final = 200


class _Found(Enum):
    """What an attempt to claim has shown."""

    MORE = auto()  # More is due, and slots are free: claim again at once.
    ALL = auto()  # A look took what it could: ask when the next item is due.
    NOT_LOOKED = auto()  # No look was needed, or none was possible.
    FAILED = auto()  # An outage: claim again after a pause.


class Claimer(Generic[ClaimT, SettlementT]):
    """The loop that claims, in two tasks: while one claim is in flight, the runs of the other are started.

    At the end it is asked to end, and not cancelled: a claim in flight may be applied, and what it grants must be given
    back.
    """

    def __init__(
        self,
        source: ClaimSource[ClaimT],
        observer: LoopObserver,
        slots: Slots,
        runner: Runner[ClaimT, SettlementT],
        waker: Waker,
        stop: Stop,
        pauses: Pauses,
    ) -> None:
        self._source = source
        self._observer = observer
        self._pauses = pauses
        self._slots = slots
        self._runner = runner
        self._wake = waker.signal
        self._waker = waker
        self._stop = stop
        self._fruitless = 0
        self._delay = FIRST_RETRY
        self.progress = Progress("claimer")
        # Claims are numbered from 1; here are the number of the last one, and the numbers of those in flight.
        self._begun = 0
        self._in_flight: set[int] = set()
        # How many announcements need a look, and how many of them are covered: a look has begun after them that had all
        # free slots to itself.
        self._announced = 0
        self._covered = 0
        # How many looks have left due items behind.
        self._left_behind = 0
        # Whether the last look got as many items as it asked for, and when a look last left something behind.
        self._was_full = False
        self._left_at = -math.inf
        # All that is due was taken, as far as is known. Then a free slot is not a reason to look.
        self._is_all_taken = False

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is in flight: the database may have a claim of ours that `Runner.held` does not have yet."""
        return bool(self._in_flight)

    @property
    def is_behind(self) -> bool:
        """Whether a look left something behind just now: more is due than can start."""
        return trio.current_time() < self._left_at + JUST_NOW

    async def wait_caught_up(self) -> None:
        """Returns when the claimer is not behind any more. It checks after each claim and each settlement."""
        while self.is_behind:
            await self._runner.wait_changed()

    async def wait_claimed(self) -> None:
        """Returns when `Runner.held` has what the claims in flight have granted."""
        begun = self._begun
        while any(number <= begun for number in self._in_flight):
            await self._runner.wait_changed()

    async def run(self, running: trio.Nursery) -> None:
        """Starts each claim's run in `running`; returns when the end was asked for."""
        async with trio.open_nursery() as claims:
            for _ in range(1, AT_ONCE):
                claims.start_soon(guard, self._stop, partial(self._claim, running), self.progress)
            await guard(self._stop, partial(self._claim, running, LOOK), self.progress)

    async def _claim(self, running: trio.Nursery, wake: Wake | None = None) -> None:
        wake = wake or await self._wake.wait()
        while not self._stop.draining.is_set():
            found = await self._claim_for(wake, running)
            # Before each wait: the end sets the signal once, and `_claim_for` may have taken that wake together with
            # others. Without this, the claimer would wait for a wake that never comes.
            if self._stop.draining.is_set():
                break
            # A wake is lost in the pause below, so a look follows it, which sees whatever it was for.
            wake = LOOK
            if found is _Found.FAILED:
                # Any wake ends the pause: the end must, and a pause that others cut short costs one look.
                with self._pauses.timeout_after_fault(self._delay):
                    await self._wake.wait()
                self._delay = min(2 * self._delay, LONGEST_RETRY)
                continue
            self._delay = FIRST_RETRY
            if found is _Found.MORE:
                # The runs that were just started, and the other task, come first.
                await trio.lowlevel.checkpoint()
                wake = GO_ON
                continue
            # Both tasks share this progress. While the other task has a claim in flight, its answer may be overdue.
            if found is _Found.NOT_LOOKED and not self._in_flight:
                self.progress.wait_for_others()
            if found is _Found.ALL:
                self._waker.looked(self._slots.demand().groups.keys())
            wake = await self._wake.wait()
            if wake.room:
                for _ in range(TURNS_TO_JOIN):
                    await trio.lowlevel.checkpoint()
        # The signal wakes one task at a time: this passes the end on to the other one.
        self._wake.set()

    async def _claim_for(self, wake: Wake, running: trio.Nursery) -> _Found:
        if wake.look or not self._is_all_taken:
            return await self._look(running, force_look=wake.look or wake.item is not None)
        if wake.item is None:
            # A slot is free, and all that is due here was taken. Without a stream or local wakeups, other instances do
            # not announce their items, so a free slot is a chance to look before the next poll.
            must_see = wake.room and not self._waker.hears_others
            return await self._look(running) if must_see else _Found.NOT_LOOKED
        if wake.item.group not in self._slots.groups:  # No item of this group can start here.
            self._waker.took()  # The waker may wait for this claim.
            return _Found.NOT_LOOKED
        # One insert may store the jobs of many callers, who announce them in the same turn of the event loop. If there
        # is more than this item, one look is cheaper than a claim for each. (A drain may come now: what is claimed all
        # the same is given back in `_start`.)
        await trio.lowlevel.checkpoint()
        later = self._wake.take()
        if later.look or later.item not in (None, wake.item):
            return await self._look(running)
        return await self._take(wake.item, running)

    async def _look(self, running: trio.Nursery, *, force_look: bool = True) -> _Found:
        if force_look:
            self._announced += 1
            self._is_all_taken = False
        announced = self._announced
        force_look = force_look or self._covered < announced
        demand = self._slots.demand(self._share, force_look=force_look)
        if demand.total == 0:
            return _Found.NOT_LOOKED
        if self._too_many_unsettled():
            self._runner.wake_when_settled()
            return _Found.NOT_LOOKED
        # A look beside another claim has not all free slots, and may not show the item that was announced. Only now,
        # and not before the returns above: without a free slot, the announcement waits for a look that can claim.
        if not self._in_flight:
            self._covered = announced
        left_behind = self._left_behind
        demand = replace(demand, withholds=self._runner.withholds)
        granted = await self._ask(partial(self._source.claim, demand), demand, running)
        if granted is None:
            return _Found.FAILED
        self._left_behind += granted.more
        self._was_full = len(granted.claims) == demand.total
        self._left_at = trio.current_time() if granted.more or self._was_full else -math.inf
        # If another look has left something behind meanwhile, or something was announced, this look is the older view.
        # Free slots would stay empty if it counted.
        if granted.more or self._was_full:
            self._is_all_taken = False
        elif (announced, left_behind) == (self._announced, self._left_behind):
            self._is_all_taken = self._are_all(granted, demand)
        # Only looks that saw something: one that found nothing lost nothing to others.
        self._fruitless = self._fruitless + 1 if granted.more and not granted.claims else 0
        if self._fruitless == (MOST_FRUITLESS_WITHOUT_POLLS if self._waker.never_polls else MOST_FRUITLESS):
            self._fruitless = 0
            self._waker.look_again()
            return _Found.ALL
        again = granted.more or (self._was_full and self._slots.demand().total > 0)
        return _Found.MORE if again else _Found.ALL

    @property
    def _share(self) -> int:
        """How many items one claim asks for: half of all slots if these are many, so that two claims share them."""
        capacity = self._slots.capacity
        return capacity if capacity < WORTH_HALVING else -(-capacity // AT_ONCE)

    async def _take(self, item: KnownItem, running: trio.Nursery) -> _Found:
        """Claims the announced item without a look."""
        demand = self._slots.demand_of(item.group)
        if demand.total == 0 or self._too_many_unsettled():
            return await self._look(running)
        demand = replace(demand, withholds=self._runner.withholds)
        granted = await self._ask(partial(self._source.claim_one, item, demand), demand, running)
        if granted is None or granted.more:
            # The item may still be due. As if it were announced anew: a look that began before this does not answer it.
            self._announced += 1
            self._is_all_taken = False
        if granted is None:
            return _Found.FAILED
        if granted.more:
            self._waker.look()
        else:
            # Also if the item was not granted: another instance took it, or it has changed, which is announced too.
            self._waker.took()
        return _Found.NOT_LOOKED

    async def _ask(
        self, claim: Callable[[], Awaitable[Granted[ClaimT]]], demand: Demand, running: trio.Nursery
    ) -> Granted[ClaimT] | None:
        """Sends the claim, and starts what it grants; None in an outage."""
        sent = trio.current_time()
        self._begun = number = self._begun + 1
        self._in_flight.add(number)
        self.progress.ask()
        try:
            with self._slots.reserved(demand):
                # There was more than the last claim asked for: the other task asks for the other half of the slots.
                if self._was_full and self._slots.demand().total > 0:
                    self._wake.go_on()
                granted = await claim()
        except Exception as error:
            if not self._source.is_transient(error):
                raise
            if self.progress.fail(error):
                self._observer.claiming_failed(error)
            return None
        else:
            self.progress.answered(len(granted.claims))
            # No checkpoint since the reservation ended: the runs take the slots before a claim can ask for them.
            self._start(granted, sent, running)
            return granted
        finally:
            # After `_start`, so that what waits for the claims in flight finds their runs in `held`.
            self._in_flight.discard(number)
            # Something was announced while this claim had its slots reserved. Without this, no look with all slots
            # would follow, and the item would wait for the next wake.
            if not self._in_flight and self._covered < self._announced:
                self._wake.go_on()
            self._runner.changed()

    def _are_all(self, granted: Granted[ClaimT], demand: Demand) -> bool:
        """Whether the look took all that is due: it asked for every group, and each had less than could start."""
        taken = Counter(map(self._source.group_of, granted.claims))
        return (
            not granted.more
            # A look that may take no suspect has not seen all.
            and demand.suspects > 0
            and len(granted.claims) < demand.total
            and demand.groups.keys() == self._slots.groups
            and all(taken[group] < most for group, most in demand.groups.items())
        )

    def _start(self, granted: Granted[ClaimT], sent: float, running: trio.Nursery) -> None:
        for claim in granted.claims:
            # Its lease counts from `sent`. If the answer came after the lease deadline, the run is lost already, and
            # its handler is not called.
            run = self._runner.hold(claim, sent)
            # A cancelled run is given back without its handler. (A drain from here on does not stop it: it counts as
            # running.) Without the first condition, work would begin after a
            # drain that came while this claim was in flight. Without the second, the item would run twice beside
            # itself: another run of it goes on here, whose claim was taken away (a Node peer recovers a claim by its
            # own `lockTimeout`; a program deletes the document and inserts it again).
            if self._stop.draining.is_set() or self._runner.has_another_run(run):
                run.cancel(CancelReason.SHUTDOWN)
            running.start_soon(self._runner.run_to_verdict, run, name="run")

    def _too_many_unsettled(self) -> bool:
        unsettled = len(self._runner.held) - self._slots.running
        return unsettled > UNSETTLED_PER_SLOT * self._slots.capacity + UNSETTLED_AT_LEAST
