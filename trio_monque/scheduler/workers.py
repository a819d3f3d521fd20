"""Workers: which handlers there are, and how each wants to be run. A declaration, copied when a scheduler opens."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

from ..callables import is_async
from ..errors import WorkerRegistrationError
from ..jobs.new_job import check_name
from ..options import check_count, check_seconds
from .running_job import RunningJob

P = ParamSpec("P")
R = TypeVar("R")

Handler = Callable[[RunningJob[Any]], Awaitable[object]] | Callable[[RunningJob[Any]], object]


class WorkerOptions(TypedDict, total=False):
    """What a worker can say of itself; what it does not say, the scheduler decides."""

    concurrency: int | None
    timeout: float | None
    max_retries: int | None


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The options of a worker, checked; None leaves it to the scheduler.

    Attributes:
        concurrency: How many of its jobs run at a time in one scheduler.
        timeout: Seconds that one run may take; it is cancelled then, which counts as a failure.
        max_retries: After how many failures a job of it is `failed`; a job can say otherwise of itself.
    """

    concurrency: int | None = None
    timeout: float | None = None
    max_retries: int | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, at_least=1)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.max_retries is not None:
            check_count("max_retries", self.max_retries, at_least=0)


class Worker(Generic[P, R]):
    """A registered handler: callable as the function was, and accepted by `enqueue` in place of its name.

    Attributes:
        name: The name of the jobs that it runs.
        handler: The function.
        is_async: Whether the handler is async; a plain one runs in a thread.
        settings: How it wants to be run.
    """

    def __init__(self, name: str, handler: Callable[P, R], settings: WorkerSettings) -> None:
        self.name = name
        self.handler = handler
        self.is_async = is_async(handler)
        self.settings = settings
        update_wrapper(self, handler)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.handler(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} of {self.handler!r}>"


class Workers:
    """A set of workers. Made at a module's top level, given to any number of schedulers."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker[..., Any]] = {}

    @overload
    def register(
        self, name: str, handler: Callable[P, R], /, *, replace: bool = ..., **options: Unpack[WorkerOptions]
    ) -> Worker[P, R]: ...

    @overload
    def register(
        self, name: str, handler: None = None, /, *, replace: bool = ..., **options: Unpack[WorkerOptions]
    ) -> Callable[[Callable[P, R]], Worker[P, R]]: ...

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
            options: See WorkerSettings: concurrency, timeout, max_retries.

        Raises:
            InvalidJobIdentifierError: No job can have that name.
            WorkerRegistrationError: The name is taken, or the handler cannot be called.
            InvalidOptionError: An option cannot be.
        """
        check_name(name)
        settings = WorkerSettings(**options)

        def add(function: Callable[..., Any]) -> Worker[..., Any]:
            return self._add(name, function, settings, replace=replace)

        return add if handler is None else add(handler)

    def _add(
        self, name: str, handler: Callable[..., Any], settings: WorkerSettings, *, replace: bool
    ) -> Worker[..., Any]:
        if not callable(handler):
            raise WorkerRegistrationError(name, f"its handler {handler!r} is not callable")
        if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
            raise WorkerRegistrationError(name, "its handler is a generator: a handler returns, it does not yield")
        if name in self._workers and not replace:
            raise WorkerRegistrationError(name, "is registered already: choose another name, or say replace=True")
        worker: Worker[..., Any] = Worker(name, handler, settings)
        self._workers[name] = worker
        return worker

    def copy(self) -> Workers:
        """An independent set of the same workers."""
        copied = Workers()
        copied._workers.update(self._workers)
        return copied

    def get(self, name: str) -> Worker[..., Any] | None:
        return self._workers.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._workers)
