"""Renews the held claims: those of all runs, until their settlements are written. Carries requests to cancel to the
runs.

A *held* claim is one that this instance has and keeps alive (`Runner.held`). Between a renewal and its answer, a run
may end, settle its claim or miss its lease deadline: `renew` and `_answered` have a condition for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, NoReturn, TypeVar

import trio

from ..loop_time import loop_time
from ..options_and_defaults import LEASE_IN_BEATS
from .demand import ClaimState
from .observer import LoopObserver
from .pauses import Pauses
from .progress import Progress
from .run import Run
from .run_end import CancelReason
from .runner import Runner
from .source import RenewalSource

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")


class Heartbeat(Generic[ClaimT, SettlementT]):
    """The loop that beats every `interval` seconds, measured from one beat to the next.

    In virtual time it beats only while there is something to renew: the first beat is then one interval after the
    first claim.

    Args:
        unrenewed_from: Called after each beat with the earliest moment at which a held claim stops being renewed.
    """

    def __init__(
        self,
        source: RenewalSource[ClaimT],
        observer: LoopObserver,
        runner: Runner[ClaimT, SettlementT],
        pauses: Pauses,
        interval: float,
        *,
        unrenewed_from: Callable[[float], None],
    ) -> None:
        self.progress = Progress("heartbeat")
        self._source = source
        self._observer = observer
        self._runner = runner
        self._pauses = pauses
        self._interval = interval
        self._time = loop_time()
        self._unrenewed_from = unrenewed_from
        # Runs whose claims are not renewed for the moment; see `without_renewals`.
        self._paused: set[Run[ClaimT]] = set()
        # Set to beat before the interval is over.
        self._is_overdue = trio.Event()
        # The runs of each renewal whose answer is not there yet.
        self._in_flight: list[Sequence[Run[ClaimT]]] = []
        self._answer: trio.Event | None = None  # Made by the task that waits for it: mostly none waits.

    async def run(self) -> NoReturn:
        runner = self._runner
        beat = trio.current_time()
        while True:
            if self._time.is_event_driven and not runner.held:
                await runner.wait_changed()
                beat = trio.current_time()
                continue
            beat += self._interval
            self.progress.plan(beat)
            with trio.move_on_at(beat):
                await self._is_overdue.wait()
                beat = trio.current_time()
            # Before the renewal: a claim that becomes overdue during it needs another one.
            self._is_overdue = trio.Event()
            while runner.held and not await self.renew(self.progress):
                await self._pauses.after_failed_beat(self._interval)
            self.progress.go_on()
            limit = min((run.renewable_until for run in runner.held if run.is_renewable), default=math.inf)
            if limit < math.inf:
                self._unrenewed_from(limit)
            # After an outage: no beats to catch up with, but one at once, because the answer may be of a renewal that
            # was sent long ago.
            beat = max(beat, trio.current_time() - self._interval)

    async def renew(self, progress: Progress, concerns: Callable[[ClaimT], bool] | None = None) -> bool:
        """Renews all held claims, or those that `concerns` accepts. Two calls may overlap.

        Args:
            progress: Of the loop that asks: this one, or the watcher.

        Returns:
            Whether the source answered; not in an outage, which is reported once.
        """
        # Past its limit, a claim is not renewed: its handler ignored cancellation, and other instances must be able to
        # take the item.
        runs = [run for run in self._runner.held if run.is_renewable and (concerns is None or concerns(run.claim))]
        if self._paused:
            runs = [run for run in runs if run not in self._paused]
        return await self._renew(runs, progress) if runs else True

    async def _renew(self, runs: Sequence[Run[ClaimT]], progress: Progress) -> bool:
        # Before the command: the server may apply it at once, and its answer may take long (see `lease`).
        sent = trio.current_time()
        renewed = await self._ask(runs, progress)
        if renewed is None:
            return False
        progress.answered(sum(state in (ClaimState.HELD, ClaimState.CANCEL_REQUESTED) for state in renewed))
        for run, state in zip(runs, renewed, strict=True):
            # Without this, a claim that was settled while the renewal was on its way, and is gone for that reason,
            # would count as lost.
            if run in self._runner.held:
                _answered(run, state, sent)
        return True

    async def _ask(self, runs: Sequence[Run[ClaimT]], progress: Progress) -> Sequence[ClaimState] | None:
        progress.ask()
        self._in_flight.append(runs)
        try:
            return await self._source.renew([run.claim for run in runs])
        except Exception as error:
            if not self._pauses.is_transient(error):
                raise
            if progress.fail(error):
                self._observer.renewal_failed(error)
            return None
        finally:
            # By identity: two renewals may be of equal runs.
            self._in_flight = [one for one in self._in_flight if one is not runs]
            if self._answer is not None:
                self._answer.set()
                self._answer = None

    def beat_now(self) -> None:
        """Renew at once, and so find requested cancellations, which no change stream reports in virtual time."""
        self._is_overdue.set()

    # --- Without renewals ---

    @contextmanager
    def without_renewals(self, run: Run[ClaimT]) -> Iterator[None]:
        """Inside, this claim is not renewed. The caller does it because a renewal would conflict with its own write."""
        self._paused.add(run)
        try:
            yield
        finally:
            self._paused.discard(run)
            # Still held: the write has failed. The beats have passed this claim over, and its lease may end before the
            # next one.
            if run in self._runner.held:
                self._is_overdue.set()

    def resume_renewals(self, run: Run[ClaimT]) -> None:
        """Renews this claim again, although the caller of `without_renewals` is still inside: at once, and at beats."""
        if run in self._paused:
            self._paused.discard(run)
            self._is_overdue.set()

    def paused(self, concerns: Callable[[ClaimT], bool]) -> Sequence[Run[ClaimT]]:
        """The runs that are inside `without_renewals` and that `concerns` accepts."""
        return [run for run in self._paused if concerns(run.claim)]

    async def renew_alone(self, run: Run[ClaimT]) -> None:
        """Renews this claim if less than half of its lease is left. An outage is reported, and not raised."""
        if run.lease_deadline - trio.current_time() < self._interval * LEASE_IN_BEATS / 2:
            await self._renew([run], self.progress)

    async def wait_answered(self, run: Run[ClaimT]) -> None:
        """Returns when no renewal of this claim is in flight."""
        while any(run in runs for runs in self._in_flight):
            if self._answer is None:
                self._answer = trio.Event()
            await self._answer.wait()


def _answered(run: Run[ClaimT], state: ClaimState, sent: float) -> None:
    if state is ClaimState.LOST:
        # An early settlement on its way takes the claim away too, which looks like a loss. Without this, a run would be
        # cancelled because it settled its claim.
        if not run.is_settling_early:
            run.lose()
        return
    if state is ClaimState.NOT_RENEWED:
        # Neither lost nor renewed. Counted as renewed, the run would go on beyond the lease that the server has;
        # counted as lost, its end could not be written although the claim may be ours until then.
        return
    run.renewed(sent)  # Not if the run has missed its lease deadline: see there.
    # After that, so that its clean-up has the new lease.
    if state is ClaimState.CANCEL_REQUESTED:
        run.cancel(CancelReason.USER)
