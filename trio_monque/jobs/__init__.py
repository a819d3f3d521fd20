"""What a job is and how it may change. Pure: no clock, no MongoDB, no trio."""

from .bulk_changes import BulkFailure, BulkResult
from .ended_job_errors import JobCancelledError, JobDeletedError, JobEndedError, JobFailedError
from .enqueued import Enqueued
from .failure_groups import ErrorGroup, ErrorGroups, FailureGroup
from .instance import Instance, LastBlock
from .job import Job, JobStatus
from .job_parts import (
    ChildOf,
    FollowUpChosen,
    FollowUpOwed,
    FollowUpParked,
    JobClaim,
    JobInternals,
    JobLimits,
    NurseryScope,
    RunAgain,
    Schedule,
)
from .job_query import JobFilter, JobSort
from .job_selector import JobSelector, Selection
from .minutes import Figures, Histogram, Minute
from .name_pause import NamePause
from .new_job import NewJob
from .nursery_errors import JobNurseryError
from .outcomes import Discard, Retry, Snooze
from .schedule_preview import SchedulePreview
from .views import BrokenDocument, CursorPage, JobList, QueueDepth, QueueStats, QueueView, ScheduleBrief, WorkerView

__all__ = [
    "BrokenDocument",
    "BulkFailure",
    "BulkResult",
    "ChildOf",
    "CursorPage",
    "Discard",
    "Enqueued",
    "ErrorGroup",
    "ErrorGroups",
    "FailureGroup",
    "Figures",
    "FollowUpChosen",
    "FollowUpOwed",
    "FollowUpParked",
    "Histogram",
    "Instance",
    "Job",
    "JobCancelledError",
    "JobClaim",
    "JobDeletedError",
    "JobEndedError",
    "JobFailedError",
    "JobFilter",
    "JobInternals",
    "JobLimits",
    "JobList",
    "JobNurseryError",
    "JobSelector",
    "JobSort",
    "JobStatus",
    "LastBlock",
    "Minute",
    "NamePause",
    "NewJob",
    "NurseryScope",
    "QueueDepth",
    "QueueStats",
    "QueueView",
    "Retry",
    "RunAgain",
    "Schedule",
    "ScheduleBrief",
    "SchedulePreview",
    "Selection",
    "Snooze",
    "WorkerView",
]
