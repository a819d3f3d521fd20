"""For the tests of programs that use this library. The fixtures are in `plugin.py`; the rest works without pytest."""

from ..jobs.verdicts import Discarded, Failed, Snoozed, Succeeded
from .assertions import assert_enqueued, assert_not_enqueued
from .clockwork import advance, drain, now, quiesce, start_virtual_time
from .crashing import crash
from .faults import Fault, fail_next
from .no_database import NoDatabaseError
from .recorder import RecordingScheduler
from .run_job import HandlerOutcome, run_job
from .schedulers import SchedulerOpener
from .virtual_run import run_virtual

__all__ = [
    "Discarded",
    "Failed",
    "Fault",
    "HandlerOutcome",
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
