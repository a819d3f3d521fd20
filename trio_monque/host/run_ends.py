"""Decides whether a run has succeeded, has failed, or was cut short. Each kind of work decides what follows.

A run that misses its lease deadline was cut short, which counts as no failed attempt. Most of these follow from an
outage, so a few in a row must not fail an item. But a handler may be the cause: if it blocks the event loop for longer
than a lease, each of its runs ends so, and the item would run again without end. `MissedLeases` bounds that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from ..engine.exceptions import as_raised, begin_at_handler
from ..engine.run_end import CancelReason, RunEnd

MOST_REMEMBERED: Final = 10_000
"""Items. Beyond it, the one that missed a lease the longest time ago is forgotten."""


def failure_of(
    end: RunEnd,
    time_limit: str,
    without_echo: Callable[[BaseException], BaseException | None],
    *,
    full_tracebacks: bool = False,
) -> BaseException | None:
    """Return the error by which a run that did not succeed has failed; None if it was cut short.

    Args:
        time_limit: How long the run was allowed to take, in words.
        without_echo: Removes from an error what only reports the cancellation of the run: that is not a failure.
        full_tracebacks: Leave the frames before the handler in the traceback of the error.
    """
    if end.reason is CancelReason.LOST:
        # Another instance may have the item now: an error of this run's clean-up must not count as a failed attempt.
        return None
    # What is raised after a cancellation is mostly the cancellation itself, in the words of the handler: it is taken
    # out. What is left, such as a bug in a clean-up, counts.
    error = None if end.error is None else as_raised(end.error)
    if error is not None and end.reason is not None:
        error = without_echo(error)
    if error is None and end.reason is CancelReason.TIMEOUT:
        return TimeoutError(f"the run took longer than {time_limit}")
    return error if error is None or full_tracebacks else begin_at_handler(error)


class MissedLeaseError(TimeoutError):
    """The error of an attempt that counts because too many runs in a row missed their lease. Never raised."""

    def __init__(self, runs: int) -> None:
        were = "a run was" if runs == 1 else f"{runs} runs in a row were"
        super().__init__(
            f"{were} cancelled because the claim was not renewed in time: the handler may block "
            "the event loop, or the database was unreachable for that long"
        )


class MissedLeases:
    """Counts them in a row, for each item. Only those of this instance: others see a claim that died, and count it.

    Attributes:
        in_a_row: How many, by the key of the item. It is mostly empty, and then a run that missed none need not ask.
    """

    def __init__(self) -> None:
        self.in_a_row: dict[Hashable, int] = {}

    def counted(self, key: Hashable, end: RunEnd, most: int) -> RunEnd:
        """Return how the run of this item ended: as a failed attempt, if more than `most` in a row missed theirs."""
        if not end.has_begun:
            return end  # The answer to its claim came too late. No handler can be the cause.
        runs = 1 + self.in_a_row.pop(key, 0)
        if end.reason is not CancelReason.LOST or end.has_succeeded:
            return end
        if runs > most:
            return _failed(end, runs)
        self.in_a_row[key] = runs  # At the end of the order, as the last one.
        if len(self.in_a_row) > MOST_REMEMBERED:
            del self.in_a_row[next(iter(self.in_a_row))]
        return end


def _failed(end: RunEnd, runs: int) -> RunEnd:
    error = MissedLeaseError(runs)
    error.__cause__ = end.error
    return end._replace(error=error, reason=None, cancelled=False)
