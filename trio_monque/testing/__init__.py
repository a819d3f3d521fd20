"""Tools for testing programs that use this library. `plugin.py` has the fixtures; the rest works without pytest."""

from ..jobs.outcomes import Discarded, Failed, Snoozed, Succeeded
from .assertions import assert_enqueued, assert_not_enqueued
from .faults import Fault, fail_next
from .no_database import NoDatabaseError
from .recorder import RecordingScheduler
from .run_job import HandlerRun, run_job
from .schedulers import SchedulerOpener, crash
from .virtual_run import run_virtual
from .virtual_time import advance, drain, now, quiesce, start_virtual_time

__all__ = [
    "Discarded",
    "Failed",
    "Fault",
    "HandlerRun",
    "NoDatabaseError",
    "RecordingScheduler",
    "SchedulerOpener",
    "Snoozed",
    "Succeeded",
    "advance",
    "assert_enqueued",
    "assert_not_enqueued",
    "crash",
    "drain",
    "fail_next",
    "now",
    "quiesce",
    "run_job",
    "run_virtual",
    "start_virtual_time",
]
