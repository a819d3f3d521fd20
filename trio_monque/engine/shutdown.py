"""The end of an engine: its timeline, and the tasks that keep to it.

    drain           The claimer ends; claims in flight are given back. Runs go on. Those that want it are released while
      |             they wait for other items, which do not start here any more.
      |  shutdown_timeout, or until a cut is asked for
    cut             The engine cancels each run, which may clean up.
      |  cleanup_timeout
    clean-ups over  No run has a shield any more. Settlements and releases go on.
      |  HARD_END_AFTER / 2
    abandonment     The engine waits no longer for threads, nor for the answer to a rescue.
      |  HARD_END_AFTER / 2
    hard end        The engine cancels everything else: settlements, releases, waits. What is not settled by now is left
                    to its lease.

The engine ends at any point of this line when its last run is settled. A cancellation from outside, a Ctrl-C and a
crash begin with the cut. Only a handler that swallows its cancellation can outlast the hard end, because trio cannot
leave a task behind: `report_unending_runs` logs it each second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import trio

from ..log import logger_of
from .engine_limits import EngineLimits
from .guard import Stop, end_for_bug
from .observer import EndObserver, RunsLeft
from .reaper import Reaper
from .run import Run
from .run_end import CancelReason, RunEnd
from .runner import Runner
from .source import RunSource, SettlementSource
from .vitals import Vitals
from .watchdog import log_unending_runs

logger = logger_of("engine")

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")
BatchT = TypeVar("BatchT")

BETWEEN_LOOKS: Final = 0.05
"""Seconds between two looks of a drain for runs to release. Each looks at all: ten thousand may wait, and all end."""

HARD_END_AFTER: Final = 1.5
"""Seconds from the end of the clean-ups to the hard end."""


class Shutdown(Generic[ClaimT]):
    """Waits for the drain, and then keeps to the timeline.

    Args:
        box: The scope around all of the engine except `report_unending_runs`; the hard end cancels it.
    """

    def __init__(
        self,
        stop: Stop,
        limits: EngineLimits,
        observer: EndObserver[ClaimT],
        runner: Runner[ClaimT, Any],
        reaper: Reaper[ClaimT, Any, Any],
        vitals: Vitals,
        box: trio.CancelScope,
    ) -> None:
        self._stop = stop
        self._limits = limits
        self._observer = observer
        self._runner = runner
        self._reaper = reaper
        self._vitals = vitals
        self._box = box

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """From the drain to the abandonment. The engine cancels it when its last run is settled."""
        await self._stop.draining.wait()
        runs = [run for run in self._runner.held if not run.has_ended]
        waiting = sum(run.parked > 0 for run in runs)
        left = RunsLeft(len(runs), waiting, self._limits.shutdown_timeout)
        self._report(lambda: self._observer.draining(self._stop.cause, left))
        with trio.move_on_after(self._limits.shutdown_timeout):
            async with trio.open_nursery() as drain:
                drain.start_soon(self._release_waiting)
                await self._stop.cutting.wait()
                drain.cancel_scope.cancel(reason="the cut follows")
        self._stop.cut()  # The cause stays that of the drain.
        clean_ups_over = trio.current_time() + self._limits.cleanup_timeout
        self._vitals.hard_end = self._box.deadline = clean_ups_over + HARD_END_AFTER
        cut_short = self._runner.cancel_all(CancelReason.SHUTDOWN)
        if cut_short:
            self._report(lambda: self._observer.runs_cut_short(cut_short))
        try:
            await trio.sleep_until(clean_ups_over + HARD_END_AFTER / 2)
        finally:
            # Also if the hard end came first: a process that stood still (SIGSTOP) wakes up behind all its deadlines.
            # These waits are shielded from the box, so without this nothing would end them.
            self._runner.abandon_threads()
            self._reaper.end_grace()

    @trio.lowlevel.enable_ki_protection
    async def _release_waiting(self) -> None:
        while True:
            for run in tuple(self._runner.held):
                if run.is_releasable and run.reason is None:
                    run.cancel(CancelReason.SHUTDOWN)
            await self._runner.wait_changed()
            await trio.sleep(BETWEEN_LOOKS)

    def _report(self, report: Callable[[], None]) -> None:
        # Without this, the observer's error would leave this task, and cancel the settler, the heartbeat and all runs
        # beside it. And not `guard`, which would end this task and with it the timeline.
        try:
            report()
        except Exception as bug:  # noqa: BLE001  # A bug of the observer ends the engine in order, by a cut.
            end_for_bug(self._stop, "the end could not be reported", bug)

    @trio.lowlevel.enable_ki_protection
    async def report_unending_runs(self, frames_of: Callable[[trio.lowlevel.Task], str]) -> None:
        """Logs the runs that outlast the hard end, with their frames, until cancelled. To be run outside the box."""
        await self._stop.cutting.wait()
        await trio.sleep(self._limits.cleanup_timeout + HARD_END_AFTER)
        await log_unending_runs(lambda: self._runner.running, frames_of)


async def give_back(
    runs: RunSource[ClaimT, SettlementT],
    settlements: SettlementSource[SettlementT, BatchT],
    runner: Runner[ClaimT, SettlementT],
) -> None:
    """Releases what is still held, if the settler has crashed or a handler has broken the nursery of the runs.

    The last act of the engine.
    """
    # A run whose thread goes on keeps its claim until its lease ends. So does one that crashed the engine: the end of
    # its lease counts as a death, and deaths are limited. Its neighbours are released, uncounted.
    left = [run for run in runner.held if not (run.abandoned or run.has_broken_engine)]
    if not left:
        return
    try:
        # As if they had been cut short, for their real ends could not be written.
        given_back = [runs.conclude(run.claim, _cut_short(run)) for run in left]
        written = await settlements.settle(await settlements.prepare(given_back))
    except Exception:
        logger.exception("could not release all claims (%d left); they expire with their leases", len(left))
        return
    for run, was_written in zip(left, written, strict=True):
        if was_written:
            del runner.held[run]


def _cut_short(run: Run[Any]) -> RunEnd:
    return RunEnd.by_cancellation(CancelReason.SHUTDOWN, run.duration, has_begun=run.has_begun)
