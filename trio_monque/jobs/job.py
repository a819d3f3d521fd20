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
from .job_parts import (
    IN_PARTS,
    NO_INTERNALS,
    NO_LIMITS,
    ChildOf,
    FollowUp,
    JobClaim,
    JobInternals,
    JobLimits,
    NurseryScope,
    RunAgain,
    Schedule,
)
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

    What the document does not have gets its default, so documents of Monque for Node are complete jobs. What only some
    jobs have is in parts (`job_parts.py`).

    Attributes:
        id: The document's `_id`.
        name: The name of the worker that runs it.
        data: The payload, as it was stored.
        status: See JobStatus.
        next_run_at: When it is due.
        created_at, updated_at: When it was enqueued, and last changed.
        started_at, finished_at: Begin and end of the last counted run.
        attempts: How often this library claimed the job; strictly grows.
        fail_count: Failures in a row; 0 again when an occurrence completes.
        fail_reason: Why the last attempt failed.
        errors: The last errors, oldest first: each has `at`, `attempt`, `error`, and mostly `traceback`, `by` (the
            instance) and `ran` (milliseconds).
        rescues: How many claims on it died in a row.
        result: The return value of its handler, if results are stored.
        progress, saved: The progress that its handler reported, and the checkpoint that it saved for its next attempt.
        unique_key: At most one pending or processing job has this key under this name.
        meta: Strings that accompany the job: the `meta` that it was enqueued with. Empty if there are none.
        limits: Its own limits, in place of those of its worker: `timeout`, `max_attempts`, `max_rescues`, `start_by`.
        schedule: The schedule of a recurring job: `cron`, `timezone`, `version`, `on_exhausted`; None for a one-off
            job.
        claim: Who holds the job (`by`), since when (`since`), and its signs of life; None if it is not claimed.
        follows: The id of the job whose end enqueued this one, as the `then` of its worker says.
        follow_up: What `then` still has to do: a FollowUpOwed from a claim by a worker with `then` until its follow-up
            is chosen, and then a FollowUpChosen for a moment. A follow-up that is not released yet has a
            FollowUpParked. None for nothing.
        debounced_since: When the first of the calls was made that `on_conflict="debounce"` made one job of; None for
            none, and after its first run.
        again: Another run that a call wants of this running job, by its `on_conflict`; None for none.
        nursery: The scope by which it finds its children, once it has opened a job nursery; None for none.
        child: Its `parent`, `block` and `key` if it is a child of a job nursery, with the notes of its parent; None
            if it is not a child.
        internals: What the library notes for itself. It may change with each version.
    """

    id: ObjectId
    name: str
    data: Any = None
    status: JobStatus = JobStatus.PENDING
    next_run_at: datetime
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int = 0
    fail_count: int = 0
    fail_reason: str | None = None
    errors: Sequence[Mapping[str, Any]] = ()
    rescues: int = 0
    # For type checkers, a job of type R has ended as completed, and its worker stores results: otherwise it is None.
    result: Result_co = None  # type: ignore[assignment]
    progress: Any = None
    saved: Any = None
    unique_key: str | None = None
    meta: Mapping[str, str] = NO_META
    limits: JobLimits = NO_LIMITS
    schedule: Schedule | None = None
    claim: JobClaim | None = None
    follows: ObjectId | None = None
    follow_up: FollowUp | None = None
    debounced_since: datetime | None = None
    again: RunAgain | None = None
    nursery: NurseryScope | None = None
    child: ChildOf | None = None
    internals: JobInternals = NO_INTERNALS

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != _RESULT_READER}

    def __str__(self) -> str:
        return f"{one_line(self.name, LONGEST_VALUE)} {self.id} ({self.status}, attempt {self.attempts})"


def made_of(values: dict[str, Any]) -> Job:
    """Makes a job of these values without any check. The job takes over the dict.

    Missing attributes have their defaults, which every dataclass keeps in its class. Two jobs are made for each run,
    and `__init__` of a frozen dataclass, which sets all attributes one by one, needs ten times the time and memory.
    """
    job = object.__new__(Job)
    object.__setattr__(job, "__dict__", values)
    return job


def kept_of(values: Mapping[str, Any]) -> Job:
    """Like `made_of`, for a job that is kept during its run: 300 bytes smaller, unless it has unusual attributes.

    If attributes are set one by one, Python stores their names once for the whole class (key-sharing dicts).
    """
    if not values.keys() <= _KEPT_ONCE:
        return made_of(dict(values))  # Other names would end the sharing, and double the size.
    job, put = object.__new__(Job), object.__setattr__
    for name, value in values.items():
        put(job, name, value)
    return job


REQUIRED: Final = tuple(field.name for field in fields(Job) if field.default is MISSING)
"""The attributes without which a document is not a job. The others have a default."""

# The attributes of a claimed job, also of one that was tried before.
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
        "claim",
        "attempts",
        "internals",
        "fail_reason",
        "started_at",
        "finished_at",
        "errors",
    }
)
# Python takes the shared names from the first objects of a class, at most thirty names. These are the first objects.
for _ in range(30):
    kept_of(dict.fromkeys(_KEPT_ONCE))


def value_at(job: Job, path: str) -> Any:
    """The value of an attribute, or of one in a part, such as "claim.token"; None if the job does not have the part."""
    if path not in IN_PARTS:
        return getattr(job, path)
    part, name = IN_PARTS[path]
    return getattr(getattr(job, part), name, None)


# --- How the result of a job is read that was enqueued with its worker ---

_RESULT_READER: Final = "_read_result"
"""Not a field of a job, because it is not stored: an entry in the `__dict__` of jobs that `enqueue` returns.

It is in no comparison and no text of a job. A pickled copy has none: a worker cannot be pickled.
"""


def with_result_reader(job: Job, read: Callable[[Any], Any] | None) -> Job:
    """The same job, with the function that makes the declared type of a result from what is stored."""
    return job if read is None else made_of({**vars(job), _RESULT_READER: read})


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

OF_ONE_OCCURRENCE: Final = ("saved", "internals.saved_for", "internals.occurrence", "internals.resumes_at")
"""The end of an occurrence clears these."""


def is_resumed(job: Job) -> bool:
    """Whether this library scheduled the attempt that is due or runs, and no other program has run the job since."""
    resumes_at = job.internals.resumes_at
    return resumes_at is not None and resumes_at == job.next_run_at


def occurrence_of(job: Job) -> datetime | None:
    """The occurrence that is due or runs: the date at which it was first due. None for a one-off job."""
    if job.schedule is None:
        return None
    occurrence = job.internals.occurrence
    return occurrence if occurrence is not None and is_resumed(job) else job.next_run_at


def checkpoint_of(job: Job) -> Any:
    """The checkpoint of an earlier attempt at this occurrence; None if there is none, or if that is uncertain."""
    if job.schedule is None:
        return job.saved
    saved_for = job.internals.saved_for
    return job.saved if saved_for is not None and saved_for == occurrence_of(job) else None


def deaths_of(job: Job) -> int:
    """How many claims on the job died in a row before the current one."""
    # An older release wrote no `resumesAt`. Its count must not be lost: a job that kills processes would never end.
    return job.rescues if job.internals.resumes_at is None or is_resumed(job) else 0


def resumed(job: Job, next_run_at: datetime) -> dict[str, Any]:
    """What is stored with the date of another attempt at the same occurrence; empty for a one-off job."""
    occurrence = occurrence_of(job)
    return {} if occurrence is None else {"internals.occurrence": occurrence, "internals.resumes_at": next_run_at}


def log_extra(job: Job) -> dict[str, object]:
    """The fields of a job in a log record (`extra=`), for programs that store logs as data."""
    return {
        "job_id": str(job.id),
        "job_name": one_line(job.name, LONGEST_VALUE),
        "job_status": str(job.status),
        "attempt": job.attempts,
    }
