"""The clients: Monque (async) and SyncMonque (blocking) enqueue, inspect and manage jobs. They run none."""

from .event_stream import EventStream
from .monque import Monque
from .sync_monque import SyncMonque

__all__ = [
    "EventStream",
    "Monque",
    "SyncMonque",
]
