"""Background jobs for trio and anyio programs on MongoDB, with structured concurrency.

The names of everyday use. The others are in `trio_monque.jobs`, `.client`, `.scheduler` and `.claims`, by topic; events
in `trio_monque.events`, exceptions in `trio_monque.errors`.
"""

from .claims import Claim, Claims, open_claims, run_claims
from .client import Monque, SyncMonque
from .errors import MonqueError
from .jobs import (
    Discard,
    Job,
    JobCancelledError,
    JobDeletedError,
    JobFailedError,
    JobFilter,
    JobSelector,
    JobStatus,
    NewJob,
    Retry,
    Snooze,
)
from .options_and_defaults import Retention
from .scheduler import (
    CancelReason,
    Health,
    RunningJob,
    Scheduler,
    SchedulerReport,
    Statistics,
    Worker,
    Workers,
    open_scheduler,
    run_scheduler,
    run_until_signalled,
)

__all__ = [
    "CancelReason",
    "Claim",
    "Claims",
    "Discard",
    "Health",
    "Job",
    "JobCancelledError",
    "JobDeletedError",
    "JobFailedError",
    "JobFilter",
    "JobSelector",
    "JobStatus",
    "Monque",
    "MonqueError",
    "NewJob",
    "Retention",
    "Retry",
    "RunningJob",
    "Scheduler",
    "SchedulerReport",
    "Snooze",
    "Statistics",
    "SyncMonque",
    "Worker",
    "Workers",
    "open_claims",
    "open_scheduler",
    "run_claims",
    "run_scheduler",
    "run_until_signalled",
]
