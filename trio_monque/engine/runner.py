"""One claim's way: hold it, start its run, conclude the run, settle the claim.

A claim is *held* from the grant until its settlement is written, and renewed all that time: also before its handler
starts and after it has ended. A slot is taken for less: until the handler has ended.

A bug in the source or in the observer, at any of these points, ends the engine in order (`end_for_bug`). It must
neither end as a failed attempt of the job nor stop the settler, which calls back into this file.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar, cast

import trio

from ..foreign_errors import is_a, safe_error
from ..grace import OWNERS
from .early_settlements import EarlySettlements
from .exceptions import LeakedCancellationError, interrupt_in, without_cancellations
from .guard import Stop, end_for_bug
from .lease import LeaseTerms
from .observer import RunObserver
from .progress import Spread
from .run import Run
from .run_end import CancelReason, NotBegun, RunEnd
from .settler import SettlementQueue
from .shared_tasks import RunTasks, SharedTask
from .slots import Slots
from .source import RunSource
from .waker import WakeSignal

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")


LATE: Final = 0.05
"""Seconds from the claim to the call of its handler from which on they do not count for the time limit of the run."""


class Runner(Generic[ClaimT, SettlementT]):
    """Starts runs and sees them through to their settlement.

    Attributes:
        held: The runs whose claims this instance holds: their handlers run, or their settlements are not written yet.
            The heartbeat renews these claims. At the end of the engine, here are those that were not settled.
        tasks: Where runs are started.
        start_lags: Seconds from asking for a claim to the start of its handler.
        parked: How many runs wait for other items, and have no slot.
    """

    def __init__(
        self,
        source: RunSource[ClaimT, SettlementT],
        observer: RunObserver[ClaimT, SettlementT],
        slots: Slots,
        settler: SettlementQueue[SettlementT],
        wake: WakeSignal,
        stop: Stop,
        terms: LeaseTerms,
    ) -> None:
        self._source = source
        self._observer = observer
        self._terms = terms
        self._slots = slots
        self._settler = settler
        self._wake = wake
        self._stop = stop
        self._clock = trio.lowlevel.current_clock()
        # An ordered set, in the order of the claims.
        self.held: dict[Run[ClaimT], None] = {}
        # The first run of each item whose handler has not ended. Another instance may take its claim away and free the
        # item, and this instance may claim the item again meanwhile: that later run must not start.
        self._going_on: dict[Hashable, Run[ClaimT]] = {}
        # Items that a look saw and passed over for such a run.
        self._withheld: set[Hashable] = set()
        self.tasks = RunTasks(self.run_to_end, self.run_in_turn)
        self.start_lags = Spread()
        self.parked = 0
        self._changed: trio.Event | None = None  # Made by the task that waits for it: mostly none waits.
        self._wakes_when_settled = False
        self._early: EarlySettlements[ClaimT, SettlementT] = EarlySettlements(
            settler,
            terms,
            free_slot=self._free_slot,
            take_slot=self._take_slot,
            settled=self._settled,
            conclude=self._conclude,
        )

    def wake_when_settled(self) -> None:
        """Wakes the claimer after the next settlement, because the claimer waits for the settler."""
        self._wakes_when_settled = True

    def changed(self) -> None:
        """Wakes the tasks in `wait_changed`: something was claimed, settled or released, failed, or waits."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def wait_changed(self) -> None:
        """Returns after the next change."""
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()

    def hold(self, claim: ClaimT, sent: float, now: float | None = None) -> Run[ClaimT]:
        """Holds a granted claim: from now on it is renewed and has a slot. `sent` is when the claim was asked for.

        The claimer calls `changed` when it holds all claims of an answer, which came `now`.
        """
        run = Run(claim, self._source.traits_of(claim), terms=self._terms, sent=sent, clock=self._clock, now=now)
        self.held[run] = None
        other = self._going_on.setdefault(run.key, run)
        if other is not run and not _works_on_its_item(other):
            self._going_on[run.key] = run
        self._slots.take(run.group, suspect=run.is_suspect)
        return run

    def has_another_run(self, run: Run[ClaimT]) -> bool:
        """Whether an earlier run of its item goes on, so that this one must not start."""
        return self._going_on.get(run.key) is not run

    def is_running_here(self, key: Hashable) -> bool:
        """Whether a run of this item goes on, so that it must not be claimed; a look follows its end."""
        run = self._going_on.get(key)
        if run is None or not _works_on_its_item(run):
            return False
        self._withheld.add(key)
        return True

    def cancel_all(self, reason: CancelReason) -> tuple[ClaimT, ...]:
        """Cancels each run's own scope, and returns the claims of those that were held, and not cancelled before."""
        # Never their nursery: a task that is cancelled outside of its run's scope would end before it concludes the
        # run, and the claim would not be settled.
        running = self.running
        hit = tuple(run for run in running if run.reason is None and not run.is_settled_early)
        for run in running:
            run.cancel(reason)
        return tuple(run.claim for run in hit)

    def abandon_threads(self) -> None:
        """Ends the waits for threads that have not ended; these runs are abandoned."""
        # Of runs without such a wait, too: if one begins later, it ends at once.
        for run in self.running:
            run.abandon_threads()

    def abandon_all(self) -> None:
        """Ends every wait of the runs that a cancellation from outside would not reach."""
        self.abandon_threads()
        for run in self.running:
            run.end_cleanups()

    def claims_to_renew(self) -> Sequence[ClaimT]:
        """The held claims without those past their limit, which the heartbeat does not renew any more."""
        return [run.claim for run in self.held if run.is_renewable]

    @property
    def is_at_work(self) -> bool:
        """Whether a claim is held, or a handler goes on after its claim was settled."""
        return bool(self.held or self._early.outliving)

    @property
    def number_outliving(self) -> int:
        """How many handlers go on after their claims were settled."""
        return len(self._early.outliving)

    @property
    def running(self) -> Sequence[Run[ClaimT]]:
        """The runs whose handlers have not ended. May be called from any thread."""
        runs = (*tuple(self.held), *tuple(self._early.outliving))  # Copies: the run's own thread changes both.
        return tuple(run for run in runs if not run.has_ended)

    @property
    def overdue_threads(self) -> int:
        """How many cancelled runs hold their slots because their threads go on. May be asked for in any thread."""
        return len(self.overdue)

    @property
    def overdue(self) -> Sequence[Run[ClaimT]]:
        """These runs. May be asked for in any thread."""
        return [run for run in self.running if run.is_overdue_in_thread]

    # Guarded and protected from Ctrl-C here, and not by `guard`: another coroutine around each run would add a tenth to
    # the memory of a running job.
    @trio.lowlevel.enable_ki_protection
    async def run_to_end(self, run: Run[ClaimT]) -> None:
        """Calls the handler and concludes the run, in a task of its own. Raises no exception of the handler."""
        # Each name and each nested block in this coroutine costs memory for as long as the handler runs. So the rest is
        # in plain functions, and runs that share a task have a coroutine of their own.
        value: object = None
        unsafe: BaseException | None = None
        if not self._starts(run, trio.lowlevel.current_task()):
            return
        try:
            with run.scope:
                try:
                    value = await self._source.execute(run)
                except BaseException as raised:
                    # Before the scope, and all others, look at it: see `foreign_errors`.
                    if (unsafe := safe_error(raised)) is raised:
                        raise
                if unsafe is not None:
                    raise unsafe
        except BaseException as raised:
            # Of any kind: without this, one handler's exception would cancel the nursery of all runs.
            if not self._failed(run, raised):
                raise
        else:
            self._over(run)
            self._conclude(run, run.ended(None, value))

    @trio.lowlevel.enable_ki_protection
    async def run_in_turn(self, run: Run[ClaimT], shared: SharedTask[ClaimT]) -> bool:
        """The same in a task that other runs share, and in a context of the run.

        Returns whether the task can be used for another run: the handler was not called, or it has returned.
        """
        value: object = None
        unsafe: BaseException | None = None
        if not self._starts(run, shared.task):
            return True
        try:
            with run.scope:
                try:
                    value = await shared.call(self._source, run)
                except BaseException as raised:
                    if (unsafe := safe_error(raised)) is raised:
                        raise
                if unsafe is not None:
                    raise unsafe
        except BaseException as raised:
            if not shared.context.run(self._failed, run, raised):
                raise
            return False
        self._over(run)
        shared.context.run(self._conclude, run, run.ended(None, value))
        return True

    def _starts(self, run: Run[ClaimT], task: trio.lowlevel.Task) -> bool:
        """Whether to call its handler in this task. If not, the run is concluded."""
        run.task = task
        OWNERS[task] = run
        if self._may_start(run):
            return True
        self._over(run)
        self._conclude(run, _end_unbegun(run))
        return False

    def _failed(self, run: Run[ClaimT], raised: BaseException) -> bool:
        """Concludes a run whose handler raised; False if the engine itself is being cancelled."""
        self._over(run)
        if type(raised) is NotBegun:
            run.never_began()
            self._conclude(run, _end_unbegun(run))
            return True
        error = without_cancellations(raised)
        # Here, outside the run's scope, the deadline is that of the engine.
        if type(error) is LeakedCancellationError and trio.current_effective_deadline() == -math.inf:
            return False  # Not leaked by the handler: the hard end cancels all. Nothing writes this end any more.
        self._conclude(run, run.ended(error, None))
        if (interrupt := interrupt_in(error)) is not None:
            self._stop.crash(interrupt)
        return True

    def _over(self, run: Run[ClaimT]) -> None:
        """Its handler has ended, or is never called."""
        assert run.task is not None
        del OWNERS[run.task]
        run.dismiss()
        key = run.key
        if self._going_on.get(key) is run:
            del self._going_on[key]
            # A look passed over this item. Without a wake, it would wait for the next poll.
            if self._withheld and key in self._withheld:
                self._withheld.discard(key)
                self._wake.set()
        if run.parked:
            self.parked -= 1  # It has no slot.
            return
        if not (run.is_settling_early or run.is_settled_early):
            self._free_slot(run)
            return
        # Asked before `handler_ended`, which forgets it: the slot would be freed twice.
        if self._early.has_slot(run):
            self._free_slot(run)
        if self._early.handler_ended(run):
            self.changed()  # No settlement follows that would report it.

    def park(self, run: Run[ClaimT], time_limit: float = math.inf) -> None:
        """Release the slot of a run until `unpark`: one of its tasks waits for other items, perhaps of this instance.

        Otherwise runs that wait could occupy all slots for ever. The run does not count as a suspect any more: it has
        reached a wait without killing this process. Call this once for each task that waits.
        """
        run.park(time_limit)
        if run.parked == 1 and not run.has_ended:
            self._free_slot(run)
            run.is_suspect = False
            self.parked += 1
        self.changed()

    def unpark(self, run: Run[ClaimT]) -> None:
        """End that wait: the run takes a slot again, even if none is free. No new run starts before one is free."""
        run.unpark()
        if not run.parked and not run.has_ended:
            self._take_slot(run)
            self.parked -= 1

    def _take_slot(self, run: Run[ClaimT]) -> None:
        self._slots.take(run.group, suspect=run.is_suspect)

    def _free_slot(self, run: Run[ClaimT]) -> None:
        # When the handler has ended, and before that is written: the next claim overlaps this settlement.
        self._slots.free(run.group, suspect=run.is_suspect)
        self._wake.make_room()

    def _may_start(self, run: Run[ClaimT]) -> bool:
        """Whether its handler may be called. If so, reports the start."""
        try:
            # In the run's own task: from here to the call of the handler there is no checkpoint. A cut sets the event
            # first, and cancels the runs a moment later: without this, a handler could start in between.
            if self._stop.cutting.is_set():
                run.cancel(CancelReason.SHUTDOWN)
            now = self._clock.current_time()
            if now - run.claimed_at > LATE:
                run.begin(now)  # The event loop was blocked since the claim. That took none of its time.
            if not run.may_start_at(now):
                return False
            self.start_lags.add(now - run.claimed_at)
            self._observer.run_started(run.claim)
        except Exception as bug:  # noqa: BLE001  # Not the handler's bug.
            self._broke(run, "a run could not be started", bug)
            return False
        return True

    def _conclude(self, run: Run[ClaimT], end: RunEnd) -> None:
        """Hands the end to the settler, unless this instance must not write it."""
        try:
            if run.is_settling_early or run.is_settled_early or run.is_gone or run.has_broken_engine or run.abandoned:
                self._conclude_unwritten(run, end)
                return
            # LOST without `is_gone`: the run missed its lease deadline, and the claim may still be ours. So its end is
            # written, as what else cancelled it, or as a release. If another instance has taken the item, the condition
            # of the write (the fence) matches nothing.
            missed_lease = end.reason is CancelReason.LOST
            if missed_lease:
                self._observer.claim_lost(run.claim)
                end = end._replace(reason=run.reason_except_lost or CancelReason.LOST)
            settlement = self._source.conclude(run.claim, end)
            # If the settler has crashed, the claim stays in `held`, and `shutdown.give_back` releases it.
            self._settler.settle(settlement, partial(self._settled, run, settlement, missed_lease), run)
        except BaseException as bug:  # noqa: BLE001  # A bug of ours, or a value of the handler that misbehaves.
            self._broke(run, "the end of a run could not be concluded", bug)

    def _broke(self, run: Run[ClaimT], what: str, bug: BaseException) -> None:
        """This run has crashed the engine. Its end is not written: it ends with its lease, which counts as a death.

        Released, the item would be claimed again at once, uncounted, and would end one engine after the other.
        """
        run.has_broken_engine = True
        end_for_bug(self._stop, what, bug)

    def _conclude_unwritten(self, run: Run[ClaimT], end: RunEnd) -> None:
        # The run has settled its own claim early, or is doing so: a second settlement would find the claim gone, and
        # report it as lost.
        if run.is_settling_early:
            self._early.put_off(run, end)
        elif run.is_settled_early:
            if not run.is_gone and is_a(end.error, Exception):
                self._observer.failed_after_settlement(run.claim, cast("Exception", end.error))
        elif run.is_gone:
            # Another instance may have the item: its settlement must stand, so nothing is written.
            self._lost(run)
        # What is left: it has broken the engine, or its thread goes on. Released now, the item would run elsewhere
        # beside that thread. The engine, and with it the heartbeat, is about to end: then this claim ends with its
        # lease.

    async def settle_early(self, run: Run[ClaimT], settlement: SettlementT) -> bool | None:
        """Settles the claim of a run whose handler goes on; see `EarlySettlements.settle`."""
        return await self._early.settle(run, settlement)

    async def settle_by(
        self, run: Run[ClaimT], write: Callable[[], Awaitable[tuple[SettlementT, bool | None]]]
    ) -> bool | None:
        """Settles the claim of a run by a write of the source's own; see `EarlySettlements.settle_by`."""
        return await self._early.settle_by(run, write)

    def _settled(self, run: Run[ClaimT], settlement: SettlementT, is_reported: bool, written: bool | None) -> None:  # noqa: FBT001
        try:
            if written:
                # First: the claim is not held any more, whatever the observer does.
                self._let_go(run)
                self._observer.run_settled(settlement)
            else:
                self._lost(run, is_reported=is_reported)
        except Exception as bug:  # noqa: BLE001  # The settler calls this: it must go on with the rest of the batch.
            end_for_bug(self._stop, "the end of a run could not be reported", bug)

    def _lost(self, run: Run[ClaimT], *, is_reported: bool = False) -> None:
        self._let_go(run)
        if not is_reported:
            self._observer.claim_lost(run.claim)

    def _let_go(self, run: Run[ClaimT]) -> None:
        del self.held[run]
        if self._changed is not None:
            self.changed()
        if self._wakes_when_settled:
            self._wakes_when_settled = False
            self._wake.set()


def _works_on_its_item(run: Run[ClaimT]) -> bool:
    # A run that has settled its claim early is done with the item, although its handler goes on. But if its claim is
    # gone, that settlement was not written: the handler still works on the item, and a second run must not begin.
    return run.is_gone or not run.is_settled_early


def _end_unbegun(run: Run[ClaimT]) -> RunEnd:
    """The end of a run whose handler was not called, or that was cancelled before it had begun."""
    return RunEnd.by_cancellation(run.reason, has_begun=run.has_begun)
