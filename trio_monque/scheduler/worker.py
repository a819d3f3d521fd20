"""Worker: a handler registered under a name, and how the payload of its jobs is stored and read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from ..checks import is_async
from ..engine.run import Run
from ..error_types import InvalidPayloadError, UnreadablePayloadError
from ..foreign_errors import is_a, safe_error
from ..jobs.job import Job
from ..jobs.outcomes import Discard, Retry, Snooze
from ..jobs.stored_value_limits import storing
from ..payloads.large_values_in_threads import is_large
from ..payloads.libraries import without_long_list
from ..payloads.payload_type import stored_instance
from ..payloads.problems import ValueProblem
from ..safe_text import LONGEST_TEXT, message_of, one_line, text_of
from .middleware import Middleware, around_async, around_plain
from .running_job import RunningJob, with_any
from .worker_settings import WorkerSettings

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Result_co = TypeVarWithDefault("Result_co", covariant=True, default=Any)
else:
    Result_co = TypeVar("Result_co", covariant=True)

T = TypeVar("T")
R = TypeVar("R")
Res = TypeVar("Res")

Handler = Callable[[RunningJob[T, Res]], R]
"""Async, where R is a coroutine, or plain. No overloads for the two: mypy makes them Any where `resources` is Any."""


MakeRunningJob = Callable[[Run[Job], "Worker[Any]"], RunningJob[Any]]
"""Makes what a handler of the worker gets for this run."""


class Worker(Generic[T, Result_co]):
    """A registered handler: callable as the function was, and accepted by `enqueue` in place of its name.

    In `Worker[T, R]`, T is the type of its data, and R is what a call of the handler returns (a coroutine if the
    handler is async). `Worker[T]` leaves R open.

    Attributes:
        name: The name of the jobs that it runs.
        handler: The function.
        is_async: Whether the handler is async; a plain one runs in a thread.
        settings: The options of the worker.
        middleware: What is around its runs: the `middleware` of the Workers that it was registered with.
        around_thread: The async part of it, if the handler is plain: around the call of the thread.
        called: The handler in the rest of it. A run calls this, on the loop or in its thread.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, arguments):
            return super().__class_getitem__(with_any(arguments, 2))

    def __init__(
        self,
        name: str,
        handler: Callable[..., Any],
        settings: WorkerSettings,
        middleware: tuple[Middleware, ...] = (),
    ) -> None:
        self.name = name
        self.handler = handler
        self.is_async = is_async(handler)
        self.settings = settings
        self.middleware = middleware
        self.around_thread = () if self.is_async else tuple(one for one in middleware if is_async(one))
        around = around_async if self.is_async else around_plain
        self.called: Callable[[RunningJob[Any]], Any] = around(middleware, handler)
        update_wrapper(self, handler)

    @property
    def payload(self) -> Any:
        """What makes `job.data`. If it is a type, `enqueue` accepts only values of this type."""
        return self.settings.payload

    def stored(self, data: T, /) -> Any:
        """Return the data as `enqueue` stores it: plain BSON.

        Raises:
            InvalidPayloadError: The data is not of the type that `payload` declares, or cannot be stored; names the
                path.
        """
        payload = self.settings.payload_type
        if payload is not None and not payload.takes(data):
            raise InvalidPayloadError(
                f"worker {self.name!r} takes {payload.name} as its data, not {type(data).__name__}"
            )
        with storing(f"worker {self.name!r} does not take this data"):
            return stored_instance(data) if payload is None else payload.store(data)

    def loaded(self, stored: Any, /) -> T:
        """Return `job.data` for the stored data.

        Raises:
            UnreadablePayloadError: `payload` cannot read the stored data; names the path.
            Retry, Snooze, Discard: `payload` raised it.
        """
        payload = self.settings.payload_type
        if payload is None:
            return cast("T", stored)
        try:
            return cast("T", payload.read(stored))
        except (Retry, Snooze, Discard):
            raise
        except Exception as raised:  # noqa: BLE001  # Raised below, outside: see `safe_error`.
            error = safe_error(raised)
            # Raised in `__post_init__` or `__init__`: the reader has made a ValueProblem of it, with this cause.
            if is_a(error.__cause__, (Retry, Snooze, Discard)):
                raise error.__cause__ from None  # type: ignore[misc]  # It is not None.
            cause = without_long_list(error)
        # Here, where the original is not its context: to format a traceback would list a million problems.
        unreadable = UnreadablePayloadError(
            f"the stored data cannot be read as the payload of worker {self.name!r} ({payload.name}): {_why(cause)}"
        )
        unreadable.__cause__ = cause
        raise unreadable

    def is_slow_to_load(self, stored: Any, /) -> bool:
        """Whether `loaded` would block the event loop, so that a thread is to call it."""
        return self.settings.payload_type is not None and is_large(stored)

    def check_stored(self, stored: Any, /) -> None:
        """Check data that were enqueued by the name of this worker, in their stored form.

        Raises:
            InvalidPayloadError: The type that `payload` declares cannot be read from them; names the path.
        """
        payload = self.settings.payload_type
        if payload is None or not payload.is_type:  # A callable may do anything: only a run calls it.
            return
        try:
            self.loaded(stored)
        except UnreadablePayloadError as error:
            raise InvalidPayloadError(
                f"worker {self.name!r} of this process cannot read this data as {payload.name}: "
                f"{_why(error.__cause__ or error)}"
            ) from error
        except (Retry, Snooze, Discard):
            return  # What its own code says when the job runs.

    def stored_result(self, returned: Any, /) -> Any:
        """Return what the handler returned as it is stored, if the worker stores results: plain BSON.

        Raises:
            InvalidPayloadError: It is not of the type that `result` declares, or cannot be stored; names the path.
        """
        declared = self.settings.result_type
        if declared is None:
            return returned
        if not declared.takes(returned):
            raise InvalidPayloadError(
                f"worker {self.name!r} declares {declared.name} as its result, and its handler returned "
                f"{type(returned).__name__}"
            )
        with storing(f"worker {self.name!r} cannot store this result"), _of_a_result():
            return declared.store(returned)

    @property
    def result_reader(self) -> Callable[[Any], Any] | None:
        """`loaded_result`, if the worker declares the type of its result."""
        return None if self.settings.result_type is None else self.loaded_result

    @overload
    def loaded_result(self: Worker[Any, Coroutine[Any, Any, R]], stored: Any, /) -> R: ...

    @overload
    def loaded_result(self: Worker[Any, R], stored: Any, /) -> R: ...

    def loaded_result(self, stored: Any, /) -> Any:
        """Return the result of a job, as `result` declares it, for the stored one.

        Raises:
            UnreadablePayloadError: `result` cannot read the stored value; names the path.
        """
        declared = self.settings.result_type
        if declared is None:
            return stored
        try:
            with _of_a_result():
                return declared.read(stored)
        except Exception as raised:  # noqa: BLE001  # Raised below, outside: see `safe_error`.
            cause = without_long_list(safe_error(raised))
        unreadable = UnreadablePayloadError(
            f"the stored result cannot be read as the result of worker {self.name!r} ({declared.name}): {_why(cause)}"
        )
        unreadable.__cause__ = cause
        raise unreadable

    def __call__(self, job: RunningJob[T, Any], /, *args: Any, **kwargs: Any) -> Result_co:
        return cast("Result_co", self.handler(job, *args, **kwargs))

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} of {self.handler!r}>"


@contextmanager
def _of_a_result() -> Iterator[None]:
    try:
        yield
    except ValueProblem as problem:
        problem.root = "result"
        raise


def _why(error: BaseException) -> str:
    return one_line(message_of(error, LONGEST_TEXT) if is_a(error, ValueProblem) else text_of(error))
