"""What a job is and how it may change. Pure: no clock, no MongoDB, no trio."""

from .answers import CursorPage, QueueStats, QueueView, WorkerView
from .broken_document import BrokenDocument
from .bulk_result import BulkFailure, BulkResult
from .cron import SchedulePreview
from .instance import Instance
from .job import Job, JobStatus
from .new_job import NewJob
from .selection import JobFilter, JobSort
from .selectors import JobSelector, Selection
from .verdicts import Discard, Retry, Snooze

__all__ = [
    "BrokenDocument",
    "BulkFailure",
    "BulkResult",
    "CursorPage",
    "Discard",
    "Instance",
    "Job",
    "JobFilter",
    "JobSelector",
    "JobSort",
    "JobStatus",
    "NewJob",
    "QueueStats",
    "QueueView",
    "Retry",
    "SchedulePreview",
    "Selection",
    "Snooze",
    "WorkerView",
]
