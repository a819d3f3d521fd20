"""Ground: what every blocking call of a client stands on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from ..clock import ServerClock, virtual_time
from ..errors import MonqueConnectionError
from ..options import ClientConfig
from ..store import indexes
from ..store.connection import JobCollection, known_primary, measure_clock_offset
from ..store.indexes import IndexesGoneError

T = TypeVar("T")

# Between the making of the indexes and the call they may be lost once more. A bound: it is no chance then.
MOST_LOSSES = 3

MOST_DRIFT = 0.05
"""Seconds by which the offset to the server's clock may change without anybody being told."""


class Ground:
    """What every blocking call stands on: the collection, the server's time, and the indexes once they exist."""

    def __init__(self, jobs: JobCollection, config: ClientConfig) -> None:
        self.jobs = replace(jobs, has_indexes=not config.skip_index_creation)
        self.config = config
        self.clock = ServerClock()
        # Set by a scheduler: its timers were set by the time that was taken for the server's.
        self.clock_moved: Callable[[], None] = lambda: None
        self._timekeeper: tuple[str, int] | None = None
        self._indexing = threading.Lock()
        self._indexed = config.skip_index_creation
        self._were_made = False

    def now(self) -> datetime:
        """The server's time; measures the offset to it first where that is unknown, old, or another server's."""
        if self.is_clock_stale():
            self.measure_clock_offset()
        return self.clock.now()

    def is_clock_stale(self) -> bool:
        """Whether the offset should be measured before the time is used. Never in virtual time."""
        if self.clock.is_stale():
            return True
        primary = known_primary(self.jobs)
        return primary is not None and primary != self._timekeeper and virtual_time() is None

    def measure_clock_offset(self) -> None:
        # Asked before: where the primary changes meanwhile, it is measured once more.
        primary = known_primary(self.jobs)
        offset = measure_clock_offset(self.jobs)
        if offset is not None:
            self._timekeeper = primary or known_primary(self.jobs)
            if self.clock.set_offset(offset) > MOST_DRIFT:
                self.clock_moved()

    def forget_indexes(self) -> None:
        """They may be gone: they are made again before the next write."""
        with self._indexing:
            self._indexed = self.config.skip_index_creation

    def ensure_indexes(self) -> None:
        """Creates the indexes before the first write; a failure is tried again at the next."""
        if self._indexed:
            return
        with self._indexing:
            if not self._indexed:
                try:
                    indexes.ensure(self.jobs, self.config.retention)
                except MonqueConnectionError as error:
                    # They could be made once. What keeps them from it now passes (two live jobs of one unique key
                    # that came in meanwhile, say), and is no reason for a scheduler to end.
                    error.transient = error.transient or self._were_made
                    raise
                self._indexed = self._were_made = True

    def with_indexes(self, call: Callable[[], T]) -> T:
        """What `call` returns, once there are indexes: made again where it finds that they are gone."""
        for _ in range(MOST_LOSSES):
            self.ensure_indexes()
            try:
                return call()
            except IndexesGoneError:
                self.forget_indexes()
        self.ensure_indexes()
        return call()
