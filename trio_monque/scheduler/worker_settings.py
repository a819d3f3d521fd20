"""WorkerSettings: the options of a worker, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from ..checks import check_count, check_known, check_seconds, check_whole, is_async
from ..error_types import InvalidOptionError, WorkerRegistrationError
from ..jobs.job import Job
from ..jobs.new_job import NewJob, check_name
from ..jobs.retries_and_next_occurrences import ErrorTypes
from ..payloads.declared_types import kind_of, name_of
from ..payloads.payload_type import PayloadType

HIGHEST_PRIORITY = 10
"""The lowest priority is -10. The range bounds how long a name with a low priority waits while others have due jobs."""


class PlainWorkerOptions(TypedDict, total=False):
    """The options of a worker without `payload`, which determines the type of its data."""

    concurrency: int | None
    timeout: float | None
    max_attempts: int | None
    backoff: float | Callable[[int, BaseException], float] | None
    retry_on: type[BaseException] | ErrorTypes | None
    discard_on: type[BaseException] | ErrorTypes
    priority: int
    store_result: bool
    result: Any
    then: Callable[[Job[Any]], NewJob | None] | None
    runs_on: Literal["runtime"] | None


class WorkerOptions(PlainWorkerOptions, total=False):
    """The options of a worker; the options of the scheduler are the defaults."""

    payload: Any


class RegisterOptions(PlainWorkerOptions, total=False):
    """The options of `register` and `cron` without `payload`."""

    replace: bool


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The checked options of a worker; None means the option of the scheduler.

    Attributes:
        concurrency: How many of its jobs run at a time in one scheduler.
        timeout: Seconds that one run may take. Then it is cancelled, which counts as a failure.
        max_attempts: After how many failures its jobs are `failed`, unless a job has its own `max_attempts`.
        backoff: How long a failed attempt waits for the next, instead of the scheduler's exponential backoff:
            seconds, or a callable of (number of failures, error) that gives seconds.
        retry_on: Only these errors are tried again; None for all.
        discard_on: These errors are never tried again.
        payload: The type of `job.data`, such as a dataclass or a pydantic model. `enqueue(worker, data)` checks the
            data, and `job.data` is made from what is stored. Or a callable that makes `job.data` from the stored value.
            If that fails, the attempt has failed.
        priority: Which names start first if there are fewer slots than due jobs: those with the higher number, from -10
            to 10. While a name waits, its number grows by one with each slot that another name gets.
        store_result: Store what the handler returns; it must be a BSON value.
        result: The type of what the handler returns, such as a dataclass or a pydantic model: results are checked
            against it and stored. `wait_job`, with a job that was enqueued with this worker, makes `job.result` from
            what is stored. It implies `store_result`.
        then: A plain function that returns the job to enqueue after one that has completed or failed for good, or None
            for none: `then(job)`, with the job as it is stored. Exactly one is enqueued, whatever process is killed.
        runs_on: The event loop that runs the handler. None: the loop on which the scheduler was opened. "runtime": the
            trio loop of the scheduler, which is in a thread of its own in a program on asyncio.
    """

    concurrency: int | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    backoff: float | Callable[[int, BaseException], float] | None = None
    retry_on: type[BaseException] | ErrorTypes | None = None
    discard_on: type[BaseException] | ErrorTypes = ()
    payload: Any = None
    priority: int = 0
    store_result: bool = False
    result: Any = None
    then: Callable[[Job[Any]], NewJob | None] | None = None
    runs_on: Literal["runtime"] | None = None
    payload_type: PayloadType | None = field(init=False, compare=False, repr=False, default=None)
    result_type: PayloadType | None = field(init=False, compare=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, at_least=1)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.max_attempts is not None:
            check_count("max_attempts", self.max_attempts, at_least=0)
        if self.backoff is not None and not callable(self.backoff):
            check_seconds("backoff", self.backoff, zero=True)
        if self.payload is not None:
            object.__setattr__(self, "payload_type", _type_of("payload", self.payload))
        if self.result is not None:
            object.__setattr__(self, "result_type", _type_of("result", self.result))
            object.__setattr__(self, "store_result", True)
        if self.then is not None:
            _check_then(self.then)
        check_whole("priority", self.priority, least=-HIGHEST_PRIORITY, most=HIGHEST_PRIORITY)
        if self.runs_on not in (None, "runtime"):
            raise InvalidOptionError("runs_on", self.runs_on, 'must be None or "runtime"')
        for option in ("retry_on", "discard_on"):
            object.__setattr__(self, option, _error_types(option, getattr(self, option)))


# Users give these to `register` and mean `cron`. An argument that the decorator takes itself (`own`) is not refused.
_OF_SCHEDULES = frozenset(("cron", "schedule", "timezone"))


def checked_settings(
    name: object, options: WorkerOptions, example: str, own: Collection[str] = ("replace",)
) -> WorkerSettings:
    """Check the arguments of a decorator; `own` are those that are not worker options, and messages list them too."""
    if callable(name):
        raise WorkerRegistrationError(
            getattr(name, "__name__", repr(name)), f"its decorator needs the name of its jobs: write {example}"
        )
    check_name(name)
    given: Mapping[str, object] = {**options}
    for option in given.keys() & (_OF_SCHEDULES - set(own)):
        advice = "to declare a schedule, write @workers.cron('0 9 * * *', 'daily-report')"
        raise InvalidOptionError(option, given[option], f"is not an option of a worker: {advice}")
    check_known(given, {*WorkerOptions.__annotations__, *own}, "a worker")
    return WorkerSettings(**options)


def _check_then(given: object) -> None:
    if not callable(given):
        raise InvalidOptionError("then", given, "must be a function: then=lambda job: NewJob('ship', job.result)")
    if is_async(given):
        raise InvalidOptionError("then", given, "must be a plain function, not an async one: it only makes a NewJob")


def _error_types(option: str, given: object) -> ErrorTypes | None:
    if given is None and option == "retry_on":
        return None
    types: tuple[Any, ...] = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in types):
        raise InvalidOptionError(option, given, "must be an exception class, or a tuple of them")
    return types


def _type_of(option: str, given: Any) -> PayloadType:
    kind = kind_of(type(given))
    if kind is not None and not callable(given):
        raise InvalidOptionError(
            option, given, f"must be a class, not an instance of it: write {option}={name_of(type(given))}"
        )
    declared = PayloadType(given)
    try:
        declared.prepare()
    except Exception as error:
        raise InvalidOptionError(option, given, str(error)) from error
    return declared
