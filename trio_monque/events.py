"""Every event of jobs and of claimed documents. All derive from Event.

Events are frozen values. An event of a job or document reports what the database has accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson import ObjectId

from .jobs.job import Job, JobStatus

__all__ = [
    "ChangeStreamClosed",
    "ChangeStreamConnected",
    "ChangeStreamFailed",
    "ChangeStreamFallback",
    "DashboardActed",
    "DocumentClaimLost",
    "DocumentDeadLettered",
    "DocumentFailed",
    "DocumentsRescued",
    "Event",
    "HeartbeatFailed",
    "JobCancelled",
    "JobClaimLost",
    "JobCompleted",
    "JobDeleted",
    "JobFailed",
    "JobRetried",
    "JobStarted",
    "JobsCancelled",
    "JobsDeleted",
    "JobsRetried",
    "ScheduleExhausted",
    "SchedulerErrorOccurred",
    "ShutdownTimedOut",
    "StaleJobsRecovered",
]


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events. A listener for it gets every event."""


@dataclass(frozen=True, slots=True)
class JobStarted(Event):
    """A run began. `job` is the claimed job."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobCompleted(Event):
    """A run succeeded, and that is stored. `job` is the job as stored; `duration` is that of the run, in seconds."""

    job: Job
    duration: float


@dataclass(frozen=True, slots=True)
class JobFailed(Event):
    """A run failed, and that is stored. `job` is the job as stored; with `will_retry` it runs again by itself.

    `duration` is that of the run, in seconds; None if none has ended: the job was given up after a rescue, for example.
    """

    job: Job
    error: BaseException
    will_retry: bool
    duration: float | None = None


@dataclass(frozen=True, slots=True)
class JobCancelled(Event):
    """A job was cancelled."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobRetried(Event):
    """A caller made a failed or cancelled job pending again."""

    job: Job
    previous_status: JobStatus


@dataclass(frozen=True, slots=True)
class JobDeleted(Event):
    """A caller deleted a job."""

    job_id: ObjectId


@dataclass(frozen=True, slots=True)
class JobsCancelled(Event):
    """One call cancelled `count` pending jobs.

    `by_name` has the count for each name, of at most 100 names. If other clients changed jobs of a batch at the same
    time, it may add up to less than `count`.
    """

    count: int
    by_name: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class JobsRetried(Event):
    """One call made `count` failed or cancelled jobs pending again; see `JobsCancelled`."""

    count: int
    by_name: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class JobsDeleted(Event):
    """One call deleted `count` jobs; see `JobsCancelled`."""

    count: int
    by_name: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DashboardActed(Event):
    """A request over HTTP tried to change something; also if it was denied or refused. See `trio_monque.web`.

    `user` names the caller: `str(context.user)`, or else the address. `target` is the id of a job, or the conditions of
    a selection as JSON; empty if the request named none. `count` is the number of jobs, or of claimed documents, that
    were changed; None if that is unknown. `outcome` is the HTTP status of the answer.
    """

    user: str
    action: str
    target: str
    count: int | None
    outcome: int


@dataclass(frozen=True, slots=True)
class SchedulerErrorOccurred(Event):
    """An error of the scheduler itself, not of a handler. `job` is the job concerned, if there is one.

    Emitted once for each outage of a loop, not at each retry.
    """

    error: BaseException
    job: Job | None = None


@dataclass(frozen=True, slots=True)
class StaleJobsRecovered(Event):
    """`count` jobs of dead instances are pending again; `by_name` has the count for each name."""

    count: int
    by_name: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class JobClaimLost(Event):
    """A run lost its claim, or it is unknown whether its end was written. The run changes nothing further."""

    job: Job


@dataclass(frozen=True, slots=True)
class HeartbeatFailed(Event):
    """The claims could not be renewed. The scheduler retries until it succeeds. Emitted once for each outage."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class ScheduleExhausted(Event):
    """A recurring job used up its retries and goes on at its next occurrence."""

    job: Job
    error: BaseException


@dataclass(frozen=True, slots=True)
class ChangeStreamConnected(Event):
    """The change stream is open: jobs of other processes start at once, and polls are rare."""


@dataclass(frozen=True, slots=True)
class ChangeStreamFailed(Event):
    """The change stream broke, or could not be opened. The scheduler keeps trying to open it, and polls meanwhile.

    Emitted once, however many attempts fail until it is open again.
    """

    error: BaseException


@dataclass(frozen=True, slots=True)
class ChangeStreamClosed(Event):
    """The change stream, which was open, broke, or the scheduler closed it because it leaves."""


@dataclass(frozen=True, slots=True)
class ChangeStreamFallback(Event):
    """There is no change stream: on this server, for this user, or after three failures in a row. Polls take over.

    Announced once; in the last case the scheduler keeps trying to open the stream.
    """

    error: BaseException


@dataclass(frozen=True, slots=True)
class ShutdownTimedOut(Event):
    """Runs were cut short because the scheduler left. `jobs` are as they were claimed."""

    jobs: tuple[Job, ...]


# --- Of claims on any collection ---


@dataclass(frozen=True, slots=True)
class DocumentFailed(Event):
    """An attempt failed, and that is stored. `attempt` is its number; with `will_retry`, it is claimed again."""

    document_id: Any
    attempt: int
    error: BaseException
    will_retry: bool


@dataclass(frozen=True, slots=True)
class DocumentDeadLettered(Event):
    """A document has no attempts left: no instance claims it until `readmit`. `error` is that of the last attempt."""

    document_id: Any
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class DocumentClaimLost(Event):
    """Another instance took the lock, or it could not be renewed in time. The work on the document was cancelled."""

    document_id: Any
    attempt: int


@dataclass(frozen=True, slots=True)
class DocumentsRescued(Event):
    """The locks of `count` documents were taken from dead holders. Each counts as an attempt."""

    count: int
