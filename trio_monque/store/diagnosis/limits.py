"""How much one question may ask of a server that is at work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import pymongo

T = TypeVar("T")

MOST_SECONDS: Final = 1.0
"""Seconds that the server may take for one query."""


def briefly(read: Callable[[], Iterable[T]]) -> list[T]:
    """Return all that is read; the server ends the query after MOST_SECONDS. A part of a command."""
    with pymongo.timeout(MOST_SECONDS):
        return list(read())
