"""Outcomes: what a handler may raise to decide what happens to its job, and how a run ended. Pure.

An outcome is final when the run ends. It is computed from the job as it was claimed, and that copy may be stale when
the outcome is written: a caller may have requested a cancellation or changed the schedule meanwhile. That is why an
outcome is not yet a write. `retries_and_next_occurrences.py` turns it into a guarded transition. If the guard fails,
the same outcome is turned into another transition from a fresh copy. The handler does not run again for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ..checks import checked_moment, checked_seconds
from ..error_types import InvalidOptionError

# --- Exceptions that a handler may raise ---


class Retry(Exception):  # noqa: N818  # It is not an error, but an instruction.
    """Counts as a failed attempt, and sets the delay before the next one.

    Args:
        reason: Becomes the job's `fail_reason`.
        after: Seconds until the next attempt, or a timedelta; None for the backoff.
    """

    after: float | None = None  # For a subclass whose __init__ does not call this one.

    def __init__(self, reason: str = "", *, after: float | timedelta | None = None) -> None:
        given: object = reason
        if isinstance(given, int | float):
            raise InvalidOptionError("reason", given, "must be a string: write Retry(after=...) for seconds")
        super().__init__(reason)
        self.after = None if after is None else checked_seconds("after", after)


class Snooze(Exception):  # noqa: N818
    """Runs the job again later, without counting a failure. Give one of the two arguments.

    Args:
        after: Seconds from now, or a timedelta.
        until: A timezone-aware moment.
    """

    after: float | None = None
    until: datetime | None = None

    def __init__(self, *, after: float | timedelta | None = None, until: datetime | None = None) -> None:
        if (after is None) == (until is None):
            raise InvalidOptionError("after", after, "give either after= or until=")
        self.after = None if after is None else checked_seconds("after", after)
        super().__init__(f"for {self.after:.10g} s" if self.after is not None else f"until {until}")
        self.until = None if until is None else checked_moment("until", until)


class Discard(Exception):  # noqa: N818
    """Fails the job for good, without another attempt. For a recurring job, only this occurrence: its schedule goes on.

    Args:
        reason: Becomes the job's `fail_reason`.
    """

    def __init__(self, reason: str = "discarded") -> None:
        super().__init__(reason)


# --- How a run ended ---


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned. `result` is its result, if results are stored."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A counted attempt. The next one starts after `after` seconds; None for the backoff."""

    error: BaseException
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Discarded:
    """A counted attempt, and the last one: the error must not be retried.

    Attributes:
        error: The one that decided it.
        beside: The others of the group in which it came; a group if there are several, and None for none. Only logged.
    """

    error: BaseException
    beside: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Snoozed:
    """Not a failure: the job runs again later."""

    snooze: Snooze


@dataclass(frozen=True, slots=True)
class CutShort:
    """The scheduler stopped before the handler ended: the claim is released, and no attempt is counted.

    Attributes:
        has_begun: Whether the handler was called. If not, the job must still start by its `start_by`.
    """

    has_begun: bool = True


Outcome = Succeeded | Failed | Discarded | Snoozed | CutShort


def error_beside(outcome: object) -> BaseException | None:
    """Return what came in one group with the error that decided the outcome, and that nothing else shows."""
    return outcome.beside if isinstance(outcome, Discarded) else None
