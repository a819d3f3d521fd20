"""The clients: Monque (async) and SyncMonque (blocking) enqueue, inspect and manage jobs. They run none."""

from .child import Child
from .event_stream import EventStream
from .job_nursery import JobNursery
from .monque import Monque
from .opening_nurseries import open_job_nursery
from .sync_monque import SyncMonque

__all__ = [
    "Child",
    "EventStream",
    "JobNursery",
    "Monque",
    "SyncMonque",
    "open_job_nursery",
]
