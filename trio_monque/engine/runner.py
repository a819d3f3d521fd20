"""One claim's way: start, run inside its scope, conclude, settle.

Races that this file closes:

- A claim is held, and so renewed, from the moment it is granted until its settlement is written: before the handler
  starts and after it has ended, too.
- Two claims on one item, because another instance freed the item while our handler goes on. `_going_on` has the first
  run of each item; a later one does not start, and is given back.
- The end is asked for between the claim and the start. `_may_start` looks at the stop and at the run's own reason in
  the task of the run: from there to the call of the handler there is no checkpoint.
- The run has fenced itself, and its claim turns out to be ours. Its end is written all the same: as what it was
  cancelled for before, or as a release. If the claim is another's, the fenced write finds nothing.
- The claim is known to be another's. Nothing is written: the settlement of the next holder must stand.
- A bug in the source or the observer at any of these points ends the engine in order. It must not end as the failure of
  the job, and must not stop the settler.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Generic, TypeVar

import trio

from ..grace import clear_grace, set_grace
from ..log import logger_of
from .early_settlements import EarlySettlements
from .exceptions import LeakedCancellationError, interrupt_in, without_cancellations
from .guard import Stop
from .lease import LeaseTerms
from .observer import RunObserver
from .progress import Spread
from .run import Run
from .run_end import CancelReason, RunEnd
from .settler import SettlementQueue
from .slots import Slots
from .source import RunSource
from .wake import WakeSignal

logger = logger_of("engine")

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")


class Runner(Generic[ClaimT, SettlementT]):
    """Starts runs and sees them through to their settlement.

    Attributes:
        held: The runs whose claims are ours: running, or their settlement not yet acknowledged. Renewed
            by the heartbeat; those left at the end were not settled.
        start_lags: Seconds from asking for a claim to the start of its handler.
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
        # An ordered set: what happens to all of them happens in the order in which they were claimed.
        self.held: dict[Run[ClaimT], None] = {}
        # By their items, whose claims others may take and free while our handlers go on. At most one runs of each.
        self._going_on: dict[Hashable, Run[ClaimT]] = {}
        self._withheld: set[Hashable] = set()
        self.start_lags = Spread()
        self._changed: trio.Event | None = None  # Made by the task that waits for it: mostly none does.
        self._wakes_when_settled = False
        self._early: EarlySettlements[ClaimT, SettlementT] = EarlySettlements(
            settler,
            terms,
            free_slot=self._free_slot,
            take_slot=self._take_slot,
            settled=self._settled,
            conclude=self._conclude_with,
        )

    def wake_when_settled(self) -> None:
        """The claimer waits for the settler: it is woken by the next settlement."""
        self._wakes_when_settled = True

    def changed(self) -> None:
        """Wakes the tasks that wait for a claim, a settlement, or an attempt at one."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def wait_changed(self) -> None:
        """Returns after the next change."""
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()

    def hold(self, claim: ClaimT, sent: float) -> Run[ClaimT]:
        """From now on the claim, which was asked for at that moment, is renewed, and takes a slot."""
        run = Run(
            claim,
            self._source.time_limit(claim),
            terms=self._terms,
            sent=sent,
            hold_limit=self._source.hold_limit(claim),
        )
        self.held[run] = None
        key = self._source.key_of(claim)
        if not self._goes_on(key):
            self._going_on[key] = run
        self._take_slot(run)
        self.changed()
        return run

    def has_another_run(self, run: Run[ClaimT]) -> bool:
        """Whether an earlier run of its item goes on: this one must not start."""
        return self._going_on.get(self._source.key_of(run.claim)) is not run

    def withholds(self, key: Hashable) -> bool:
        """Whether a run of this item goes on, so that it must not be claimed. Then the claimer looks at its end."""
        if not self._goes_on(key):
            return False
        self._withheld.add(key)
        return True

    def _goes_on(self, key: Hashable) -> bool:
        run = self._going_on.get(key)
        # Who has settled its claim early has ended its work on the item, whatever its handler does from then on.
        return run is not None and (run.is_gone or not run.is_settled)

    def cancel_all(self, reason: CancelReason) -> tuple[ClaimT, ...]:
        """Cancels each run's own scope, never their nursery: a run must live on to settle.

        Returns the claims of those that were not cancelled already.
        """
        running = self.running
        hit = tuple(run for run in running if run.reason is None and not run.is_settled)
        for run in running:
            run.cancel(reason)
        return tuple(run.claim for run in hit)

    def abandon_threads(self) -> None:
        """Ends the waits for threads that have not ended."""
        for run in self.running:
            run.shielded_wait.cancel(reason="the scheduler's hard end")

    def abandon_all(self) -> None:
        """Ends every wait that a cancellation from outside would not reach."""
        self.abandon_threads()
        for run in self.running:
            run.end_cleanups()

    def claims_to_renew(self) -> Sequence[ClaimT]:
        """Of all that is held: a run that has taken longer than any may is renewed no longer."""
        return [run.claim for run in self.held if run.is_held]

    @property
    def is_at_work(self) -> bool:
        """Whether anything is held, or some handler goes on after its claim was settled."""
        return bool(self.held or self._early.outliving)

    @property
    def running(self) -> Sequence[Run[ClaimT]]:
        """Those whose handlers have not ended."""
        held = (*tuple(self.held), *tuple(self._early.outliving))  # The watchdog's thread asks, too.
        return tuple(run for run in held if not run.has_ended)

    # Guarded as the loops are, and protected from Ctrl-C, by itself: a coroutine around each run would be a tenth of
    # what a running job takes.
    @trio.lowlevel.enable_ki_protection
    async def see_through(self, run: Run[ClaimT]) -> None:
        """From the start of the handler to its verdict, in a task of its own. Never raises what a handler raises.

        A bug of ours, or of the source, ends the scheduler in order.
        """
        # What is named or nested here is held twice for as long as the handler runs, so the rest is in functions.
        value: object = None
        if not self._starts(run, trio.lowlevel.current_task()):
            return
        try:
            with run.scope:
                value = await self._source.execute(run)
        except BaseException as raised:
            # Whatever it is, the job's fate is decided by it, and no other's.
            if not self._failed(run, raised):
                raise
        else:
            self._over(run)
            self._conclude(run, None, value)

    def _starts(self, run: Run[ClaimT], task: trio.lowlevel.Task) -> bool:
        """Whether its handler is to be called in this task; where it is not, the run is over."""
        run.task = task
        set_grace(task, run)
        if self._may_start(run):
            return True
        self._over(run)
        self._conclude(run, None, None, started=False)
        return False

    def _failed(self, run: Run[ClaimT], raised: BaseException) -> bool:
        """The end of a run whose handler raised; False where that end decides nothing."""
        try:
            error = without_cancellations(raised)
        finally:
            self._over(run)
        if isinstance(error, LeakedCancellationError) and trio.current_effective_deadline() == -math.inf:
            return False  # Not leaked: the engine's hard end. Nothing waits for this run any more.
        self._conclude(run, error, None)
        if (interrupt := interrupt_in(error)) is not None:
            self._stop.crash(interrupt)
        return True

    def _over(self, run: Run[ClaimT]) -> None:
        """Its handler has ended, or is never called."""
        assert run.task is not None
        clear_grace(run.task)
        run.dismiss()
        key = self._source.key_of(run.claim)
        if self._going_on.get(key) is run:
            del self._going_on[key]
            if key in self._withheld:
                self._withheld.discard(key)
                self._wake.set()
        if self._early.has_slot(run):
            self._free_slot(run)
        if self._early.handler_ended(run):
            self.changed()

    def _take_slot(self, run: Run[ClaimT]) -> None:
        self._slots.take(self._source.group_of(run.claim), suspect=self._source.is_suspect(run.claim))

    def _free_slot(self, run: Run[ClaimT]) -> None:
        """Free at the verdict, so that the next claim overlaps this settlement."""
        self._slots.free(self._source.group_of(run.claim), suspect=self._source.is_suspect(run.claim))
        self._wake.make_room()

    def _may_start(self, run: Run[ClaimT]) -> bool:
        """Whether it is not cancelled yet. Then the start is reported; if the report fails, nothing starts any more."""
        try:
            if self._stop.cutting.is_set():
                run.cancel(CancelReason.SHUTDOWN)
            if run.reason is not None:
                return False
            self.start_lags.add(trio.current_time() - run.claimed_at)
            self._observer.run_started(run.claim)
        except Exception as bug:  # noqa: BLE001  # Not the handler's: it would be its job's failure.
            self._crash("a run could not be started", bug)
            return False
        return True

    def _crash(self, what: str, bug: Exception) -> None:
        logger.error("%s: the scheduler ends", what, exc_info=bug)
        self._stop.crash(bug)

    def _conclude(self, run: Run[ClaimT], error: BaseException | None, value: object, *, started: bool = True) -> None:
        self._conclude_with(run, run.ended(error, value) if started else RunEnd.by_cancellation(run.reason))

    def _conclude_with(self, run: Run[ClaimT], end: RunEnd) -> None:
        try:
            self._hand_over(run, end)
        except Exception as bug:  # noqa: BLE001  # Not the handler's.
            self._crash("the end of a run could not be concluded", bug)

    def _hand_over(self, run: Run[ClaimT], end: RunEnd) -> None:
        """To the settler, unless this instance must not write the end."""
        if self._early.decides(run, end):
            return
        if run.is_gone:
            self._lost(run)
        elif run.abandoned:
            return  # Its thread runs on: the claim is kept, and ends with its lease.
        else:
            fenced = end.reason is CancelReason.LOST
            if fenced:
                # It fenced itself. Where the claim turns out to be still ours, its end is written: it is given back,
                # or what it had been cancelled for before.
                self._observer.claim_lost(run.claim)
                end = end._replace(reason=run.reason_but_lost or CancelReason.LOST)
            settlement = self._source.conclude(run.claim, end)
            # Where the settler is gone it stays held: the engine's last act gives it back.
            self._settler.settle(settlement, partial(self._settled, run, settlement, fenced))

    async def settle_early(self, run: Run[ClaimT], settlement: SettlementT) -> bool | None:
        """Settles the claim of a run whose handler goes on; see `EarlySettlements.settle`."""
        return await self._early.settle(run, settlement)

    def _settled(self, run: Run[ClaimT], settlement: SettlementT, is_reported: bool, written: bool | None) -> None:  # noqa: FBT001
        try:
            if written:
                self._let_go(run)
                self._observer.run_settled(settlement)
            else:
                self._lost(run, is_reported=is_reported)
        except Exception as bug:  # noqa: BLE001  # Not the settler's: it goes on, and the other ends are reported.
            self._crash("the end of a run could not be reported", bug)

    def _lost(self, run: Run[ClaimT], *, is_reported: bool = False) -> None:
        self._let_go(run)
        if not is_reported:
            self._observer.claim_lost(run.claim)

    def _let_go(self, run: Run[ClaimT]) -> None:
        del self.held[run]
        self.changed()
        if self._wakes_when_settled:
            self._wakes_when_settled = False
            self._wake.set()
