"""Claims as many items as can start now, whenever some may be due.

Two tasks of this claimer share one signal, so up to two claims are *in flight* (sent, and not answered) at a time. Each
has reserved its slots (`Slots.reserved`), so both together never ask for more than is free.

A claim either *looks* (`ClaimSource.claim`: which items are due? take these), or takes one announced item by its key
(`ClaimSource.claim_one`). `LookLedger` knows what the looks have shown, and decides whether another one is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

import trio

from .demand import Demand, Granted, KnownItem
from .guard import Stop, guard
from .look_ledger import AT_ONCE, LookLedger, is_settler_behind, share_of, took_all
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

# Event-loop turns to wait before a claim, so that slots freed together are claimed together. Runs that end at once free
# their slots within one or two turns. Without the wait, two small claims would share these slots from then on.
TURNS_TO_JOIN: Final = 2


class _Shown(Enum):
    """What an attempt to claim has shown."""

    MORE = auto()  # More may be due: claim again at once. If no slot is free, that attempt ends as NOT_LOOKED.
    ALL = auto()  # A look took what it could, or gave up: ask when the next item is due.
    NOT_LOOKED = auto()  # No look was needed or possible, or the one announced item was claimed without a look.
    FAILED = auto()  # An outage: claim again after a pause.


class _Brought(NamedTuple):
    """The answer to a claim: the group of each item that it brought, and what else may be due (see `Granted`)."""

    groups: Sequence[str]
    more: bool
    exhausted: Set[str]


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
        self._delay = FIRST_RETRY
        # Without polls, it takes more lost races before it waits: see `LookLedger`.
        self._ledger = LookLedger(has_polls=not waker.never_polls)
        self.progress = Progress("claimer")

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is in flight: the database may have a claim of ours that `Runner.held` does not have yet."""
        return self._ledger.is_claiming

    @property
    def is_behind(self) -> bool:
        """Whether a look left something behind just now: more is due than can start."""
        return self._ledger.is_behind(trio.current_time())

    async def wait_caught_up(self) -> None:
        """Returns when the claimer is not behind any more. It checks after each claim and each settlement.

        Also if time alone ends `is_behind`: then all slots are taken, so another settlement follows.
        """
        while self.is_behind:
            await self._runner.wait_changed()

    async def wait_claimed(self) -> None:
        """Returns when `Runner.held` has what the claims in flight have granted."""
        last = self._ledger.claims_sent  # Not later ones: a busy claimer always has one in flight.
        while self._ledger.is_any_in_flight(last):
            await self._runner.wait_changed()

    async def run(self, running: trio.Nursery) -> None:
        """Starts each claim's run in `running`, which outlives this; returns when the end was asked for.

        An error in one task asks for the end (`guard`), and the end wakes the other.
        """
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
            if found is _Shown.FAILED:
                # A look follows the pause: it sees what the failed claim was for, and what the wake was for that is
                # lost here. Any wake ends the pause: the end must, and a pause that something announced cuts short
                # costs one look.
                wake = LOOK
                with self._pauses.timeout_after_fault(self._delay):
                    await self._wake.wait()
                self._delay = min(2 * self._delay, LONGEST_RETRY)
                continue
            self._delay = FIRST_RETRY
            if found is _Shown.MORE:
                # Turns for the runs that were just started, and for the other task. Not LOOK: nothing was announced.
                await self._join()
                wake = GO_ON
                continue
            # Both tasks share this progress. While the other task has a claim in flight, its answer may be overdue.
            if found is _Shown.NOT_LOOKED and not self._ledger.is_claiming:
                self.progress.wait_for_others()
            if found is _Shown.ALL:
                self._waker.looked(self._slots.demand().groups.keys())
            wake = await self._wake.wait()
            if wake.room:
                await self._join()
        # The signal wakes one task at a time: this passes the end on to the other one, if that still waits.
        self._wake.set()

    async def _join(self) -> None:
        """Returns when the slots that become free together are free."""
        for _ in range(TURNS_TO_JOIN):
            await trio.lowlevel.checkpoint()

    async def _claim_for(self, wake: Wake, running: trio.Nursery) -> _Shown:
        if wake.look or not self._ledger.is_all_taken:
            # An item that was announced forces a look, too: one in flight may have read the database before it came.
            return await self._look(running, force_look=wake.look or wake.item is not None)
        if wake.item is None:
            # A slot is free, and all that is due here was taken. Without a stream or local wakeups, other instances do
            # not announce their items, so a free slot is a chance to look before the next poll.
            must_see = wake.room and not self._waker.hears_others
            return await self._look(running) if must_see else _Shown.NOT_LOOKED
        if wake.item.group not in self._slots.groups:  # No item of this group can start here.
            self._waker.took()  # The waker asks what is due next only after the claim that it has caused.
            return _Shown.NOT_LOOKED
        # One insert may store the jobs of many callers, who announce them in the same turn of the event loop. If there
        # is more than this item, one look is cheaper than a claim for each. (A drain may come now: what is claimed all
        # the same is given back in `_start`.)
        await trio.lowlevel.checkpoint()
        # A free slot in it needs nothing of its own: a look asks for all slots, and so does the claim after `_take`.
        later = self._wake.take()
        if later.look or later.item not in (None, wake.item):
            return await self._look(running)
        return await self._take(wake.item, running)

    async def _look(self, running: trio.Nursery, *, force_look: bool = True) -> _Shown:
        ledger, slots = self._ledger, self._slots
        if force_look:
            ledger.announce()
        demand = slots.demand(share_of(slots.capacity), force_look=ledger.must_look)
        if demand.total == 0:
            return _Shown.NOT_LOOKED  # A slot that becomes free wakes the claimer.
        # More claims would only wait for their settlements, and be renewed meanwhile.
        if self._is_settler_behind():
            self._runner.wake_when_settled()
            return _Shown.NOT_LOOKED
        # Mark the announcement as covered only here. The early returns above could not claim, so it must stay open for
        # a later look.
        # If the look fails, the one after the pause is forced, which announces anew.
        look = ledger.begin()
        # A function and not the runs of now: it is asked when the candidates are there, which may be items that this
        # instance still works on although their claims were lost.
        demand = replace(demand, is_running_here=self._runner.is_running_here)
        brought = await self._ask(partial(self._source.claim, demand), demand, running)
        if brought is None:
            return _Shown.FAILED
        groups, more, exhausted = brought
        is_all = took_all(demand, slots.groups, groups, more=more)
        now = trio.current_time()
        ledger.looked(look, demand, len(groups), more=more, took_all=is_all, now=now, exhausted=exhausted)
        # Other instances win each race, or nothing that is due can be claimed: without this, it would look without end.
        if ledger.gives_up():
            self._waker.look_again()
            return _Shown.ALL
        # It got all that it asked for, so there may be more, and slots have become free meanwhile.
        again = more or ledger.left_some_for(slots.demand())
        return _Shown.MORE if again else _Shown.ALL

    async def _take(self, item: KnownItem, running: trio.Nursery) -> _Shown:
        """Claims the announced item without a look."""
        demand = self._slots.demand_of(item.group)
        if demand.total == 0 or self._is_settler_behind():
            return await self._look(running)
        demand = replace(demand, is_running_here=self._runner.is_running_here)
        brought = await self._ask(partial(self._source.claim_one, item, demand), demand, running)
        # `more`: the source could not tell whether the item can be claimed, or had to give it back.
        if brought is None or brought.more:
            # The item may still be due. As if it were announced anew: a look that began before this does not answer it.
            self._ledger.announce()
        if brought is None:
            return _Shown.FAILED
        if brought.more:
            self._waker.look()
        else:
            # Also if the item was not granted: another instance took it, or it has changed, which is announced too.
            self._waker.took()
        return _Shown.NOT_LOOKED

    async def _ask(
        self, claim: Callable[[], Awaitable[Granted[ClaimT]]], demand: Demand, running: trio.Nursery
    ) -> _Brought | None:
        """Sends the claim, and starts what it grants; None in an outage.

        If only the answer was lost, the source finds out what it holds, and gives that back (`orphaned_claims`).
        """
        sent, number = trio.current_time(), self._ledger.send()
        self.progress.ask()
        try:
            with self._slots.reserved(demand):
                # There was more than the last claim asked for: the other task asks for the other half of the slots.
                if self._ledger.left_some_for(self._slots.demand()):
                    self._wake.go_on()
                granted = await claim()
        except Exception as error:
            if not self._pauses.is_transient(error):
                raise
            if self.progress.fail(error):  # Once an outage.
                self._observer.claiming_failed(error)
            return None
        else:  # Not in the `try`: an error of ours in `_start` must not pass for an outage.
            self.progress.answered(len(granted.claims))
            # No checkpoint since the reservation ended: `hold` takes the slots before another claim can ask for them.
            return _Brought(self._start(granted, sent, running), granted.more, granted.exhausted)
        finally:
            # After `_start`, so that what waits for the claims in flight finds their runs in `held`.
            self._ledger.answered(number)
            # Something was announced while this claim had its slots reserved. Without this, no look with all slots
            # would follow, and the item would wait for the next wake. (While `must_look` holds, `is_all_taken` does
            # not, so this wake leads to a look. That look covers the announcement, so it cuts one pause short at most.)
            if self._ledger.must_look and not self._ledger.is_claiming:
                self._wake.go_on()
            self._runner.changed()

    def _start(self, granted: Granted[ClaimT], sent: float, running: trio.Nursery) -> Sequence[str]:
        """Starts the runs of these claims; returns the group of each."""
        runs, now = [], trio.current_time()
        for claim in granted.claims:
            # Its lease counts from `sent`. If the answer came after the lease deadline, the run is lost already, and
            # its handler is not called.
            run = self._runner.hold(claim, sent, now)
            # A cancelled run is given back without its handler. (A drain from here on does not stop it: it counts as
            # running.) `draining`: no work may begin after a drain, and this claim was in flight when it came.
            # `has_another_run`: otherwise two runs of one item would overlap in this process. The claim of the other
            # was taken away (a Node peer recovers a claim by its own `lockTimeout`; a program deletes the document and
            # inserts it again). Once it is given back, it is not claimed here again while the other runs
            # (`is_running_here`). For both, SHUTDOWN means: released, and no attempt is counted.
            if self._stop.draining.is_set() or self._runner.has_another_run(run):
                run.cancel(CancelReason.SHUTDOWN)
            runs.append(run)
        self._runner.tasks.start(runs, running)
        return [run.group for run in runs]

    def _is_settler_behind(self) -> bool:
        # Parked runs wait for other items, and not for the settler.
        unparked = len(self._runner.held) - self._runner.parked
        return is_settler_behind(unparked, self._slots.running, self._slots.capacity)
