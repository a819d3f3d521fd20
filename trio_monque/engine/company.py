"""What an engine runs for others: it knows nothing of it but when it has to end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from .guard import Stop, guard
from .progress import Progress

Loop = Callable[[], Awaitable[None]]


class Company:
    """The loops beside the engine's own. They are given before it runs.

    Jobs need none of them: one that fails for long is told with the other loops, and makes nobody unhealthy.

    Attributes:
        services: Those that live until the last run is settled.
        chores: Those that live for as long as claims are made.
    """

    def __init__(self) -> None:
        self.services: list[tuple[Loop, Progress]] = []
        self.chores: list[tuple[Loop, Progress]] = []
        self._ends: list[Loop] = []

    def accompany(self, run: Loop, progress: Progress, end: Loop | None = None) -> None:
        """Runs this, too, until the last run is settled; then `end` is called, which must be bounded."""
        self.services.append((run, progress))
        if end is not None:
            self._ends.append(end)

    def take_in(self, run: Loop, progress: Progress) -> None:
        """Runs this, too, for as long as claims are made: then it is cancelled, and must not go on."""
        self.chores.append((run, progress))

    @trio.lowlevel.enable_ki_protection
    async def end(self, stop: Stop) -> None:
        """Calls what was given for the end, all at once."""
        async with trio.open_nursery() as nursery:
            for end in self._ends:
                nursery.start_soon(guard, stop, end)
