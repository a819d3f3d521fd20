"""Asks for as much as can start now, whenever there may be something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import partial
from typing import Final, Generic, TypeVar

import trio

from . import notices
from .guard import Stop, guard
from .pauses import Pauses
from .progress import Progress
from .run import CancelReason
from .runner import Runner
from .slots import Slots
from .source import Demand, Granted, Source, Tip
from .wake import Wake, WakeSignal
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
# It is looked for again a poll interval later, whoever else would tell.
MOST_FRUITLESS: Final = 10

# In virtual time no moment comes for that, and each race that is lost is a job that another one of the run took.
MOST_FRUITLESS_AT_REST: Final = 200


LOOK: Final = Wake(look=True)


class _Found(Enum):
    MORE = auto()
    ALL = auto()
    NOT_LOOKED = auto()
    FAILED = auto()


class Claimer(Generic[ClaimT, SettlementT]):
    """The loop that claims. It is told to end, not cancelled: a claim in flight is awaited and given back."""

    def __init__(
        self,
        source: Source[ClaimT, SettlementT],
        slots: Slots,
        runner: Runner[ClaimT, SettlementT],
        wake: WakeSignal,
        waker: Waker,
        stop: Stop,
        pauses: Pauses,
    ) -> None:
        self._source = source
        self._pauses = pauses
        self._slots = slots
        self._runner = runner
        self._wake = wake
        self._waker = waker
        self._stop = stop
        self._fruitless = 0
        self.progress = Progress("claimer")
        self._begun = 0
        self._ended = 0
        # Nothing is due that was not taken, as far as anybody has told. Then a free slot is no reason to look.
        self._is_all_taken = False

    @property
    def is_claiming(self) -> bool:
        """A claim is in flight: something may be ours already that is not held yet."""
        return self._ended < self._begun

    async def wait_claimed(self) -> None:
        """Returns when what the claim in flight has granted is held."""
        begun = self._begun
        while self._ended < begun:
            await self._runner.wait_changed()

    async def run(self, running: trio.Nursery) -> None:
        """Starts each claim's run in `running`; returns when the end was asked for."""
        delay = FIRST_RETRY
        wake = LOOK
        while not self._stop.draining.is_set():
            self._begun += 1
            found = await self._answer(wake, running)
            self._ended = self._begun
            if self._stop.draining.is_set():
                return  # The wake that would tell may have been taken with others.
            wake = LOOK
            if found is _Found.FAILED:
                with self._pauses.timeout_after_fault(delay):
                    await self._wake.wait()
                delay = min(2 * delay, LONGEST_RETRY)
                continue
            delay = FIRST_RETRY
            if found is _Found.MORE:
                await trio.lowlevel.checkpoint()
                continue
            if found is _Found.NOT_LOOKED:
                self.progress.wait_for_others()
            if found is _Found.ALL:
                self._waker.looked(self._slots.demand().lanes.keys())
            wake = await self._wake.wait()

    async def _answer(self, wake: Wake, running: trio.Nursery) -> _Found:
        if wake.look or not self._is_all_taken:
            return await self._look(running)
        if wake.tip is None:
            # There is room, and nothing for it. Where nobody tells what others do, it is a chance to see that.
            return _Found.NOT_LOOKED if self._waker.is_told else await self._look(running)
        if wake.tip.lane not in self._slots.lanes:
            return _Found.NOT_LOOKED
        # Those who made theirs in the same statement are about to tell, too, and one look finds all of them.
        await trio.lowlevel.checkpoint()
        later = self._wake.take()
        if later.look or later.tip not in (None, wake.tip):
            return await self._look(running)
        return await self._take(wake.tip, running)

    async def _look(self, running: trio.Nursery) -> _Found:
        self._is_all_taken = False
        demand = self._slots.demand()
        if demand.total == 0:
            return _Found.NOT_LOOKED
        if self._too_many_unsettled():
            self._runner.wake_when_settled()
            return _Found.NOT_LOOKED
        granted = await self._ask(partial(self._source.claim, demand), running)
        if granted is None:
            return _Found.FAILED
        self._is_all_taken = self._are_all(granted, demand)
        # A look that found nothing lost nothing to others.
        self._fruitless = self._fruitless + 1 if granted.more and not granted.claims else 0
        if self._fruitless == (MOST_FRUITLESS_AT_REST if self._waker.rests else MOST_FRUITLESS):
            self._fruitless = 0
            self._waker.look_again()
            return _Found.ALL
        again = granted.more and not self._stop.draining.is_set()
        return _Found.MORE if again else _Found.ALL

    async def _take(self, tip: Tip, running: trio.Nursery) -> _Found:
        """The one that was told, without a look."""
        if tip.lane not in self._slots.demand().lanes or self._too_many_unsettled():
            return await self._look(running)
        # Until that is known, nothing is.
        self._is_all_taken = False
        granted = await self._ask(partial(self._source.claim_one, tip), running)
        if granted is None:
            return _Found.FAILED
        self._is_all_taken = not granted.more
        if granted.more:
            self._waker.look()
        # One that could not be had was taken by somebody else, or changed, which is told by itself.
        return _Found.NOT_LOOKED

    async def _ask(
        self, claim: Callable[[], Awaitable[Granted[ClaimT]]], running: trio.Nursery
    ) -> Granted[ClaimT] | None:
        """What was granted, and has been started; None for a fault that passes."""
        sent = trio.current_time()
        self.progress.ask()
        try:
            granted = await claim()
        except Exception as error:
            if not self._source.is_transient(error):
                raise
            self.progress.fail(error)
            self._source.tell(notices.ClaimFailed(error))
            return None
        finally:
            self._runner.changed()
        self.progress.answered(len(granted.claims))
        self._start(granted, sent, running)
        return granted

    def _are_all(self, granted: Granted[ClaimT], demand: Demand) -> bool:
        """Whether nothing that is due was left behind: every lane was looked at, and had less than it could start."""
        taken = Counter(map(self._source.lane_of, granted.claims))
        return (
            not granted.more
            and demand.suspects > 0
            and len(granted.claims) < demand.total
            and demand.lanes.keys() == self._slots.lanes
            and all(taken[lane] < most for lane, most in demand.lanes.items())
        )

    def _start(self, granted: Granted[ClaimT], sent: float, running: trio.Nursery) -> None:
        for claim in granted.claims:
            # Where the answer came so late that the lease is as good as over, the run starts nothing.
            run = self._runner.hold(claim, sent)
            if self._stop.draining.is_set():
                # The end was asked for while this claim was in flight: it is given back unrun.
                run.cancel(CancelReason.SHUTDOWN)
            running.start_soon(guard, self._stop, partial(self._runner.see_through, run))

    def _too_many_unsettled(self) -> bool:
        unsettled = len(self._runner.held) - self._slots.running
        return unsettled > UNSETTLED_PER_SLOT * self._slots.capacity + UNSETTLED_AT_LEAST
