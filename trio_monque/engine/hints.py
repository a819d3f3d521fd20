"""The second, smaller port: a stream of hints. Nothing rests on it but how soon something is noticed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .source import Tip


@dataclass(frozen=True, slots=True)
class Hints:
    """What was heard at once, already summed up.

    Attributes:
        look: Something may be due now, and later: nobody knows.
        due: The earliest moment, on trio's clock, at which something is due; it may have passed. Infinity for none.
        last_due: The latest; others may be between them.
        tip: Which item that is, where nothing else was heard and it is a new one.
        is_asked_to_end: Of which claims somebody wants the runs to end; None for of none.
        ended: The stream is over, in order: it is opened again.
    """

    look: bool = False
    due: float = math.inf
    last_due: float = -math.inf
    tip: Tip | None = None
    is_asked_to_end: Callable[[Any], bool] | None = None
    ended: bool = False


class StreamFailedError(Exception):
    """The stream could not be opened, or broke.

    Attributes:
        error: What the source met.
        is_final: There is none to be had: trying again is of no use.
    """

    def __init__(self, error: Exception, *, is_final: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_final = is_final


class HintStream(Protocol):
    """Every method raises StreamFailedError and nothing else; each may be abandoned, and leaves nothing open then."""

    async def open(self) -> None:
        """When it returns, all that happens from now on will be told."""
        ...

    async def next(self, wait: float) -> Hints:
        """What has happened; waits for it so many seconds at most, and may return without anything."""
        ...

    async def end_wait(self) -> None:
        """Makes the `next` that is under way return at once."""
        ...

    async def close(self) -> None:
        """Lets go of it; for one that broke or has ended, too."""
        ...
