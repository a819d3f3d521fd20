"""Lengths of time, moments and numbers, as HTTP and pages show them. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))

LONGEST: Final = 1e12
"""Seconds. A longer time, infinity and NaN were not measured by this library: another program stored them."""


def length(seconds: float) -> str:
    """Return a length of time in its two largest units, such as "3 m 12 s"; below ten seconds with tenths."""
    if not abs(seconds) < LONGEST:
        return "an unknown time"
    if abs(seconds) < 10:
        return f"{seconds:.1f} s"
    parts, rest = [], round(abs(seconds))
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return ("-" if seconds < 0 else "") + " ".join(parts[:2])


def moment(value: datetime) -> str:
    """Return a moment in UTC, to the second."""
    return f"{value:%Y-%m-%d %H:%M:%S} UTC"


def since_and_by(since: datetime | None, by: str | None) -> str:
    """Return since when something is so and by whom, with a space before it; "" if neither is known."""
    return ("" if since is None else f" since {moment(since)}") + ("" if by is None else f" by {by}")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 job" or "1,204 jobs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def grouped(number: int) -> str:
    """Return a number with separators, such as "1,204"."""
    return f"{number:,}"


def short_length(seconds: float) -> str:
    """Return how long a run or a wait took: milliseconds below one second, else as `length`."""
    return f"{round(1000 * seconds):,} ms" if 0 <= seconds < 1 else length(seconds)


def ago(moment: datetime, now: datetime) -> str:
    """Return how long ago a moment was, such as "3 m ago", or how far ahead it is, such as "in 2 h 4 m"."""
    seconds = round((now - moment).total_seconds())
    if seconds == 0:
        return "now"
    words = length(abs(seconds)) if abs(seconds) >= 10 else f"{abs(seconds)} s"
    return f"{words} ago" if seconds > 0 else f"in {words}"
