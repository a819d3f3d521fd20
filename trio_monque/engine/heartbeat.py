"""Renews what is held: what runs, and what has ended and is not settled yet. Carries requests to cancel to the runs.

Races that `renew` closes:

- The answer comes late. The run counts the renewal from `sent`, the moment before the command: see `lease`.
- A claim is settled while its renewal is in flight. The renewal finds it gone, but it is not lost: the run is no longer
  in `held` when the answer comes, so the answer is dropped.
- A claim is being settled early in this moment. Its renewal may find it gone because the settlement has just taken it
  away; the settlement alone knows.
- A run has fenced itself before the answer came. It stays cancelled (see `Run.renewed`): its clean-up is under way.
- The server refuses to renew one document of many. That claim is neither lost nor renewed: its lease runs out, and the
  run is cancelled by its own deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Generic, NoReturn, TypeVar

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

# What failed is tried again after this share of the interval, not a whole one later.
RETRY_SHARE: Final = 1 / 10
LONGEST_RETRY: Final = 1.0


class Heartbeat(Generic[ClaimT, SettlementT]):
    """The loop that beats every `interval` seconds, measured from one beat to the next.

    In virtual time it beats only while there is something to renew: the first beat is then one interval after the
    first claim.

    Args:
        unrenewed_from: Called with the moment from which the first held claim is not renewed any more.
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
            while runner.held and not await renew(self._source, self._observer, runner, self.progress):
                await self._pauses.after_fault(min(self._interval * RETRY_SHARE, LONGEST_RETRY))
            self.progress.go_on()
            limit = min((run.held_until for run in runner.held if run.is_held), default=math.inf)
            if limit < math.inf:
                self._unrenewed_from(limit)
            # After an outage: no beats to catch up with.
            beat = max(beat, trio.current_time() - self._interval)


async def renew(
    source: RenewalSource[ClaimT],
    observer: LoopObserver,
    runner: Runner[ClaimT, SettlementT],
    progress: Progress,
    concerns: Callable[[ClaimT], bool] | None = None,
) -> bool:
    """Renews all that is held, or the claims that it concerns; whether that was answered."""
    # A run that has taken longer than any run may is renewed no longer: its claim ends with its lease.
    runs = [run for run in runner.held if run.is_held and (concerns is None or concerns(run.claim))]
    if not runs and concerns is not None:
        return True
    sent = trio.current_time()
    renewed = await _renewed(source, observer, runs, progress)
    if renewed is None:
        return False
    if runs:
        progress.answered(sum(state in (ClaimState.HELD, ClaimState.CANCEL_REQUESTED) for state in renewed))
    for run, state in zip(runs, renewed, strict=True):
        if run in runner.held:  # Otherwise it was settled meanwhile: no longer held, and not lost.
            _answered(run, state, sent)
    return True


def _answered(run: Run[ClaimT], state: ClaimState, sent: float) -> None:
    if state is ClaimState.LOST:
        if not run.is_settling:  # Its settlement takes the claim away, and will tell.
            run.lose()
        return
    if state is ClaimState.NOT_RENEWED:
        return
    run.renewed(sent)
    if state is ClaimState.CANCEL_REQUESTED:
        run.cancel(CancelReason.USER)


async def _renewed(
    source: RenewalSource[ClaimT], observer: LoopObserver, runs: Sequence[Run[ClaimT]], progress: Progress
) -> Sequence[ClaimState] | None:
    """None in an outage, which is reported once."""
    progress.ask()
    try:
        return await source.renew([run.claim for run in runs])
    except Exception as error:
        if not source.is_transient(error):
            raise
        if progress.fail(error):
            observer.renewal_failed(error)
        return None
