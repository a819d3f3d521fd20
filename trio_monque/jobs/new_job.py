"""New jobs and schedules: their names, keys, payloads and times are checked before anything is sent. Pure."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Protocol,
    TypedDict,
    TypeGuard,
    TypeVar,
    Unpack,
    overload,
    runtime_checkable,
)
from zoneinfo import ZoneInfo

from bson import Code, ObjectId

from ..checks import check_count, check_seconds, check_whole, checked_moment
from ..error_types import InvalidCronError, InvalidJobIdentifierError, InvalidOptionError
from .cron import check_timezone, next_occurrence, normalised
from .enqueued import ON_CONFLICT, OnConflict
from .job import Job, made_of
from .job_parts import JobLimits, Schedule
from .meta import NO_META
from .run_again import debounced_until
from .stored_value_limits import TypedWorker, takes_data

T = TypeVar("T")

LONGEST_NAME = 255
LONGEST_UNIQUE_KEY = 1024

LONGEST_DELAY = 1000 * 366 * 86400.0

HIGHEST_VERSION: Final = 2**53
"""The highest version of a schedule. Milliseconds since 1970 are below it, and JavaScript represents it exactly."""

FIELDS_OF_CRON: Final = 5

ON_EXHAUSTED: Final = ("continue", "fail")

# Control characters, and lone surrogates: they cannot be encoded as UTF-8.
_NOT_IN_KEYS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NOT_IN_NAMES: Final = re.compile(rf"\s|{_NOT_IN_KEYS.pattern}")


@runtime_checkable
class Named(Protocol):
    """An object that can be passed as a job's name: a Worker, or any object with the name of one."""

    @property
    def name(self) -> str: ...


class JobOptions(TypedDict, total=False):
    """The options of one job besides its name and data; see NewJob."""

    run_at: datetime | None
    delay: float | timedelta | None
    start_by: datetime | None
    unique_key: str | None
    on_conflict: OnConflict
    max_wait: float | timedelta | None
    max_attempts: int | None
    max_rescues: int | None
    timeout: float | None
    meta: Mapping[str, str] | None


@dataclass(frozen=True)
class NewJob:
    """A job to be enqueued: `NewJob(worker, data)`, or `NewJob("name", data)`.

    Attributes:
        name: The name of the worker that runs it: 1 to 255 characters, no whitespace or control characters. If you
            pass a worker, it is the worker's name.
        data: Any BSON value, or an instance of a class with fields, which is stored as a document of these fields. If
            you pass a worker, the data are checked at once, and this attribute is their stored form.
        run_at: When it is due, timezone-aware; None for now. A moment in the past is due at once.
        delay: Seconds from now, or a timedelta, instead of `run_at`. This attribute is in seconds.
        start_by: If no run has begun by then (timezone-aware, compared with the server's time), the job is cancelled.
        unique_key: At most one pending or processing job of this name has this key.
        on_conflict: What happens if a job has the key already: "keep" it, "replace" its data and its due date, or
            "debounce" it: replace its data, and let it wait for `delay` once more.
        max_wait: With "debounce", how many seconds the calls may delay the job in all, from the first one on. Given and
            kept as `delay` is.
        max_attempts: After how many failures this job is `failed`, instead of its worker's.
        max_rescues: How many deaths in a row it may cause, instead of the scheduler's.
        timeout: Seconds that one run may take, instead of its worker's.
        meta: Strings that accompany the job, and are not its data: see `job.meta`.
        is_checked: The data were checked against the `payload` of the worker that was passed.
    """

    name: str
    data: Any = None
    _: KW_ONLY
    run_at: datetime | None = None
    delay: float | None = None
    start_by: datetime | None = None
    unique_key: str | None = None
    on_conflict: OnConflict = "keep"
    max_wait: float | None = None
    max_attempts: int | None = None
    max_rescues: int | None = None
    timeout: float | None = None
    meta: Mapping[str, str] | None = None
    is_checked: bool = field(init=False, repr=False, compare=False, default=False)

    if TYPE_CHECKING:
        # The __init__ of the dataclass, with the type of `data` tied to the worker.
        @overload
        def __init__(self, name: TypedWorker[T], data: T, **options: Unpack[JobOptions]) -> None: ...
        @overload
        def __init__(self, name: TypedWorker[None], data: None = ..., **options: Unpack[JobOptions]) -> None: ...
        @overload
        def __init__(self, name: str, data: Any = ..., **options: Unpack[JobOptions]) -> None: ...
        def __init__(self, name: Any, data: Any = None, **options: Unpack[JobOptions]) -> None: ...

    def __post_init__(self) -> None:
        worker: object = self.name
        if takes_data(worker):
            # The stored form: later changes of the caller's object have no effect.
            object.__setattr__(self, "data", worker.stored(self.data))
            object.__setattr__(self, "name", worker.name)
            object.__setattr__(self, "is_checked", True)
        for option in ("delay", "max_wait"):
            given: object = getattr(self, option)
            if isinstance(given, timedelta):
                object.__setattr__(self, option, given.total_seconds())


@dataclass(frozen=True, kw_only=True)
class NewSchedule:
    """A recurring job to be declared.

    Attributes:
        name, data, unique_key, meta: As in NewJob.
        cron: Five fields, or an alias such as @daily.
        timezone: The time zone of `cron`, or its IANA name.
        on_exhausted: What happens after an occurrence that used up its retries: "continue" with the next, or "fail".
        version: A whole number from 1. A declaration of a lower version, or of none, does not change this one.
    """

    name: str
    cron: str
    data: Any = None
    unique_key: str | None = None
    timezone: str | ZoneInfo = "UTC"
    on_exhausted: str = "continue"
    version: int | None = None
    meta: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A new job that is completely checked and encoded, before anything is sent to the database.

    Attributes:
        id: Made here, so that the job can be looked up if the answer to its insert was lost.
        new: The request; its data is a BSON value already, and its meta a dict of its own.
        payload: The data as the BSON document `{"": data}`.
    """

    id: ObjectId
    new: NewJob | NewSchedule
    payload: bytes

    def at(self, now: datetime) -> Job:
        """The job, enqueued at `now`."""
        new = self.new
        return _recurring(new, self.id, now) if isinstance(new, NewSchedule) else _made(new, self.id, now)


def check_new(new: NewJob | NewSchedule) -> None:
    """Checks everything except the data and the meta.

    Raises:
        InvalidJobIdentifierError: The name or the unique key is invalid.
        InvalidOptionError: A time, a limit or a choice is invalid.
        InvalidCronError: The expression or the time zone is invalid.
    """
    check_name(new.name)
    if new.unique_key is not None:
        check_unique_key(new.unique_key)
    if isinstance(new, NewSchedule):
        _check_schedule(new)
    else:
        _check_conflict(new)
        _check_limits(new)
        _check_time(new)


def _check_schedule(new: NewSchedule) -> None:
    normalised(new.cron)
    check_timezone(new.cron, new.timezone)
    check_on_exhausted(new.on_exhausted)
    check_version(new.version)


def check_version(value: object) -> None:
    """Raises InvalidOptionError unless the value is a valid version of a schedule's declaration, or None."""
    if value is not None:
        check_whole("version", value, least=1, most=HIGHEST_VERSION)


def check_on_exhausted(value: object) -> None:
    """Raises InvalidOptionError unless the value is a choice for `on_exhausted`."""
    if value not in ON_EXHAUSTED:
        raise InvalidOptionError("on_exhausted", value, f"must be one of {', '.join(ON_EXHAUSTED)}")


def _check_conflict(new: NewJob) -> None:
    if new.on_conflict not in ON_CONFLICT:
        raise InvalidOptionError("on_conflict", new.on_conflict, f"must be one of {', '.join(ON_CONFLICT)}")
    if new.on_conflict != "keep" and new.unique_key is None:
        raise InvalidOptionError("on_conflict", new.on_conflict, "needs a unique_key: without one there is no conflict")
    if new.on_conflict == "debounce" and new.delay is None:
        raise InvalidOptionError("on_conflict", new.on_conflict, "needs a delay: how long each call delays the job")
    if new.max_wait is not None:
        if new.on_conflict != "debounce":
            raise InvalidOptionError("max_wait", new.max_wait, 'is for on_conflict="debounce"')
        check_seconds("max_wait", new.max_wait)
        if new.max_wait > LONGEST_DELAY:
            raise InvalidOptionError("max_wait", new.max_wait, "is longer than a thousand years")


def check_keeps(new: NewJob, problem: str) -> None:
    """Raises InvalidOptionError, with the problem, if the new job is to change the job that has its unique key."""
    if new.on_conflict != "keep":
        raise InvalidOptionError("on_conflict", new.on_conflict, problem)


def _check_limits(new: NewJob) -> None:
    if new.max_attempts is not None:
        check_count("max_attempts", new.max_attempts, at_least=0)
    if new.max_rescues is not None:
        check_count("max_rescues", new.max_rescues, at_least=0)
    if new.timeout is not None:
        check_seconds("timeout", new.timeout)


def _check_time(new: NewJob) -> None:
    if new.delay is not None:
        if new.run_at is not None:
            raise InvalidOptionError("delay", new.delay, "cannot be combined with run_at: give one of the two")
        check_seconds("delay", new.delay, zero=True)
        if new.delay > LONGEST_DELAY:
            raise InvalidOptionError("delay", new.delay, "is longer than a thousand years")
    elif new.run_at is not None:
        checked_moment("run_at", new.run_at)
    if new.start_by is not None:
        start_by = checked_moment("start_by", new.start_by)
        if new.run_at is not None and start_by <= checked_moment("run_at", new.run_at):
            raise InvalidOptionError("start_by", new.start_by, "must be later than run_at: the job could never start")


def _made(new: NewJob, job_id: ObjectId, now: datetime) -> Job:
    values: dict[str, Any] = {
        "id": job_id,
        "name": new.name,
        "data": new.data,
        "next_run_at": _due(new, now),
        "created_at": now,
        "updated_at": now,
    }
    # Only options that were given: thousands of jobs are made at once, and most have none.
    if new.unique_key is not None:
        values["unique_key"] = new.unique_key
    if new.on_conflict == "debounce":
        values["debounced_since"] = now
    limits: dict[str, Any] = {}
    if new.start_by is not None:
        limits["start_by"] = start_by = checked_moment("start_by", new.start_by)
        if new.delay and start_by <= values["next_run_at"]:
            due = values["next_run_at"].isoformat(timespec="milliseconds")
            problem = f"must be later than {due}, when its delay is over: the job could never start"
            raise InvalidOptionError("start_by", new.start_by, problem)
    if new.max_attempts is not None:
        limits["max_attempts"] = new.max_attempts
    if new.max_rescues is not None:
        limits["max_rescues"] = new.max_rescues
    if new.timeout is not None:
        limits["timeout"] = float(new.timeout)
    if limits:
        values["limits"] = JobLimits(**limits)
    if new.meta:
        values["meta"] = new.meta
    return made_of(values)


def _recurring(new: NewSchedule, job_id: ObjectId, now: datetime) -> Job:
    fields = normalised(new.cron)
    timezone = check_timezone(new.cron, new.timezone)
    return Job(
        id=job_id,
        name=new.name,
        data=new.data,
        next_run_at=next_occurrence(fields, timezone, now),
        created_at=now,
        updated_at=now,
        unique_key=new.unique_key,
        # A default is not stored.
        schedule=Schedule(
            cron=fields,
            timezone=None if timezone == "UTC" else timezone,
            version=new.version,
            on_exhausted=None if new.on_exhausted == "continue" else new.on_exhausted,
        ),
        meta=new.meta or NO_META,
    )


def _due(new: NewJob, now: datetime) -> datetime:
    if new.delay is not None:
        return debounced_until(now, now, new.delay, new.max_wait)
    return now if new.run_at is None else checked_moment("run_at", new.run_at)


def check_order(cron: object, name: object) -> None:
    """Raises InvalidCronError if the caller swapped the expression and the name of a schedule."""
    if (
        isinstance(name, str)
        and len(name.split()) == FIELDS_OF_CRON
        and isinstance(cron, str)
        and not _NOT_IN_NAMES.search(cron)
    ):
        raise InvalidCronError(
            cron, f"the expression is the first argument and the name the second, but the name is {name!r}"
        )


def name_of(worker: object) -> str:
    """The name of the jobs that a call means by a string or a worker."""
    if isinstance(worker, str):
        return worker
    if takes_data(worker):
        return worker.name
    if isinstance(worker, Named) and not isinstance(worker, Enum):  # The name of an Enum member is not its value.
        return worker.name
    problem = "must be a string or a registered worker"
    if inspect.iscoroutine(worker):
        worker.close()  # Otherwise Python would also warn that it was never awaited.
        problem += ": it is the coroutine of a handler that was called. Write enqueue(handler, data)"
    elif callable(worker):
        problem += ": register this function with @workers.register('name'), or give the name of its jobs"
    raise InvalidJobIdentifierError("name", worker, problem)


def _is_stored_as_text(value: object) -> TypeGuard[str]:
    # Code is a subclass of str, but MongoDB stores it as code. A StrEnum member is stored as text.
    return isinstance(value, str) and not isinstance(value, Code)


def check_name(name: object) -> None:
    """Raises InvalidJobIdentifierError unless `name` is a valid name of a job."""
    if not _is_stored_as_text(name):
        raise InvalidJobIdentifierError("name", name, "must be a string")
    if not 1 <= len(name) <= LONGEST_NAME:
        raise InvalidJobIdentifierError("name", name, f"must have 1 to {LONGEST_NAME} characters, not {len(name)}")
    if _NOT_IN_NAMES.search(name):
        raise InvalidJobIdentifierError("name", name, "must not contain whitespace or control characters")


def check_unique_key(key: object) -> None:
    """Raises InvalidJobIdentifierError unless `key` is a valid unique key."""
    if not _is_stored_as_text(key):
        raise InvalidJobIdentifierError("unique_key", key, "must be a string")
    if not key.strip() or len(key) > LONGEST_UNIQUE_KEY:
        raise InvalidJobIdentifierError(
            "unique_key", key, f"must have 1 to {LONGEST_UNIQUE_KEY} characters and not be blank"
        )
    if _NOT_IN_KEYS.search(key):
        raise InvalidJobIdentifierError("unique_key", key, "must not contain control characters")
