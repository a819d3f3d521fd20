"""What a handler may raise to decide the fate of its job, and the verdict on how a run ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..checks import check_seconds, checked_moment
from ..errors import InvalidOptionError

# --- What a handler may raise to say what is to become of its job ---


class Retry(Exception):  # noqa: N818  # It is no error: it says what to do.
    """Counts as a failed try, and says when the next one is.

    Args:
        reason: Becomes the job's `fail_reason`.
        after: Seconds until the next try; None for the backoff.
    """

    after: float | None = None  # Also of a subclass that does not call this one's __init__.

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        if after is not None:
            check_seconds("after", after, zero=True)
        given: object = reason
        if isinstance(given, int | float):
            raise InvalidOptionError("reason", given, "must be a text: write Retry(after=...) for seconds")
        super().__init__(reason)
        self.after = after


class Snooze(Exception):  # noqa: N818
    """Runs the job again later, with no failure counted.

    Args:
        after: Seconds from now.
        until: Or a moment, timezone-aware.
    """

    after: float | None = None
    until: datetime | None = None

    def __init__(self, *, after: float | None = None, until: datetime | None = None) -> None:
        if (after is None) == (until is None):
            raise InvalidOptionError("after", after, "give one of after= and until=")
        if after is not None:
            check_seconds("after", after, zero=True)
        super().__init__(f"for {after:g} s" if after is not None else f"until {until}")
        self.after = after
        self.until = None if until is None else checked_moment("until", until)


class Discard(Exception):  # noqa: N818
    """Gives the job up: it has failed for good. An occurrence of a recurring job is given up, and the schedule goes on.

    Args:
        reason: Becomes the job's `fail_reason`.
    """

    def __init__(self, reason: str = "discarded") -> None:
        super().__init__(reason)


# --- What an end means ---


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned; `result` is what is to be stored of that."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A counted try; the next one is `after` seconds away, where the handler said so."""

    error: BaseException
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Discarded:
    """A counted try, and the last one."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Snoozed:
    """No failure; it is run again later."""

    snooze: Snooze


@dataclass(frozen=True, slots=True)
class CutShort:
    """The scheduler left before the handler was through: not a try, the claim is given back."""


Verdict = Succeeded | Failed | Discarded | Snoozed | CutShort


def leaves_of(error: BaseException) -> list[BaseException]:
    """The errors in a group, at any depth; an error that is none, itself."""
    leaves: list[BaseException] = []
    left = [error]
    while left:  # Not by recursion: a group may be nested deeper than Python's stack.
        one = left.pop()
        if isinstance(one, BaseExceptionGroup):
            left.extend(reversed(one.exceptions))
        else:
            leaves.append(one)
    return leaves
