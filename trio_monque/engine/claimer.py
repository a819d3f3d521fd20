"""Asks for as much as can start now, whenever there may be something.

Races that this file closes:

- Two claims are in flight at once. Each reserves its slots (`Slots.reserved`), so no slot is demanded twice.
- Something is announced while a claim is in flight: that look may have begun before the item was there. `_announced`
  counts the announcements, and `_answered` up to which of them a look had all free slots to itself; another look
  follows until both agree.
- A look leaves something behind, while the other claim sees nothing left. `_left_behind` tells the second one that its
  view is older, so that `_is_all_taken` stays false.
- The end is asked for while a claim is in flight. The claim is awaited, and what it grants is given back unrun.
- An item is granted whose earlier run goes on here. It is given back unrun: see `Runner.has_another_run`.
- Others are faster, again and again, or an item that looks due cannot be taken. After ten looks without a grant the
  claimer waits for the next poll.
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
from .pauses import Pauses
from .progress import Progress
from .run_end import CancelReason
from .runner import Runner
from .slots import Slots
from .source import ClaimSource
from .wake import GO_ON, LOOK, Wake, WakeSignal
from .waker import Waker

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")

# What is held and not yet settled is bounded: beyond, the settler is the bottleneck, and more claims
# would only wait for it. Four times what can run, plus enough for a fast handler at low concurrency.
UNSETTLED_PER_SLOT: Final = 4
UNSETTLED_AT_LEAST: Final = 400


# After a failed claim; see the settler's.
FIRST_RETRY: Final = 0.1
LONGEST_RETRY: Final = 2.0


# Others were faster, again and again: they will have taken what there is. Or something that looks due cannot be taken.
# The claimer looks again a poll interval later, also while a stream announces changes.
MOST_FRUITLESS: Final = 10

# In virtual time no moment comes for that, and each race that is lost is a job that another one of the run took.
MOST_FRUITLESS_AT_REST: Final = 200


# While one claim is in flight, the runs of the other are started, which takes Python about as long.
AT_ONCE: Final = 2

# Seconds for which a look that left something behind counts. If all slots are taken for longer, no look follows it.
JUST_NOW: Final = 0.25

# Turns of the event loop in which other runs that end make room for the same claim. Runs that end together do so in
# one turn, or in two where each begins in another's place. Otherwise two claims would share them from then on.
TURNS_TO_JOIN: Final = 2

# Where fewer can run than this, half of them would be too few for a round trip: with a hundred slots, halves cost the
# client a fifth more and gain nothing.
WORTH_HALVING: Final = 200


class _Found(Enum):
    MORE = auto()
    ALL = auto()
    NOT_LOOKED = auto()
    FAILED = auto()


class Claimer(Generic[ClaimT, SettlementT]):
    """Claims, two at a time: while one is in flight, what the other brought is started.

    It is asked to end, not cancelled: a claim in flight is awaited and given back.
    """

    def __init__(
        self,
        source: ClaimSource[ClaimT],
        observer: LoopObserver,
        slots: Slots,
        runner: Runner[ClaimT, SettlementT],
        wake: WakeSignal,
        waker: Waker,
        stop: Stop,
        pauses: Pauses,
    ) -> None:
        self._source = source
        self._observer = observer
        self._pauses = pauses
        self._slots = slots
        self._runner = runner
        self._wake = wake
        self._waker = waker
        self._stop = stop
        self._fruitless = 0
        self._delay = FIRST_RETRY
        self.progress = Progress("claimer")
        self._begun = 0
        self._in_flight: set[int] = set()
        # How many announcements a look must answer, and up to which of them a look did that had all free
        # slots to itself.
        self._announced = 0
        self._answered = 0
        # How often a claim left something behind that no look of another claim meanwhile has shown.
        self._left_behind = 0
        self._was_full = False
        self._left_at = -math.inf
        # All that is due was taken, as far as is known. Then a free slot is not a reason to look.
        self._is_all_taken = False

    @property
    def is_claiming(self) -> bool:
        """A claim is in flight: something may be ours already that is not held yet."""
        return bool(self._in_flight)

    @property
    def is_behind(self) -> bool:
        """The last look left something behind, just now: more is due than can start."""
        return trio.current_time() < self._left_at + JUST_NOW

    async def wait_claimed(self) -> None:
        """Returns when what the claims in flight have granted is held."""
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
            found = await self._answer(wake, running)
            if self._stop.draining.is_set():
                break  # The wake that would tell may have been taken with others.
            wake = LOOK
            if found is _Found.FAILED:
                with self._pauses.timeout_after_fault(self._delay):
                    await self._wake.wait()
                self._delay = min(2 * self._delay, LONGEST_RETRY)
                continue
            self._delay = FIRST_RETRY
            if found is _Found.MORE:
                await trio.lowlevel.checkpoint()
                wake = GO_ON
                continue
            if found is _Found.NOT_LOOKED and not self._in_flight:
                self.progress.wait_for_others()  # Not for the other claim: that one may wait for an answer in vain.
            if found is _Found.ALL:
                self._waker.looked(self._slots.demand().groups.keys())
            wake = await self._wake.wait()
            if wake.room:
                for _ in range(TURNS_TO_JOIN):
                    await trio.lowlevel.checkpoint()
        self._wake.set()  # It wakes one of those who wait.

    async def _answer(self, wake: Wake, running: trio.Nursery) -> _Found:
        if wake.look or not self._is_all_taken:
            return await self._look(running, force_look=wake.look or wake.item is not None)
        if wake.item is None:
            # There is room, and nothing for it. Without a stream, it is a chance to see what others did.
            must_see = wake.room and not self._waker.hears_others
            return await self._look(running) if must_see else _Found.NOT_LOOKED
        if wake.item.group not in self._slots.groups:
            self._waker.took()
            return _Found.NOT_LOOKED
        # Those who made theirs in the same statement are about to tell, too, and one look finds all of them.
        await trio.lowlevel.checkpoint()
        later = self._wake.take()
        if later.look or later.item not in (None, wake.item):
            return await self._look(running)
        return await self._take(wake.item, running)

    async def _look(self, running: trio.Nursery, *, force_look: bool = True) -> _Found:
        if force_look:
            self._announced += 1
            self._is_all_taken = False
        announced, force_look = self._announced, force_look or self._answered < self._announced
        demand = self._slots.demand(self._share, force_look=force_look)
        if demand.total == 0:
            return _Found.NOT_LOOKED
        if self._too_many_unsettled():
            self._runner.wake_when_settled()
            return _Found.NOT_LOOKED
        if not self._in_flight:
            self._answered = (
                announced  # Only now: if nothing is free, the announcement waits for a look that can claim.
            )
        left_behind = self._left_behind
        demand = replace(demand, withholds=self._runner.withholds)
        granted = await self._ask(partial(self._source.claim, demand), demand, running)
        if granted is None:
            return _Found.FAILED
        self._left_behind += granted.more
        self._was_full = len(granted.claims) == demand.total
        self._left_at = trio.current_time() if granted.more or self._was_full else -math.inf
        if granted.more or self._was_full:
            self._is_all_taken = False
        elif (announced, left_behind) == (self._announced, self._left_behind):
            self._is_all_taken = self._are_all(granted, demand)
        # A look that found nothing lost nothing to others.
        self._fruitless = self._fruitless + 1 if granted.more and not granted.claims else 0
        if self._fruitless == (MOST_FRUITLESS_AT_REST if self._waker.never_polls else MOST_FRUITLESS):
            self._fruitless = 0
            self._waker.look_again()
            return _Found.ALL
        again = granted.more or (self._was_full and self._slots.demand().total > 0)
        return _Found.MORE if again else _Found.ALL

    @property
    def _share(self) -> int:
        """How many one claim asks for: half of them all where these are many, so that the other half is not idle."""
        capacity = self._slots.capacity
        return capacity if capacity < WORTH_HALVING else -(-capacity // AT_ONCE)

    async def _take(self, item: KnownItem, running: trio.Nursery) -> _Found:
        """Claims the one item that was announced, without a look."""
        demand = self._slots.demand_of(item.group)
        if demand.total == 0 or self._too_many_unsettled():
            return await self._look(running)
        demand = replace(demand, withholds=self._runner.withholds)
        granted = await self._ask(partial(self._source.claim_one, item, demand), demand, running)
        if granted is None or granted.more:
            # Nothing is known any more, whatever a look says that has begun before.
            self._announced += 1
            self._is_all_taken = False
        if granted is None:
            return _Found.FAILED
        if granted.more:
            self._waker.look()
        else:
            # An item that could not be claimed was taken by another instance, or changed, which is announced in turn.
            self._waker.took()
        return _Found.NOT_LOOKED

    async def _ask(
        self, claim: Callable[[], Awaitable[Granted[ClaimT]]], demand: Demand, running: trio.Nursery
    ) -> Granted[ClaimT] | None:
        """What was granted, and has been started; None for a fault that passes."""
        sent = trio.current_time()
        self._begun = number = self._begun + 1
        self._in_flight.add(number)
        self.progress.ask()
        try:
            with self._slots.reserved(demand):
                if self._was_full and self._slots.demand().total > 0:
                    self._wake.go_on()  # The other half is asked for meanwhile.
                granted = await claim()
        except Exception as error:
            if not self._source.is_transient(error):
                raise
            if self.progress.fail(error):
                self._observer.claiming_failed(error)
            return None
        else:
            self.progress.answered(len(granted.claims))
            self._start(granted, sent, running)
            return granted
        finally:
            self._in_flight.discard(number)
            if not self._in_flight and self._answered < self._announced:
                # Something was announced meanwhile, and the looks since then had not these slots.
                self._wake.go_on()
            self._runner.changed()

    def _are_all(self, granted: Granted[ClaimT], demand: Demand) -> bool:
        """Whether nothing that is due was left behind: every group was looked at, and had less than it could start."""
        taken = Counter(map(self._source.group_of, granted.claims))
        return (
            not granted.more
            and demand.suspects > 0
            and len(granted.claims) < demand.total
            and demand.groups.keys() == self._slots.groups
            and all(taken[group] < most for group, most in demand.groups.items())
        )

    def _start(self, granted: Granted[ClaimT], sent: float, running: trio.Nursery) -> None:
        for claim in granted.claims:
            # Where the answer came so late that the lease is as good as over, the run starts nothing.
            run = self._runner.hold(claim, sent)
            if self._stop.draining.is_set() or self._runner.has_another_run(run):
                # The end was asked for while this claim was in flight, or the item was taken from another run here,
                # which goes on: it is given back unrun. That happens where a Node peer recovers our claim by its own
                # `lockTimeout`, or a program deletes and inserts the document again, while both claims are in flight.
                run.cancel(CancelReason.SHUTDOWN)
            running.start_soon(self._runner.see_through, run, name="run")

    def _too_many_unsettled(self) -> bool:
        unsettled = len(self._runner.held) - self._slots.running
        return unsettled > UNSETTLED_PER_SLOT * self._slots.capacity + UNSETTLED_AT_LEAST
