"""Workers: which handlers there are, and how each wants to be run. A declaration, copied when a scheduler opens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import update_wrapper
from types import MappingProxyType
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

from ..callables import is_async, problem_of_handler
from ..checks import check_count, check_known, check_seconds, check_whole
from ..errors import InvalidOptionError, InvalidPayloadError, UnreadablePayloadError, WorkerRegistrationError
from ..jobs.cron import check_timezone, normalised
from ..jobs.new_job import check_name, check_on_exhausted, check_version
from ..jobs.payload import storing
from ..jobs.verdicts import Discard, ErrorTypes, Retry, Snooze
from ..payloads.payload_type import PayloadType, stored_instance
from ..payloads.problem import ValueProblem
from ..safe_text import one_line, without_secrets
from .running_job import RunningJob

T = TypeVar("T")

Handler = Callable[[RunningJob[T]], Awaitable[object]] | Callable[[RunningJob[T]], object]

HIGHEST_PRIORITY = 10
"""And the lowest is its negative: a name waits for so many slots twice, and for its turn among its equals."""


class WorkerOptions(TypedDict, total=False):
    """What a worker can say of itself; what it does not say, the scheduler decides."""

    concurrency: int | None
    timeout: float | None
    max_retries: int | None
    backoff: float | Callable[[int, BaseException], float] | None
    retry_on: type[BaseException] | ErrorTypes | None
    discard_on: type[BaseException] | ErrorTypes
    payload: Any
    priority: int
    store_result: bool


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The options of a worker, checked; None leaves it to the scheduler.

    Attributes:
        concurrency: How many of its jobs run at a time in one scheduler.
        timeout: Seconds that one run may take; it is cancelled then, which counts as a failure.
        max_retries: After how many failures a job of it is `failed`; a job can say otherwise of itself.
        backoff: How long a failed try waits for the next, instead of the scheduler's exponential backoff:
            seconds, or a callable of (number of failures, error) that gives seconds.
        retry_on: Only these errors are tried again; None for all.
        discard_on: These errors are never tried again.
        payload: The type of `job.data`, such as a dataclass or a pydantic model: checked when a job is
            enqueued by the worker, and read from what is stored. Or a callable that makes `job.data` of
            the stored value. Data that cannot be read is a failed try.
        priority: Who starts first when there are fewer slots than due jobs: the greater one, from -10 to 10.
            So many slots more than a name of priority 0 does a name of less wait, and then has its turn.
        store_result: Store what the handler returns; it must be a BSON value.
    """

    concurrency: int | None = None
    timeout: float | None = None
    max_retries: int | None = None
    backoff: float | Callable[[int, BaseException], float] | None = None
    retry_on: type[BaseException] | ErrorTypes | None = None
    discard_on: type[BaseException] | ErrorTypes = ()
    payload: Any = None
    priority: int = 0
    store_result: bool = False
    payload_type: PayloadType | None = field(init=False, compare=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, at_least=1)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.max_retries is not None:
            check_count("max_retries", self.max_retries, at_least=0)
        if self.backoff is not None and not callable(self.backoff):
            check_seconds("backoff", self.backoff, zero=True)
        if self.payload is not None:
            object.__setattr__(self, "payload_type", _payload_type(self.payload))
        check_whole("priority", self.priority, least=-HIGHEST_PRIORITY, most=HIGHEST_PRIORITY)
        for option in ("retry_on", "discard_on"):
            object.__setattr__(self, option, _error_types(option, getattr(self, option)))


def _checked(name: object, options: WorkerOptions, example: str) -> WorkerSettings:
    if callable(name):
        raise WorkerRegistrationError(
            getattr(name, "__name__", repr(name)), f"its decorator needs the name of its jobs: write {example}"
        )
    check_name(name)
    check_known(options, WorkerOptions.__annotations__, "a worker")
    return WorkerSettings(**options)


def _error_types(option: str, given: object) -> ErrorTypes | None:
    if given is None and option == "retry_on":
        return None
    types = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in types):
        raise InvalidOptionError(option, given, "must be an exception class, or a tuple of them")
    return types


class Worker(Generic[T]):
    """A registered handler: callable as the function was, and accepted by `enqueue` in place of its name.

    Attributes:
        name: The name of the jobs that it runs.
        handler: The function.
        is_async: Whether the handler is async; a plain one runs in a thread.
        settings: How it wants to be run.
    """

    def __init__(self, name: str, handler: Callable[..., Any], settings: WorkerSettings) -> None:
        self.name = name
        self.handler = handler
        self.is_async = is_async(handler)
        self.settings = settings
        update_wrapper(self, handler)

    @property
    def payload(self) -> Any:
        """What makes `job.data`; where it is a type, `enqueue` accepts nothing else."""
        return self.settings.payload

    def stored(self, data: T, /) -> Any:
        """The data as it is stored: plain BSON. Enqueuing by the worker stores it so.

        Raises:
            InvalidPayloadError: It is not what `payload` declares, or cannot be stored; names where.
        """
        payload = self.settings.payload_type
        if payload is not None and not payload.takes(data):
            raise InvalidPayloadError(
                f"worker {self.name!r} takes {payload.name} as its data, not {type(data).__name__}"
            )
        with storing(f"worker {self.name!r} does not take this data"):
            return stored_instance(data) if payload is None else payload.store(data)

    def loaded(self, stored: Any, /) -> T:
        """`job.data`, of what is stored.

        Raises:
            UnreadablePayloadError: It is not what `payload` reads; names where.
            Retry, Snooze, Discard: `payload` raised it.
        """
        payload = self.settings.payload_type
        if payload is None:
            return cast("T", stored)
        try:
            return cast("T", payload.read(stored))
        except (Retry, Snooze, Discard):
            raise
        except Exception as error:
            if isinstance(error.__cause__, Discard):  # Raised where a class was made of its fields.
                raise error.__cause__ from None
            why = str(error) if isinstance(error, ValueProblem) else f"{type(error).__name__}: {error}"
            why = one_line(without_secrets(why))
            raise UnreadablePayloadError(
                f"the stored data cannot be read as the payload of worker {self.name!r} ({payload.name}): {why}"
            ) from error

    def __call__(self, job: RunningJob[T], /, *args: Any, **kwargs: Any) -> Any:
        return self.handler(job, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} of {self.handler!r}>"


def _payload_type(given: Any) -> PayloadType:
    payload = PayloadType(given)
    try:
        payload.prepare()
    except Exception as error:
        raise InvalidOptionError("payload", given, str(error)) from error
    return payload


@dataclass(frozen=True, slots=True)
class CronDeclaration:
    """A schedule that exists as long as a worker for it does.

    Attributes:
        expression, timezone: When.
        data: The payload of its job, as it is stored.
        on_exhausted: What becomes of the schedule when an occurrence uses up its retries.
        version: Which of two declarations is the newer one.
    """

    expression: str
    timezone: str
    data: Any
    on_exhausted: str
    version: int | None


class Workers:
    """A set of workers. Made at a module's top level, given to any number of schedulers."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker[Any]] = {}
        self._crons: dict[str, CronDeclaration] = {}

    @overload
    def register(
        self, name: str, handler: Handler[T], /, *, replace: bool = ..., **options: Unpack[WorkerOptions]
    ) -> Worker[T]: ...

    @overload
    def register(
        self, name: str, handler: None = None, /, *, replace: bool = ..., **options: Unpack[WorkerOptions]
    ) -> Callable[[Handler[T]], Worker[T]]: ...

    def register(
        self,
        name: str,
        handler: Callable[..., Any] | None = None,
        /,
        *,
        replace: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> Any:
        """Registers a handler for the jobs of a name; without a handler it is a decorator.

        Args:
            name: 1 to 255 characters, no whitespace or control characters.
            handler: An async function of a RunningJob, or a plain one, which is run in a thread.
            replace: Take the place of a worker of that name.
            options: See WorkerSettings: concurrency, timeout, max_retries, backoff, retry_on, discard_on,
                payload, priority, store_result.

        Raises:
            InvalidJobIdentifierError: No job can have that name.
            WorkerRegistrationError: The name is taken, or the handler cannot be called.
            InvalidOptionError: An option cannot be.
        """
        settings = _checked(name, options, "@workers.register('send-email')")

        def add(function: Callable[..., Any]) -> Worker[Any]:
            return self._add(name, function, settings, replace=replace)

        return add if handler is None else add(handler)

    def cron(
        self,
        expression: str,
        name: str,
        *,
        timezone: str = "UTC",
        data: Any = None,
        on_exhausted: str = "continue",
        version: int | None = None,
        replace: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> Callable[[Handler[T]], Worker[T]]:
        """A decorator that registers a handler and declares its schedule.

        Every scheduler that starts with it sees to it that one job of the schedule exists, under the
        unique key `cron:<name>`, and brings it up to date.

        Args:
            expression: Five fields (minute, hour, day of month, month, day of week), or an alias such as
                "@daily".
            name: As in `register`.
            timezone: The IANA name of the zone that the expression speaks of.
            data: The payload.
            on_exhausted: Where an occurrence uses up its retries: "continue" with the next, or "fail".
            version: A whole number from 1; raise it when you change the schedule. A release with a lower one, or with
                none, then does not change the schedule back when it restarts. See the guide on schedules.
            replace, options: As in `register`.

        Raises:
            InvalidCronError: The expression or the zone cannot be understood.
            InvalidJobIdentifierError, WorkerRegistrationError, InvalidOptionError: As in `register`.
        """
        settings = _checked(name, options, "@workers.cron('0 9 * * *', 'daily-report')")
        check_on_exhausted(on_exhausted)
        check_version(version)
        fields, zone = normalised(expression), check_timezone(expression, timezone)

        def add(function: Handler[T]) -> Worker[T]:
            worker = self._add(name, function, settings, replace=replace)
            self._crons[name] = CronDeclaration(fields, zone, worker.stored(data), on_exhausted, version)
            return worker

        return add

    def _add(self, name: str, handler: Callable[..., Any], settings: WorkerSettings, *, replace: bool) -> Worker[Any]:
        if isinstance(handler, Worker):  # One function for several names: the decorators are stacked.
            handler = handler.handler
        if problem := problem_of_handler(handler, "job"):
            raise WorkerRegistrationError(name, problem)
        if name in self._workers and not replace:
            raise WorkerRegistrationError(name, "is registered already: choose another name, or say replace=True")
        worker: Worker[Any] = Worker(name, handler, settings)
        self._workers[name] = worker
        self._crons.pop(name, None)
        return worker

    def copy(self) -> Workers:
        """An independent set of the same workers and schedules."""
        copied = Workers()
        copied._workers.update(self._workers)
        copied._crons.update(self._crons)
        return copied

    @classmethod
    def copied(cls, given: Workers | None) -> Workers:
        """A copy of what a caller gave, which may be nothing; raises InvalidOptionError for anything else."""
        if given is None:
            return cls()
        if not isinstance(given, cls):
            raise InvalidOptionError("workers", given, "must be a Workers")
        return given.copy()

    def get(self, name: str) -> Worker[Any] | None:
        return self._workers.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._workers)

    @property
    def crons(self) -> Mapping[str, CronDeclaration]:
        """The declared schedules, by the name of their worker."""
        return MappingProxyType(self._crons)
