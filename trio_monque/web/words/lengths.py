"""Lengths of time, moments and numbers, as HTTP and pages show them. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def length(seconds: float) -> str:
    """Return a length of time in its two largest units, such as "3 m 12 s"; below ten seconds with tenths."""
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


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 job" or "1,204 jobs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
