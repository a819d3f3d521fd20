"""Decides what follows when a worker process ends: a restart and when, or the end of all. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..exit_statuses import CHECK_FAILED, FAILED, INTERRUPTED, SUCCEEDED

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Seconds. The pause doubles with each end in a row."""

STEADY_AFTER: Final = 30.0
"""Seconds that a process has to run, so that its end counts as the first one in a row again."""

# From good to bad. Of two processes, one interrupted before its start and one drained, the first matters more to a
# process manager: it was not ready.
_FROM_GOOD_TO_BAD: Final = (SUCCEEDED, INTERRUPTED, CHECK_FAILED, FAILED)


@dataclass(frozen=True)
class ProcessEnd:
    """How a worker process has ended, although its parent had not asked it to.

    Attributes:
        ran_for: Seconds.
        ends_before: How many processes in a row have ended in its place before.
        any_has_started: Whether the scheduler of this process, or of another one, has ever started.
    """

    ran_for: float
    ends_before: int
    any_has_started: bool


@dataclass(frozen=True)
class Restart:
    """Start another process in its place.

    Attributes:
        after: Seconds until then.
        ends: How many processes in a row have ended in this place.
    """

    after: float
    ends: int


@dataclass(frozen=True)
class GiveUp:
    """End all: what failed at the very first start fails at each further one, such as a wrong target or password."""


def decide(end: ProcessEnd) -> Restart | GiveUp:
    """Return what follows. An end with status 0 counts as well: a handler may drain its scheduler at each start."""
    if not end.any_has_started:
        return GiveUp()
    ends = 1 if end.ran_for >= STEADY_AFTER else end.ends_before + 1
    # Not 2 ** ends: a number with thousands of digits has no float.
    doublings = min(ends - 1, 10)
    return Restart(min(FIRST_PAUSE * 2**doublings, LONGEST_PAUSE), ends)


def exit_status(returncode: int) -> int:
    """Return the exit status of a worker process for its return code, which is negative if a signal killed it."""
    if returncode in (-signal.SIGTERM, -signal.SIGINT):
        return INTERRUPTED  # It had not yet come to the handlers of these signals.
    return returncode if returncode in _FROM_GOOD_TO_BAD else FAILED


def worst(statuses: Iterable[int]) -> int:
    """Return the worst of these exit statuses; 0 for none."""
    return max(statuses, key=_FROM_GOOD_TO_BAD.index, default=SUCCEEDED)


_OF_A_SIGNAL: Final = 128
"""A shell gives this and the number of the signal as the status of a process that a signal killed."""

_CRASHED: Final = "a crash in native code, such as that of an extension module"
# A recursion overflows the stack if it goes through C code, or if the program has raised Python's limit.
_OVERFLOWED: Final = f"{_CRASHED}, or a recursion that is too deep"
_WHY: Final = {
    signal.SIGKILL: "for example by the kernel because memory ran out",
    signal.SIGSEGV: _OVERFLOWED,
    signal.SIGABRT: _CRASHED,
    signal.SIGBUS: _CRASHED,
    signal.SIGILL: _CRASHED,
    signal.SIGFPE: _CRASHED,
}
"""What usually sends a signal that is not a request to end."""


def described(returncode: int) -> str:
    """Say how a process has ended, for a log line."""
    if returncode < 0:
        why = _why(-returncode)
        return f"was killed by {_name_of(-returncode)} (status {_OF_A_SIGNAL - returncode}{f'; {why}' if why else ''})"
    if returncode > _OF_A_SIGNAL and (why := _why(returncode - _OF_A_SIGNAL)):
        return f"ended with status {returncode}, the status after {_name_of(returncode - _OF_A_SIGNAL)} ({why})"
    return f"ended with status {returncode}"


def _why(number: int) -> str | None:
    return next((why for one, why in _WHY.items() if one == number), None)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # A real-time signal.
        return f"signal {number}"
