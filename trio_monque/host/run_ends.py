"""Decides whether a run has succeeded, has failed, or was cut short. Each kind of work decides what follows."""

from __future__ import annotations

from collections.abc import Callable

from ..engine.exceptions import as_raised, begin_at_handler
from ..engine.run_end import CancelReason, RunEnd


def has_succeeded(end: RunEnd) -> bool:
    """Whether the handler returned. A cancellation that it did not notice changes nothing."""
    return end.error is None and not end.cancelled


def failure_of(
    end: RunEnd,
    time_limit: float,
    without_echo: Callable[[BaseException], BaseException | None],
    *,
    full_tracebacks: bool = False,
) -> BaseException | None:
    """Return the error by which a run that did not succeed has failed; None if it was cut short.

    Args:
        time_limit: Seconds that the run was allowed to take.
        without_echo: Removes from an error what only reports the cancellation of the run: that is not a failure.
        full_tracebacks: Leave the frames before the handler in the traceback of the error.
    """
    if end.reason is CancelReason.LOST:
        # Another instance may have the item now: an error of this run's clean-up must not count as a failed attempt.
        return None
    error = None if end.error is None else as_raised(end.error)
    if error is not None and end.reason is not None:
        error = without_echo(error)
    if error is None and end.reason is CancelReason.TIMEOUT:
        return TimeoutError(f"the run took longer than {time_limit:g} s")
    return error if error is None or full_tracebacks else begin_at_handler(error)
