"""The nesting, which is the order of shutdown. Wiring only.

Each part outlives those that use it, because its nursery is further out:

- The intake ends first. The claimer is asked to end, not cancelled: a claim in flight may be granted, and must be given
  back. The waker and the reaper are cancelled when the claimer has ended.
- The runs end next. A cut cancels the scope of each run and not their nursery: a run must live on to its verdict.
- The settler, the heartbeat, the releaser and the watcher live until the last settlement is written: an unsettled claim
  must be renewed, or another instance runs its job again, and a request to cancel must still be heard.
- All of it is shielded. A cancellation from outside, or Ctrl-C, reaches only the sentinel, which holds nothing, and
  which turns it into a cut. So no cancellation can strand a claim between two steps.
- A crash of one loop cancels no sibling (see `guard`): the settler is a sibling of them all.
- The box around everything has the deadline of the hard end. The watchdog stands beside the box: it names what does
  not end even then.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

import trio

from ..log import logger_of
from ..loop_time import loop_time
from ..trio_thread import TrioThread
from .claimer import Claimer
from .demand import KnownItem
from .exceptions import unwrapped
from .guard import Stop, cause_of, guard, guard_all
from .health import Vitals
from .heartbeat import Heartbeat
from .lease import LeaseTerms
from .limits import EngineLimits
from .observer import Observer
from .orphaned_claims import OrphanReleaser
from .pauses import Pauses
from .progress import Progress, Spread
from .reaper import Reaper
from .run import Run
from .run_end import CancelReason, RunEnd
from .runner import Runner
from .settler import Settler
from .slots import Slots
from .source import HintStream, Source
from .wake import WakeSignal
from .waker import Waker
from .watchdog import Watchdog, name_the_unwilling
from .watcher import Watcher

logger = logger_of("engine")

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")
BatchT = TypeVar("BatchT")
SeenT = TypeVar("SeenT")
RescuedT = TypeVar("RescuedT")

Loop = Callable[[], Awaitable[None]]

HARD_BOUND: Final = 1.5
"""Seconds after the clean-ups in which the rest must have ended: settlements, releases, waits for threads."""


class Engine(Generic[ClaimT, SettlementT, BatchT, SeenT, RescuedT]):
    """Claims and runs what a source has, until its end is asked for. It is the `Control` of its source.

    shielded; a sentinel outside turns cancellation into a cut
    └── services: settler, heartbeat, releaser, watcher   live until the last run is settled
        └── running: one task, one cancel scope per run
            └── intake: claimer, waker, reaper, chores     ends first
    """

    def __init__(
        self,
        source: Source[ClaimT, SettlementT, BatchT, SeenT, RescuedT],
        observer: Observer[ClaimT, SettlementT, RescuedT],
        limits: EngineLimits,
        stream: HintStream[ClaimT] | None = None,
    ) -> None:
        """Attaches itself to the source. Made in the trio run that it works in."""
        self.stop = Stop()
        self.wake = WakeSignal()
        self.slots = Slots(limits.concurrency)
        self._services: list[tuple[Loop, Progress]] = []
        self._chores: list[tuple[Loop, Progress]] = []
        self._ends: list[Loop] = []
        self._source = source
        self._observer = observer
        self._limits = limits
        self._time = loop_time()
        pauses = Pauses()
        beat = limits.heartbeat_interval
        self._thread = TrioThread()
        self._settler = Settler(source, observer, pauses, is_short_of_time=self.stop.cutting.is_set)
        terms = LeaseTerms(beat, limits.cleanup_timeout)
        runner = self._runner = Runner(source, observer, self.slots, self._settler, self.wake, self.stop, terms)
        poll_interval = limits.poll_interval
        if limits.is_announced:
            poll_interval = self._time.poll_interval(poll_interval)
        self.waker = Waker(
            source,
            observer,
            self.wake,
            pauses,
            poll_interval=poll_interval,
            transaction_interval=limits.poll_interval,
        )
        self.watchdog = Watchdog(lambda: runner.running, self.stop.draining.is_set, self.waker.look)
        self.vitals = Vitals(self.stop, self._runner, self.watchdog, limits.stuck_after)
        self._claimer = Claimer(source, observer, self.slots, self._runner, self.wake, self.waker, self.stop, pauses)
        self.reaper = Reaper(
            source,
            observer,
            self._runner.claims_to_renew,
            pauses,
            interval=beat,
            is_announced=limits.is_announced,
        )
        self._heartbeat = Heartbeat(
            source, observer, self._runner, pauses, beat, unrenewed_from=self.reaper.unrenewed_from
        )
        self._releaser = OrphanReleaser(source, self._runner, pauses, beat)
        self._watcher = None if stream is None else self._watcher_of(stream)
        self._box = trio.CancelScope(shield=True)
        source.attach(self)

    def _watcher_of(self, stream: HintStream[ClaimT]) -> Watcher[ClaimT, SettlementT]:
        return Watcher(
            stream,
            self._source,
            self._observer,
            self._runner,
            self._claimer,
            self.waker,
            poll_interval=self._limits.poll_interval,
            safety_poll_interval=self._limits.safety_poll_interval,
        )

    @property
    def unfinished(self) -> Sequence[ClaimT]:
        """The claims that are held; after the end, those whose runs were neither settled nor given back."""
        return tuple(run.claim for run in self._runner.held)

    def die(self) -> None:
        """Ends everything at once, as a kill would: nothing is settled, nothing given back. For tests of that."""
        self.stop.cut("it was killed")
        self._runner.abandon_all()
        self.reaper.end_grace()
        self._box.cancel(reason="killed")

    @property
    def held(self) -> int:
        """How many claims are held."""
        return len(self._runner.held)

    @property
    def is_at_work(self) -> bool:
        """Whether anything is held, or some handler goes on after its claim was settled."""
        return self._runner.is_at_work

    @property
    def start_lags(self) -> Spread:
        """Seconds from asking for a claim to the start of its handler."""
        return self._runner.start_lags

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is in flight."""
        return self._claimer.is_claiming

    # --- Loops that others give it, before it runs ---
    # Jobs need none of them: one that fails for long is listed with the other loops, and makes nothing unhealthy.

    def add_service(self, run: Loop, progress: Progress, end: Loop | None = None) -> None:
        """Runs this, too, until the last run is settled; then `end` is called, which must be bounded."""
        self._services.append((run, progress))
        if end is not None:
            self._ends.append(end)

    def add_chore(self, run: Loop, progress: Progress) -> None:
        """Runs this, too, for as long as claims are made. Then it is cancelled, and must end."""
        self._chores.append((run, progress))

    # --- The control of the source ---

    async def settle_early(self, run: Run[ClaimT], settlement: SettlementT) -> bool | None:
        """Settles the claim of a run whose handler goes on; see `Runner.settle_early`."""
        return await self._runner.settle_early(run, settlement)

    def expect(self, moment: float, item: KnownItem | None = None) -> None:
        """Something is due at that moment; see `Waker.expect`."""
        self.waker.expect(moment, item)

    def look(self) -> None:
        """Something may be due; see `Waker.look`."""
        self.waker.look()

    def end_with(self, error: Exception) -> None:
        """Ends in order, and raises this; see `Stop.end_with`."""
        self.stop.end_with(error)

    def is_draining(self) -> bool:
        """Whether the end was asked for: no work begins any more."""
        return self.stop.draining.is_set()

    def is_idle(self) -> bool:
        """Whether nothing runs, and nothing waits to be settled or released."""
        return not (self._runner.held or self._source.has_orphaned_claims())

    def on_trio_thread(self, function: Callable[[], None]) -> None:
        """Calls this on the thread of the run, from any thread; see `TrioThread.call`."""
        self._thread.call(function)

    # --- Its life ---

    async def wait_changed(self) -> None:
        """Returns after the next claim, settlement or release, and after an attempt at a claim."""
        await self._runner.wait_changed()

    async def run(self, *, started: Callable[[], None]) -> None:
        """Returns when everything has ended; what crashed is in `stop.crashes`. Calls `started` when it works.

        Cancelled or interrupted, it cuts, and ends within `cleanup_timeout` plus `HARD_BOUND`.
        """
        ended = trio.Event()
        async with trio.open_nursery() as outside:
            outside.start_soon(self._run_boxed, ended, started)
            outside.start_soon(self._watch, ended)
            # The sentinel: it waits where cancellation and Ctrl-C arrive, and holds nothing that they could break.
            try:
                await ended.wait()
            except BaseException as error:
                self.stop.cut(cause_of(error))
                raise

    @trio.lowlevel.enable_ki_protection
    async def _watch(self, ended: trio.Event) -> None:
        """Until all has ended: beyond the hard end, which cancels everything else, something may have to be named."""
        with trio.CancelScope(shield=True) as watching:
            async with trio.open_nursery() as nursery:
                if not self._time.is_event_driven:
                    nursery.start_soon(self.watchdog.run)
                nursery.start_soon(self._name_the_unwilling)
                await ended.wait()
                watching.cancel(reason="all has ended")

    @trio.lowlevel.enable_ki_protection
    async def _name_the_unwilling(self) -> None:
        await self.stop.cutting.wait()
        await trio.sleep(self._limits.cleanup_timeout + HARD_BOUND)
        await name_the_unwilling(lambda: self._runner.running)

    @trio.lowlevel.enable_ki_protection
    async def _run_boxed(self, ended: trio.Event, started: Callable[[], None]) -> None:
        try:
            with self._box:
                try:
                    await self._run_nested(started)
                except BaseException as error:
                    if self._box.cancel_called:
                        raise
                    # A handler can break its own task beyond all guards (a nursery that it never closes, say).
                    self.stop.crash(unwrapped(error) if isinstance(error, BaseExceptionGroup) else error)
                if not self.stop.draining.is_set():
                    self.stop.crash(RuntimeError("a handler cancelled the nursery that its run belongs to"))
                await self._give_back()
        finally:
            self.vitals.end()
            ended.set()

    async def _run_nested(self, started: Callable[[], None]) -> None:
        async with trio.open_nursery() as services:
            watch = self.vitals.watch
            unrenewed = partial(self.vitals.unrenewed, self._heartbeat.progress)
            beats = watch(self._heartbeat.progress, stuck_after=self._limits.heartbeat_interval, worse=unrenewed)
            services.start_soon(guard, self.stop, self._settler.run, watch(self._settler.progress))
            services.start_soon(guard, self.stop, self._heartbeat.run, beats)
            services.start_soon(guard, self.stop, self._releaser.run, watch(self._releaser.progress))
            services.start_soon(self._end_in_time)
            if self._watcher is not None:
                # Not with the intake: requests to cancel are heard until the last run is settled.
                # Nor is one that fails for long unhealthy: polls do its work.
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
                intake.start_soon(self._claim, running, intake.cancel_scope, watch(self._claimer.progress))
                self.vitals.begin()
                started()
            await self._settler.wait_all_written()
            async with trio.open_nursery() as last:
                if self._watcher is not None:
                    last.start_soon(self._watcher.end)
                last.start_soon(guard_all, self.stop, self._ends)
                await guard(self.stop, self._releaser.do_last)
            services.cancel_scope.cancel(reason="the last run is settled")

    @trio.lowlevel.enable_ki_protection
    async def _claim(self, running: trio.Nursery, intake: trio.CancelScope, progress: Progress) -> None:
        await guard(self.stop, partial(self._claimer.run, running), progress)
        intake.cancel(reason="nothing more is claimed")

    @trio.lowlevel.enable_ki_protection
    async def _wake_to_end(self) -> None:
        await self.stop.draining.wait()
        self.wake.set()

    @trio.lowlevel.enable_ki_protection
    async def _end_in_time(self) -> None:
        await self.stop.draining.wait()
        self._observer.draining(self.stop.cause)
        with trio.move_on_after(self._limits.shutdown_timeout):
            await self.stop.cutting.wait()
        self.stop.cut()
        cut_at = trio.current_time()
        self.vitals.leave_by = self._box.deadline = cut_at + self._limits.cleanup_timeout + HARD_BOUND
        cut_short = self._runner.cancel_all(CancelReason.SHUTDOWN)
        if cut_short:
            self._observer.runs_cut_short(cut_short)
        try:
            await trio.sleep_until(cut_at + self._limits.cleanup_timeout + HARD_BOUND / 2)
        finally:
            # Also where the hard end came first, to a process that stood still: nothing else would end these waits.
            self._runner.abandon_threads()
            self.reaper.end_grace()

    async def _give_back(self) -> None:
        """The last act, where the settler crashed: what it left behind is released, by the whole fence."""
        left = [run for run in self._runner.held if not run.abandoned]
        if not left:
            return
        # As if they had been cut short, for their real ends could not be written.
        ends = [(run.claim, RunEnd.by_cancellation(CancelReason.SHUTDOWN, run.duration)) for run in left]
        given_back = [self._source.conclude(claim, end) for claim, end in ends]
        try:
            written = await self._source.settle(await self._source.prepare(given_back))
        except Exception:
            logger.exception("%d claims could not be given back: they end with their leases", len(left))
            return
        for run, was_written in zip(left, written, strict=True):
            if was_written:
                del self._runner.held[run]
