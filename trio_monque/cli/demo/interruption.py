"""Ctrl-C and SIGTERM: the first drains, the second cuts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import trio


class Interruption:
    """What signals mean at the moment.

    Attributes:
        asked: Whether there was one.
        scope: Everything that a cut ends; to be entered once.
        last_words: What was done and what is left, printed at the end.
    """

    def __init__(self) -> None:
        self.asked = False
        self.scope = trio.CancelScope()
        self.last_words = "nothing was begun"
        self._drain: Callable[[], None] | None = None

    @contextmanager
    def first_means(self, drain: Callable[[], None]) -> Iterator[None]:
        """While inside, the first signal calls `drain`. Elsewhere there is nothing to drain, and it cuts."""
        self._drain = drain
        try:
            yield
        finally:
            self._drain = None

    async def obey(self, signals: AsyncIterator[int]) -> None:
        """Waits for signals, until cancelled."""
        async for _ in signals:
            first, self.asked = not self.asked, True
            if first and self._drain is not None:
                self._drain()
            else:
                self.scope.cancel(reason="interrupted")
