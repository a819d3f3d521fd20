"""The page of metrics: the numbers of the application's scheduler or client, as text for Prometheus.

It has a registry of its own. The default one has what the host counts, which is not ours to show, and it may have the
metrics of this collection already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from ...client.monque import Monque
from ...scheduler import Scheduler

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

KEPT: Final = 5.0
"""Seconds for which a page is shown again. Two scrapers do not double the work; no common interval is shorter."""


class MetricsPage:
    """Makes the page, one at a time. What the collection has is asked for every 15 seconds at most.

    Nothing is counted before the first scrape, so an application that is never scraped costs a job nothing.

    Args:
        monque: The client, or the scheduler: then the page has its numbers, too.
        clock: Returns seconds.
    """

    def __init__(self, monque: Monque, clock: Callable[[], float] = time.monotonic) -> None:
        self._monque = monque
        self._clock = clock
        self._turn: anyio.Lock | None = None
        self._registry: CollectorRegistry | None = None
        self._page = b""
        self._made_at: float | None = None

    async def page(self) -> bytes:
        """Return the page; one that is being made is waited for."""
        if self._turn is None:
            self._turn = anyio.Lock()  # Here: the application may be made on another event loop, or on none.
        async with self._turn:
            if self._made_at is None or self._clock() - self._made_at >= KEPT:
                if self._registry is None:
                    self._registry = _registry_of(self._monque)
                # In a thread: a scrape waits for the database, for a second at most.
                self._page = await anyio.to_thread.run_sync(partial(_text_of, self._registry))
                self._made_at = self._clock()
            return self._page


def _registry_of(monque: Monque) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry  # An extra, and so is the room behind it.

    from ...metrics import CollectionMetrics, SchedulerMetrics

    registry = CollectorRegistry()
    made = (
        SchedulerMetrics(monque, registry=registry)
        if isinstance(monque, Scheduler)
        else CollectionMetrics(monque, registry=registry)
    )
    made.__enter__()  # Without an end: the application has none, and the listener ends with the scheduler.
    return registry


def _text_of(registry: CollectorRegistry) -> bytes:
    from prometheus_client import generate_latest

    return generate_latest(registry)
