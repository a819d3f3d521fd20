"""How much one question may ask of a server that is at work, and a count that may have reached its limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeVar

import pymongo

T = TypeVar("T")

MOST_SECONDS: Final = 1.0
"""Seconds that the server may take for one query."""

_seconds: Final = ContextVar("seconds of one query", default=MOST_SECONDS)


def briefly(read: Callable[[], Iterable[T]]) -> list[T]:
    """Return all that is read; the server ends the query after MOST_SECONDS. A part of a command."""
    with pymongo.timeout(_seconds.get()):
        return list(read())


@contextmanager
def taking_up_to(seconds: float) -> Iterator[None]:
    """Let each query in this block take so long: a question that was not answered in a second is asked again."""
    before = _seconds.set(seconds)
    try:
        yield
    finally:
        _seconds.reset(before)


@dataclass(frozen=True, slots=True)
class Count:
    """A number of things, which may be a lower bound. As text: "1,204", or "5,000+".

    Attributes:
        number: How many were counted.
        is_capped: There may be more: the count has reached its limit.
    """

    number: int = 0
    is_capped: bool = False

    @classmethod
    def up_to(cls, number: int, most: int) -> Count:
        """Return the count of a look that stops one behind `most`."""
        return cls(min(number, most), number > most)

    def __add__(self, other: Count) -> Count:
        return Count(self.number + other.number, self.is_capped or other.is_capped)

    def __bool__(self) -> bool:
        return self.number > 0

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.is_capped else ''}"
