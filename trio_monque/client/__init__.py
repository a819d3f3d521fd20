"""The producer's and the operator's door."""

from .event_stream import EventStream
from .monque import Monque
from .sync_monque import SyncMonque

__all__ = [
    "EventStream",
    "Monque",
    "SyncMonque",
]
