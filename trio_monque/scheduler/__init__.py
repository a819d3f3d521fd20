"""Schedulers: the engine (`engine/`) runs the jobs of a collection (`jobs/`, `store/`)."""

from ..engine.run_end import CancelReason
from ..host.engine_numbers import Batches
from ..host.health import Health, LoopHealth
from .events_and_report import SchedulerReport
from .running_job import RunningJob
from .scheduler import Scheduler, open_scheduler, run_scheduler
from .scheduler_client import SchedulerClient
from .signals import run_until_signalled
from .statistics import Statistics
from .worker import Worker
from .workers import Workers

__all__ = [
    "Batches",
    "CancelReason",
    "Health",
    "LoopHealth",
    "RunningJob",
    "Scheduler",
    "SchedulerClient",
    "SchedulerReport",
    "Statistics",
    "Worker",
    "Workers",
    "open_scheduler",
    "run_scheduler",
    "run_until_signalled",
]
