"""MissedLeases: bounds the releases of runs that miss their lease deadline, which count as no failed attempt.

Most of these follow from an outage, so a few in a row must not fail an item. But a handler may be the cause: if it
blocks the event loop for longer than a lease, each of its runs ends so, and the item would run again for ever.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from ..engine.run_end import CancelReason, RunEnd
from .run_ends import has_succeeded

MOST_REMEMBERED: Final = 10_000
"""Items. Beyond it, the one that missed a lease the longest time ago is forgotten."""


class MissedLeaseError(TimeoutError):
    """The error of an attempt that counts because too many runs in a row missed their lease. Never raised."""

    def __init__(self, runs: int) -> None:
        were = "a run was" if runs == 1 else f"{runs} runs in a row were"
        super().__init__(
            f"{were} cancelled because the claim was not renewed in time: the handler may block "
            "the event loop, or the database was not reachable for so long"
        )


class MissedLeases:
    """Counts them in a row, for each item. Only those of this instance: others see a claim that died, and count it."""

    def __init__(self) -> None:
        self._in_a_row: dict[Hashable, int] = {}

    def counted(self, key: Hashable, end: RunEnd, most: int) -> RunEnd:
        """Return how the run of this item ended: as a failed attempt, if more than `most` in a row missed theirs."""
        if not end.has_begun:
            return end  # The answer to its claim came too late. No handler can be the cause.
        runs = 1 + (self._in_a_row.pop(key, 0) if self._in_a_row else 0)
        if end.reason is not CancelReason.LOST or has_succeeded(end):
            return end
        if runs > most:
            return _failed(end, runs)
        self._in_a_row[key] = runs  # At the end of the order, as the last one.
        if len(self._in_a_row) > MOST_REMEMBERED:
            del self._in_a_row[next(iter(self._in_a_row))]
        return end


def _failed(end: RunEnd, runs: int) -> RunEnd:
    error = MissedLeaseError(runs)
    error.__cause__ = end.error
    return end._replace(error=error, reason=None, cancelled=False)
