"""Renews the held claims: those of all runs, until their settlements are written. Carries requests to cancel to the
runs.

A *held* claim is one that this instance has and keeps alive (`Runner.held`). Between a renewal and its answer, a run
may end, settle its claim or miss its lease deadline: `renew` and `_answered` have a condition for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, NoReturn, TypeVar

import trio

from ..loop_time import loop_time
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
            await trio.sleep_until(beat)
            while runner.held and not await self.renew(self.progress):
                await self._pauses.after_failed_beat(self._interval)
            self.progress.go_on()
            limit = min((run.renewable_until for run in runner.held if run.is_renewable), default=math.inf)
            if limit < math.inf:
                self._unrenewed_from(limit)
            # After an outage: no beats to catch up with.
            beat = max(beat, trio.current_time() - self._interval)

    async def renew(self, progress: Progress, concerns: Callable[[ClaimT], bool] | None = None) -> bool:
        """Renews all held claims, or those that `concerns` accepts. Two calls may overlap.

        Args:
            progress: Of the loop that asks: this one, or the watcher.

        Returns:
            Whether the source answered; not in an outage, which is reported once.
        """
        # Past its limit, a claim is not renewed: its run does not obey, and the item must become free for others.
        runs = [run for run in self._runner.held if run.is_renewable and (concerns is None or concerns(run.claim))]
        if not runs:
            return True
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
        try:
            return await self._source.renew([run.claim for run in runs])
        except Exception as error:
            if not self._source.is_transient(error):
                raise
            if progress.fail(error):
                self._observer.renewal_failed(error)
            return None


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
    if state is ClaimState.CANCEL_REQUESTED:
        run.cancel(CancelReason.USER)
