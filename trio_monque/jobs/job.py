"""A job as a frozen value, its status, and the occurrence that its next attempt belongs to.

The codec in `store/` knows what the fields are called in MongoDB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from bson import ObjectId

from ..safe_text import LONGEST_VALUE, one_line
from .meta import NO_META

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Result_co = TypeVarWithDefault("Result_co", covariant=True, default=Any)
else:
    Result_co = TypeVar("Result_co", covariant=True)


class JobStatus(StrEnum):
    """The status of a job. `transitions.py` has the changes between them."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class Job(Generic[Result_co]):
    """A job as the database held it at one moment. Datetimes are UTC-aware, durations are seconds.

    `Job[R]` is a job whose result is an R, as `enqueue(worker, ...)` returns it; `Job` leaves that open.

    Fields that the document does not have get their defaults, so documents of Monque for Node are complete jobs.

    Attributes:
        id: The document's `_id`.
        name: The name of the worker that runs it.
        data: The payload, as it was stored.
        status: See JobStatus.
        next_run_at: When it is due.
        fail_count: Failures in a row; 0 again when an occurrence completes.
        created_at, updated_at: When it was enqueued, and last changed.
        fail_reason: Why the last attempt failed.
        repeat_interval: A cron expression of five fields, for a recurring job.
        unique_key: At most one pending or processing job has this key under this name.
        claimed_by, locked_at, claim_token: The current claim: the instance that holds it, since when, and its
            fencing token.
        last_heartbeat, heartbeat_interval: When the claim was renewed last, and the seconds between renewals.
        renewed_at: When the holder renewed the claim last, or made it. Another process with the same instance id may
            write `last_heartbeat`, but not this.
        attempts: How often this library claimed the job; strictly grows.
        receipt: Identifies the settlement, or the batch of a bulk action, that was written last.
        rescues: How many claims on it died in a row.
        rev: Grows with every edit of a pending job's content.
        cancel_requested_at: When a caller requested that the current run be cancelled.
        timezone: IANA name of the time zone of `repeat_interval`; None for UTC.
        schedule_version: The `version` of the declaration of the schedule; None for none.
        timeout, max_attempts, max_rescues, on_exhausted: Options of this job, in place of its worker's.
        result: The return value of its handler, if results are stored.
        progress, saved: The progress that its handler reported, and the checkpoint that it saved for its next attempt.
        saved_for: The occurrence in which a recurring job's handler saved: the date at which it was first due.
        occurrence: The occurrence of a recurring job that is tried again: the date at which it was first due.
        resumes_at: The due date that this library wrote last for another attempt at the same occurrence.
        started_at, finished_at: Begin and end of the last counted run.
        errors: The last errors, oldest first.
        start_by: If no run has begun by then, the job is cancelled. None for no limit, and after the first run.
        meta: Strings that accompany the job: the `meta` that it was enqueued with. Empty if there are none.
        follows: The id of the job whose end enqueued this one, as the `then` of its worker says.
        follow_up: What `then` still has to do: True from a claim by a worker with `then` until its follow-up is chosen,
            and then the id of that job for a moment. In a follow-up that is not released yet, its due date, and the
            `attempts` of the job that it follows. None for nothing.
        debounced_since: When the first of the calls was made that `on_conflict="debounce"` made one job of; None for
            none, and after its first run.
        again: The id of the call that wants another run of this running job, by `on_conflict`; None for none.
        again_data, again_at, again_start_by, again_since: What that run has as `data`, `next_run_at`, `start_by` and
            `debounced_since`.
    """

    id: ObjectId
    name: str
    data: Any = None
    status: JobStatus = JobStatus.PENDING
    next_run_at: datetime
    fail_count: int = 0
    created_at: datetime
    updated_at: datetime
    fail_reason: str | None = None
    repeat_interval: str | None = None
    unique_key: str | None = None
    claimed_by: str | None = None
    locked_at: datetime | None = None
    claim_token: str | None = None
    last_heartbeat: datetime | None = None
    heartbeat_interval: float | None = None
    renewed_at: datetime | None = None
    attempts: int = 0
    receipt: str | None = None
    rescues: int = 0
    rev: int = 0
    cancel_requested_at: datetime | None = None
    timezone: str | None = None
    schedule_version: int | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    max_rescues: int | None = None
    on_exhausted: str | None = None
    # For type checkers, a job of type R has ended as completed, and its worker stores results: otherwise it is None.
    result: Result_co = None  # type: ignore[assignment]
    progress: Any = None
    saved: Any = None
    saved_for: datetime | None = None
    occurrence: datetime | None = None
    resumes_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    errors: Sequence[Mapping[str, Any]] = ()
    start_by: datetime | None = None
    meta: Mapping[str, str] = NO_META
    follows: ObjectId | None = None
    follow_up: Any = None
    debounced_since: datetime | None = None
    again: ObjectId | None = None
    again_data: Any = None
    again_at: datetime | None = None
    again_start_by: datetime | None = None
    again_since: datetime | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != _RESULT_READER}

    def __str__(self) -> str:
        return f"{one_line(self.name, LONGEST_VALUE)} {self.id} ({self.status}, attempt {self.attempts})"

    @classmethod
    def of(cls, values: dict[str, Any]) -> Job:
        """Makes a job of these values without any check. The job takes over the dict.

        Missing fields have their defaults, which every dataclass keeps in its class. Two jobs are made for each run,
        and `__init__` of a frozen dataclass, which sets all fields one by one, needs ten times the time and memory.
        """
        job = object.__new__(cls)
        object.__setattr__(job, "__dict__", values)
        return job

    @classmethod
    def kept(cls, values: Mapping[str, Any]) -> Job:
        """Like `of`, for a job that is kept during its run: 300 bytes smaller, unless it has unusual fields.

        If attributes are set one by one, Python stores their names once for the whole class (key-sharing dicts).
        """
        if not values.keys() <= _KEPT_ONCE:
            return cls.of(dict(values))  # Other names would end the sharing, and double the size.
        job, put = object.__new__(cls), object.__setattr__
        for name, value in values.items():
            put(job, name, value)
        return job


REQUIRED: Final = tuple(field.name for field in fields(Job) if field.default is MISSING)
"""The fields without which a document is not a job. The others have a default."""

# The fields of a claimed job, also of one that was tried before.
_KEPT_ONCE: Final = frozenset(
    {
        "id",
        "name",
        "data",
        "status",
        "next_run_at",
        "fail_count",
        "created_at",
        "updated_at",
        "claimed_by",
        "locked_at",
        "claim_token",
        "last_heartbeat",
        "renewed_at",
        "heartbeat_interval",
        "attempts",
        "receipt",
        "fail_reason",
        "started_at",
        "finished_at",
        "errors",
    }
)
# Python takes the shared names from the first objects of a class, at most thirty names. These are the first objects.
for _ in range(30):
    Job.kept(dict.fromkeys(_KEPT_ONCE))


# --- How the result of a job is read that was enqueued with its worker ---

_RESULT_READER: Final = "_read_result"
"""Not a field of a job, because it is not stored: an entry in the `__dict__` of jobs that `enqueue` returns.

It is in no comparison and no text of a job. A pickled copy has none: a worker cannot be pickled.
"""


def with_result_reader(job: Job, read: Callable[[Any], Any] | None) -> Job:
    """The same job, with the function that makes the declared type of a result from what is stored."""
    return job if read is None else Job.of({**vars(job), _RESULT_READER: read})


def result_reader(job: Job) -> Callable[[Any], Any] | None:
    """The function that `with_result_reader` was given for this job."""
    read: Callable[[Any], Any] | None = vars(job).get(_RESULT_READER)
    return read


# --- Which occurrence of a recurring job an attempt belongs to ---
#
# Monque for Node may run the job between two attempts of ours, and it clears no field that it does not know. When Node
# completes an occurrence that failed here, our checkpoint and our count of deaths stay in the document, and no field of
# ours shows that the occurrence is over. But Node then always writes another `nextRunAt`. So each write of ours that
# leaves a job pending for another attempt at the same occurrence stores its due date a second time, in `resumesAt`.
# While both dates are equal, only this library has ended attempts.
#
# If the dates differ, that proves nothing: Node may have completed the occurrence, or failed an attempt at it, or an
# operator may have rescheduled the job. Then the next attempt counts as a new occurrence, which costs the work of a
# lost checkpoint. The wrong guess in the other direction would make a handler skip work that was never done.

OF_ONE_OCCURRENCE: Final = ("saved", "saved_for", "occurrence", "resumes_at")
"""The end of an occurrence clears these fields."""


def is_resumed(job: Job) -> bool:
    """Whether this library scheduled the attempt that is due or runs, and no other program has run the job since."""
    return job.resumes_at is not None and job.resumes_at == job.next_run_at


def occurrence_of(job: Job) -> datetime | None:
    """The occurrence that is due or runs: the date at which it was first due. None for a one-off job."""
    if job.repeat_interval is None:
        return None
    return job.occurrence if job.occurrence is not None and is_resumed(job) else job.next_run_at


def checkpoint_of(job: Job) -> Any:
    """The checkpoint of an earlier attempt at this occurrence; None if there is none, or if that is uncertain."""
    if job.repeat_interval is None or (job.saved_for is not None and job.saved_for == occurrence_of(job)):
        return job.saved
    return None


def deaths_of(job: Job) -> int:
    """How many claims on the job died in a row before the current one."""
    # An older release wrote no `resumesAt`. Its count must not be lost: a job that kills processes would never end.
    return job.rescues if job.resumes_at is None or is_resumed(job) else 0


def resumed(job: Job, next_run_at: datetime) -> dict[str, Any]:
    """The fields that are stored with the date of another attempt at the same occurrence; empty for a one-off job."""
    occurrence = occurrence_of(job)
    return {} if occurrence is None else {"occurrence": occurrence, "resumes_at": next_run_at}


def log_extra(job: Job) -> dict[str, object]:
    """The fields of a job in a log record (`extra=`), for programs that store logs as data."""
    return {
        "job_id": str(job.id),
        "job_name": one_line(job.name, LONGEST_VALUE),
        "job_status": str(job.status),
        "attempt": job.attempts,
    }
