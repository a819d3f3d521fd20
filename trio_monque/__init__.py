"""Background jobs for trio and anyio programs on MongoDB, with structured concurrency."""

from .client.event_stream import EventStream
from .client.monque import Monque, SyncMonque
from .engine.run_end import CancelReason
from .errors import (
    AggregationTimeoutError,
    BrokenDocumentError,
    ClaimLostError,
    EmbeddedServerError,
    InstanceCollisionError,
    InvalidCronError,
    InvalidCursorError,
    InvalidDatabaseError,
    InvalidJobIdentifierError,
    InvalidOptionError,
    InvalidPayloadError,
    JobStateError,
    MonqueConnectionError,
    MonqueError,
    PartlyDoneError,
    PartlyEnqueuedError,
    PayloadTooLargeError,
    WorkerRegistrationError,
)
from .jobs.answers import CursorPage, QueueStats, QueueView, WorkerView
from .jobs.broken_document import BrokenDocument
from .jobs.bulk_result import BulkError, BulkResult
from .jobs.cron import SchedulePreview
from .jobs.events import (
    ChangeStreamClosed,
    ChangeStreamConnected,
    ChangeStreamError,
    ChangeStreamFallback,
    Event,
    HeartbeatFailed,
    JobCancelled,
    JobCompleted,
    JobDeleted,
    JobError,
    JobFailed,
    JobRetried,
    JobsCancelled,
    JobsDeleted,
    JobsRetried,
    JobStarted,
    LeaseLost,
    ScheduleExhausted,
    ShutdownTimedOut,
    StaleJobsRecovered,
)
from .jobs.instance import Instance
from .jobs.job import Job, JobStatus
from .jobs.new_job import NewJob
from .jobs.selection import JobFilter, JobSort
from .jobs.selectors import JobSelector, Selection
from .jobs.verdicts import Discard, Retry, Snooze
from .options import Retention
from .scheduler.health import Health, LoopHealth
from .scheduler.running_job import RunningJob
from .scheduler.scheduler import Scheduler, open_scheduler, run_scheduler
from .scheduler.signals import run_until_signalled
from .scheduler.statistics import Statistics
from .scheduler.telling import SchedulerReport
from .scheduler.workers import Worker, Workers

__all__ = [
    "AggregationTimeoutError",
    "BrokenDocument",
    "BrokenDocumentError",
    "BulkError",
    "BulkResult",
    "CancelReason",
    "ChangeStreamClosed",
    "ChangeStreamConnected",
    "ChangeStreamError",
    "ChangeStreamFallback",
    "ClaimLostError",
    "CursorPage",
    "Discard",
    "EmbeddedServerError",
    "Event",
    "EventStream",
    "Health",
    "HeartbeatFailed",
    "Instance",
    "InstanceCollisionError",
    "InvalidCronError",
    "InvalidCursorError",
    "InvalidDatabaseError",
    "InvalidJobIdentifierError",
    "InvalidOptionError",
    "InvalidPayloadError",
    "Job",
    "JobCancelled",
    "JobCompleted",
    "JobDeleted",
    "JobError",
    "JobFailed",
    "JobFilter",
    "JobRetried",
    "JobSelector",
    "JobSort",
    "JobStarted",
    "JobStateError",
    "JobStatus",
    "JobsCancelled",
    "JobsDeleted",
    "JobsRetried",
    "LeaseLost",
    "LoopHealth",
    "Monque",
    "MonqueConnectionError",
    "MonqueError",
    "NewJob",
    "PartlyDoneError",
    "PartlyEnqueuedError",
    "PayloadTooLargeError",
    "QueueStats",
    "QueueView",
    "Retention",
    "Retry",
    "RunningJob",
    "ScheduleExhausted",
    "SchedulePreview",
    "Scheduler",
    "SchedulerReport",
    "Selection",
    "ShutdownTimedOut",
    "Snooze",
    "StaleJobsRecovered",
    "Statistics",
    "SyncMonque",
    "Worker",
    "WorkerRegistrationError",
    "WorkerView",
    "Workers",
    "open_scheduler",
    "run_scheduler",
    "run_until_signalled",
]
