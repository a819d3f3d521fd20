"""Background jobs for trio and anyio programs on MongoDB, with structured concurrency."""

from .claims.claim import Claim
from .claims.claims import Claims, RunningClaims, open_claims, run_claims
from .claims.events import ClaimLost, DocumentFailed, DocumentSetAside, DocumentsRescued
from .claims.managing import SetAside, create_claim_index, readmit, set_aside
from .claims.telling import ClaimsReport
from .client.event_stream import EventStream
from .client.monque import Monque, SyncMonque
from .engine.run_end import CancelReason
from .errors import (
    AggregationTimeoutError,
    AsyncWithError,
    BrokenDocumentError,
    CallContextError,
    ClaimLostError,
    DocumentRefusedError,
    EmbeddedServerError,
    FilterStillMatchesError,
    InstanceCollisionError,
    InvalidCronError,
    InvalidCursorError,
    InvalidDatabaseError,
    InvalidJobIdentifierError,
    InvalidOptionError,
    InvalidPayloadError,
    InvalidUpdateError,
    JobStateError,
    MonqueConnectionError,
    MonqueError,
    PartlyDoneError,
    PartlyEnqueuedError,
    PayloadTooLargeError,
    ScanRefusedError,
    ScheduleEndedError,
    UnreadablePayloadError,
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
from .scheduler.worker import Worker
from .scheduler.workers import Workers

__all__ = [
    "AggregationTimeoutError",
    "AsyncWithError",
    "BrokenDocument",
    "BrokenDocumentError",
    "BulkError",
    "BulkResult",
    "CallContextError",
    "CancelReason",
    "ChangeStreamClosed",
    "ChangeStreamConnected",
    "ChangeStreamError",
    "ChangeStreamFallback",
    "Claim",
    "ClaimLost",
    "ClaimLostError",
    "Claims",
    "ClaimsReport",
    "CursorPage",
    "Discard",
    "DocumentFailed",
    "DocumentRefusedError",
    "DocumentSetAside",
    "DocumentsRescued",
    "EmbeddedServerError",
    "Event",
    "EventStream",
    "FilterStillMatchesError",
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
    "InvalidUpdateError",
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
    "RunningClaims",
    "RunningJob",
    "ScanRefusedError",
    "ScheduleEndedError",
    "ScheduleExhausted",
    "SchedulePreview",
    "Scheduler",
    "SchedulerReport",
    "Selection",
    "SetAside",
    "ShutdownTimedOut",
    "Snooze",
    "StaleJobsRecovered",
    "Statistics",
    "SyncMonque",
    "UnreadablePayloadError",
    "Worker",
    "WorkerRegistrationError",
    "WorkerView",
    "Workers",
    "create_claim_index",
    "open_claims",
    "open_scheduler",
    "readmit",
    "run_claims",
    "run_scheduler",
    "run_until_signalled",
    "set_aside",
]
