"""Renews what is held: what runs, and what has ended and is not yet settled. Carries cancel requests to the runs."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import trio

from . import notices
from .pauses import Pauses
from .run import CancelReason
from .runner import Runner
from .source import ClaimState, Source

# A failed renewal is tried again after this share of the interval, not a whole one later.
RETRY_SHARE: Final = 1 / 10
LONGEST_RETRY: Final = 1.0

_REASONS: Final = {
    ClaimState.HELD: None,
    ClaimState.CANCEL_REQUESTED: CancelReason.USER,
    ClaimState.LOST: CancelReason.LOST,
}


async def run_heartbeat(
    source: Source[Any, Any], runner: Runner[Any, Any], pauses: Pauses, interval: float, *, rests: bool
) -> NoReturn:
    """Every `interval` seconds, measured from one beat to the next.

    With `rests` only while there is something to renew: the first beat is then one interval after the first claim.
    """

    def may_rest() -> bool:
        return rests and not (runner.held or source.needs_beat())

    beat = trio.current_time()
    while True:
        if may_rest():
            await runner.wait_changed()
            beat = trio.current_time()
            continue
        beat += interval
        await trio.sleep_until(beat)
        if may_rest():
            continue
        while not await _renew(source, runner):
            await pauses.after_fault(min(interval * RETRY_SHARE, LONGEST_RETRY))
        # After an outage: no beats to catch up with.
        beat = max(beat, trio.current_time() - interval)


async def _renew(source: Source[Any, Any], runner: Runner[Any, Any]) -> bool:
    runs = list(runner.held)
    try:
        renewed = await source.renew([run.claim for run in runs])
    except Exception as error:
        if not source.is_transient(error):
            raise
        source.tell(notices.RenewalFailed(error))
        return False
    for run, state in zip(runs, renewed, strict=True):
        # What was settled while the renewal was under way is no longer held, and not lost.
        if run in runner.held and (reason := _REASONS[state]) is not None:
            run.cancel(reason)
    runner.changed()
    return True
