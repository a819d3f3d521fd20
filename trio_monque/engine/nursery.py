"""The engine: makes its parts, and nests their nurseries. The nesting is the order of the shutdown.

    sentinel                                                waits outside; turns a cancellation or a Ctrl-C into a cut
    watch: watchdog, report of unending runs                until all has ended
    box, shielded: the hard end is its deadline
    └── services: settler, heartbeat, releaser, watcher     until the last run is settled
        └── running: one cancel scope per run; one task, too, once its handler waits (`shared_tasks`)
            └── intake: claimer, waker, reaper, chores      ends first

Each part outlives the parts that use it, because its nursery is further out. `shutdown` has the timeline: drain, cut,
clean-ups over, abandonment, hard end. Each loop runs in a `guard`, so that its crash does not cancel its siblings.

The engine knows neither jobs nor MongoDB: it calls its `Sources` (see `source`), and reports to its `Observer`.
`loop_time` says what virtual time is, and how loops wait in it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Sequence, Set
from functools import partial
from typing import Final, Generic, TypeVar

import trio

from ..foreign_errors import unwrapped
from ..loop_time import loop_time
from ..loops import TrioLoop
from .claimer import Claimer
from .demand import KnownItem
from .engine_limits import EngineLimits
from .guard import Stop, cause_of, guard, guard_all
from .handler_tasks import TRIO_TASKS, HandlerTasks
from .heartbeat import Heartbeat
from .lease import LeaseTerms
from .loop_blocks import LoopBlock, latest
from .observer import LoopObserver, Observer
from .orphaned_claims import OrphanReleaser
from .pauses import Pauses
from .progress import Progress, Spread
from .reaper import Reaper
from .run import Run
from .runner import Runner
from .settler import Settler
from .shutdown import Shutdown, give_back
from .slots import Slots
from .source import Control, HintStream, Sources
from .vitals import Vitals
from .waker import Waker, WakeSignal
from .watchdog import Watchdog
from .watcher import Watcher

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")
BatchT = TypeVar("BatchT")
SeenT = TypeVar("SeenT")
RescuedT = TypeVar("RescuedT")

Loop = Callable[[], Awaitable[None]]

BROKEN_NURSERY: Final = "a handler cancelled the nursery that its run belongs to"


class Engine(Generic[ClaimT, SettlementT, BatchT, SeenT, RescuedT]):
    """Claims and runs the items of its sources until its end is asked for (`stop`). It is their `Control`.

    Attributes:
        sources: What it claims, runs and settles.
        stop: How its end is asked for.
        slots: How much may run, by group.
        wake: What the claimer waits for.
        waker, reaper: To make it look for due items, or for dead claims.
        watchdog: Watches the event loop that it works on.
        vitals: Whether it makes progress.
        handlers: Where its handlers run.
    """

    def __init__(
        self,
        connect: Callable[[Control[ClaimT, SettlementT]], Sources[ClaimT, SettlementT, BatchT, SeenT, RescuedT]],
        observer: Observer[ClaimT, SettlementT, RescuedT],
        limits: EngineLimits,
        stream: HintStream[ClaimT] | None = None,
        handlers: HandlerTasks = TRIO_TASKS,
    ) -> None:
        """To be made in the trio run that it works in. Calls `connect` once: it makes the sources for their control."""
        self.handlers = handlers
        self.stop = Stop()
        self.wake = WakeSignal()
        self.slots = Slots(limits.concurrency, handlers)
        self._services: list[tuple[Loop, Progress]] = []
        self._chores: list[tuple[Loop, Progress]] = []
        self._ends_of_services: list[Loop] = []
        self._limits = limits
        self._time = loop_time()
        self._loop = TrioLoop()
        sources = self.sources = connect(self)
        pauses = Pauses(sources.is_transient)
        beat = limits.heartbeat_interval
        self._settler = Settler(sources.settlements, observer, pauses, is_short_of_time=self.stop.cutting.is_set)
        terms = LeaseTerms(beat, limits.cleanup_timeout)
        runner = self._runner = Runner(sources.runs, observer, self.slots, self._settler, self.wake, self.stop, terms)
        poll_interval = limits.poll_interval
        if limits.has_local_wakeups:  # Then no polls in virtual time.
            poll_interval = self._time.poll_interval(poll_interval)
        self.waker = Waker(
            sources.claims,
            observer,
            self.wake,
            pauses,
            poll_interval=poll_interval,
            transaction_interval=limits.poll_interval,
        )
        self.watchdog = Watchdog(lambda: runner.running, self.stop.draining.is_set, self.waker.look)
        self.vitals = Vitals(self.stop, self._runner, self.watchdog, limits.stuck_after)
        self._claimer = Claimer(sources.claims, observer, self.slots, self._runner, self.waker, self.stop, pauses)
        self.reaper = Reaper(
            sources.rescues,
            observer,
            self._runner.claims_to_renew,
            pauses,
            interval=beat,
            has_local_wakeups=limits.has_local_wakeups,
        )
        self._heartbeat = Heartbeat(
            sources.renewals, observer, self._runner, pauses, beat, unrenewed_from=self.reaper.unrenewed_from
        )
        self._releaser = OrphanReleaser(sources.orphans, self._runner, pauses, beat)
        self._watcher = None if stream is None else self._watcher_of(stream, observer)
        self._box = trio.CancelScope(shield=True)
        self._is_broken = False
        self._shutdown = Shutdown(self.stop, limits, observer, runner, self.reaper, self.vitals, self._box)

    def _watcher_of(self, stream: HintStream[ClaimT], observer: LoopObserver) -> Watcher[ClaimT, SettlementT]:
        return Watcher(
            stream,
            observer,
            self._heartbeat,
            self._claimer,
            self.waker,
            poll_interval=self._limits.poll_interval,
            safety_poll_interval=self._limits.safety_poll_interval,
        )

    @property
    def loop_blocked(self) -> int:
        """How many times an event loop was blocked for longer than a second: this one, or that of the handlers."""
        return self.watchdog.blocks.count + self.handlers.blocks.count

    @property
    def last_block(self) -> LoopBlock | None:
        """The last of these times; None if there was none."""
        return latest(self.watchdog.blocks, self.handlers.blocks)

    @property
    def overdue_threads(self) -> int:
        """How many cancelled runs hold their slots because their threads go on. May be asked for in any thread."""
        return self._runner.overdue_threads

    @property
    def overdue(self) -> Sequence[ClaimT]:
        """The claims of these runs."""
        return [run.claim for run in self._runner.overdue]

    @property
    def unfinished(self) -> Sequence[ClaimT]:
        """The held claims; after the end, those whose runs were neither settled nor given back."""
        return tuple(run.claim for run in self._runner.held)

    def die(self) -> None:
        """Ends everything at once, as a kill would: nothing is settled or given back. For tests."""
        # Everything that waits is cut loose before the box is cancelled: a wait for a thread is shielded from that.
        self.stop.cut("it was killed")
        self._runner.abandon_all()
        self.reaper.end_grace()
        self._box.cancel(reason="killed")

    @property
    def number_held(self) -> int:
        """How many claims are held, see `Runner.held`."""
        return len(self._runner.held)

    @property
    def number_outliving(self) -> int:
        """How many handlers go on after their claims were settled. They have slots."""
        return self._runner.number_outliving

    @property
    def is_at_work(self) -> bool:
        """Whether a claim is held, or a handler goes on after its claim was settled."""
        return self._runner.is_at_work

    @property
    def start_lags(self) -> Spread:
        """Seconds from asking for a claim to the start of its handler."""
        return self._runner.start_lags

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is in flight."""
        return self._claimer.is_claiming

    # --- Further loops, added before it runs ---
    # No job depends on them: one that fails for long is listed with the other loops, and does not make it unhealthy.

    def add_service(self, run: Loop, progress: Progress, end: Loop | None = None) -> None:
        """Runs this loop too, until the last run is settled. Then calls `end`, which must end soon."""
        self._services.append((run, progress))
        if end is not None:
            self._ends_of_services.append(end)

    def add_chore(self, run: Loop, progress: Progress) -> None:
        """Runs this loop too, as long as the engine claims. Then cancels it, and it must end soon."""
        self._chores.append((run, progress))

    # --- The control of the sources ---

    async def settle_early(self, run: Run[ClaimT], settlement: SettlementT) -> bool | None:
        """Settles the claim of a run whose handler goes on; see `Runner.settle_early`."""
        return await self._runner.settle_early(run, settlement)

    async def settle_by(
        self, run: Run[ClaimT], write: Callable[[], Awaitable[tuple[SettlementT, bool | None]]]
    ) -> bool | None:
        """Settles the claim of a run by a write of the source's own; see `Control.settle_by`."""
        # In this order: no renewal begins any more, those under way are answered, and one last renewal gives the write
        # a whole lease. A renewal beside the transaction would conflict with it, each time.
        with self._heartbeat.without_renewals(run):
            await self._heartbeat.wait_answered(run)
            await self._heartbeat.renew_alone(run)
            return await self._runner.settle_by(run, write)

    def resume_renewals(self, run: Run[ClaimT]) -> None:
        """The write of `settle_by` will not be made; see `Control.resume_renewals`."""
        self._heartbeat.resume_renewals(run)

    def park(self, run: Run[ClaimT], time_limit: float) -> None:
        """Release the slot of a run: one of its tasks waits for other items; see `Runner.park`."""
        self._runner.park(run, time_limit)

    def unpark(self, run: Run[ClaimT]) -> None:
        """End that wait; see `Runner.unpark`."""
        self._runner.unpark(run)

    def changed(self) -> None:
        """A run may do nothing but wait from now on; see `Runner.changed`."""
        self._runner.changed()

    @property
    def number_parked(self) -> int:
        """How many runs wait for other items, without a slot."""
        return self._runner.parked

    def expect(self, moment: float, item: KnownItem | None = None) -> None:
        """Something is due at that moment; see `Waker.expect`."""
        self.waker.expect(moment, item)

    def look(self) -> None:
        """Something may be due; see `Waker.look`."""
        self.waker.look()

    def look_for_requests(self) -> None:
        """Look whether cancellations were requested; see `Heartbeat.beat_now`."""
        self._heartbeat.beat_now()

    def end_with(self, error: Exception) -> None:
        """Ends in order, and raises this; see `Stop.end_with`."""
        self.stop.end_with(error)

    def is_draining(self) -> bool:
        """Whether the end was asked for: no work begins any more."""
        return self.stop.draining.is_set()

    def is_idle(self) -> bool:
        """Whether no claim is held, and none is orphaned."""
        # An orphaned claim may still be ours in the database: others must go on watching it.
        return not (self._runner.held or self.sources.orphans.has_orphaned_claims())

    def waits_for(self) -> Set[Hashable]:
        """What its runs wait for, if every run does nothing but wait for other items; otherwise nothing."""
        if self.sources.orphans.has_orphaned_claims():
            return frozenset()
        waits: set[Hashable] = set()
        for run in tuple(self._runner.held):
            # Nothing is left for which it waits: it is about to go on.
            if run.has_ended or not (items := {item for ask in run.waits_for for item in ask()}):
                return frozenset()
            waits |= items
        return waits

    def post(self, function: Callable[[], object]) -> None:
        """Calls this on the loop of the engine, from any thread; see `Loop.post`."""
        self._loop.post(function)

    # --- From start to end ---

    async def wait_changed(self) -> None:
        """Returns after the next claim, wait, settlement or release, and after an attempt at a claim."""
        await self._runner.wait_changed()

    async def run(self, *, started: Callable[[], None]) -> None:
        """Returns when everything has ended; `stop.crashes` has what crashed. Calls `started` when it works.

        Cancelled or interrupted, it cuts, and ends within `cleanup_timeout` plus `HARD_END_AFTER` (see `shutdown`).
        """
        ended = trio.Event()
        async with trio.open_nursery() as outside:
            # The sentinel. Only this task meets a cancellation from outside and a Ctrl-C, and it does nothing that they
            # could break. Without it, a cancellation could strand a claim between any two steps of a loop.
            try:
                outside.start_soon(self._run_boxed, ended, started)
                outside.start_soon(self._watch, ended)
                await ended.wait()
            except BaseException as error:
                self.stop.cut(cause_of(error))
                raise

    @trio.lowlevel.enable_ki_protection
    async def _watch(self, ended: trio.Event) -> None:
        # Beside the box: what outlasts the hard end must be logged after it.
        with trio.CancelScope(shield=True) as watching:
            async with trio.open_nursery() as nursery:
                if not self._time.is_event_driven:
                    nursery.start_soon(self.watchdog.run)
                nursery.start_soon(self._shutdown.report_unending_runs, self.handlers.frames_of)
                await ended.wait()
                watching.cancel(reason="all has ended")

    @trio.lowlevel.enable_ki_protection
    async def _run_boxed(self, ended: trio.Event, started: Callable[[], None]) -> None:
        try:
            with self._box:
                try:
                    await self._run_nested(started)
                except BaseException as error:
                    if self._box.cancel_called:
                        raise  # The hard end, or `die`. Nothing that came at the same moment matters more.
                    # No guard catches a handler that breaks its own task, by a nursery that it never closes, for
                    # example.
                    self.stop.crash(unwrapped(error) if isinstance(error, BaseExceptionGroup) else error)
                if self._is_broken and not self.stop.crashes:
                    self.stop.crash(RuntimeError(BROKEN_NURSERY))
                await give_back(self.sources.runs, self.sources.settlements, self._runner)
        finally:
            self.vitals.end()
            ended.set()

    async def _run_nested(self, started: Callable[[], None]) -> None:
        async with trio.open_nursery() as services:
            watch = self.vitals.watch
            unrenewed = partial(self.vitals.unrenewed, self._heartbeat.progress)
            beats = watch(
                self._heartbeat.progress, stuck_after=self._limits.heartbeat_interval, other_complaint=unrenewed
            )
            # These outlive the intake and the runs: until the last settlement is written, claims must be renewed and
            # ends written. The order of the nurseries is the order of the end: the intake ends first, then the runs,
            # then these.
            services.start_soon(guard, self.stop, self._settler.run, watch(self._settler.progress))
            services.start_soon(guard, self.stop, self._heartbeat.run, beats)
            services.start_soon(guard, self.stop, self._releaser.run, watch(self._releaser.progress))
            services.start_soon(self._shutdown.run)
            if self._watcher is not None:
                # Not in the intake: requests to cancel must arrive until the last run is settled. And never stuck:
                # while it fails, polls and heartbeats do its work.
                progress = watch(self._watcher.progress, stuck_after=math.inf)
                services.start_soon(guard, self.stop, self._watcher.run, progress)
            for service, progress in self._services:
                services.start_soon(guard, self.stop, service, watch(progress, stuck_after=math.inf))
            async with trio.open_nursery() as running, trio.open_nursery() as intake:
                intake.start_soon(guard, self.stop, self.waker.run, watch(self.waker.progress))
                if self._limits.rescues:
                    intake.start_soon(guard, self.stop, self.reaper.run, watch(self.reaper.progress))
                for chore, progress in self._chores:
                    intake.start_soon(guard, self.stop, chore, watch(progress, stuck_after=math.inf))
                intake.start_soon(self._wake_to_end)
                # The claimer is not cancelled with the rest of the intake: a claim in flight may be granted, and be
                # given back.
                claim, claimed = partial(self._claimer.run, running), partial(_end_intake, intake.cancel_scope)
                intake.start_soon(guard, self.stop, claim, watch(self._claimer.progress), claimed)
                self.vitals.begin()
                started()
            # Here all handlers have ended. Settler and heartbeat go on until the last settlement is written: a claim
            # that is neither settled nor renewed would be run again by another instance.
            await self._settler.wait_all_written()
            async with trio.open_nursery() as last:
                if self._watcher is not None:
                    last.start_soon(self._watcher.end)
                last.start_soon(guard_all, self.stop, self._ends_of_services)
                await guard(self.stop, self._releaser.do_last)
            services.cancel_scope.cancel(reason="the last run is settled")

    @trio.lowlevel.enable_ki_protection
    async def _wake_to_end(self) -> None:
        try:
            await self.stop.draining.wait()
        finally:
            # The intake ends only after a drain. Cancelled before one, it is cancelled with the nursery of the runs,
            # and a handler has broken that. The timeline must begin at once: a run that waits for a thread would
            # otherwise hold the engine without a hard end.
            if not self.stop.draining.is_set():
                self._is_broken = True
                self.stop.cut(BROKEN_NURSERY)
        self.wake.set()  # The claimer may wait for work.


def _end_intake(intake: trio.CancelScope) -> None:
    intake.cancel(reason="nothing more is claimed")
