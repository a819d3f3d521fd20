"""Counts what is still open: the connections of a client's pool, and threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Final

from pymongo import monitoring

RELAY: Final = "relay of a test"
"""The name of the threads of relays, which tests set up between servers of theirs, and keep for later tests."""


class Connections(monitoring.ConnectionPoolListener):
    """Counts those of a client's pool."""

    def __init__(self) -> None:
        self.open = 0
        self._lock = threading.Lock()

    def connection_created(self, event: monitoring.ConnectionCreatedEvent) -> None:
        with self._lock:
            self.open += 1

    def connection_closed(self, event: monitoring.ConnectionClosedEvent) -> None:
        with self._lock:
            self.open -= 1

    def pool_created(self, event: monitoring.PoolCreatedEvent) -> None: ...

    def pool_ready(self, event: monitoring.PoolReadyEvent) -> None: ...

    def pool_cleared(self, event: monitoring.PoolClearedEvent) -> None: ...

    def pool_closed(self, event: monitoring.PoolClosedEvent) -> None: ...

    def connection_ready(self, event: monitoring.ConnectionReadyEvent) -> None: ...

    def connection_check_out_started(self, event: monitoring.ConnectionCheckOutStartedEvent) -> None: ...

    def connection_check_out_failed(self, event: monitoring.ConnectionCheckOutFailedEvent) -> None: ...

    def connection_checked_out(self, event: monitoring.ConnectionCheckedOutEvent) -> None: ...

    def connection_checked_in(self, event: monitoring.ConnectionCheckedInEvent) -> None: ...


def threads() -> Mapping[str, int]:
    """By name, without the driver's own, which belong to the client. Those that trio keeps for later are alike."""
    all_names = [thread.name for thread in threading.enumerate()]
    # And without those of the relays that other tests have set up between servers of theirs.
    names = [name for name in all_names if not name.startswith("pymongo_") and name != RELAY]
    return Counter("idle" if name.startswith("Trio thread ") else name for name in names)
