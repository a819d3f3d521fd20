"""Workers: the registered handlers with their options and schedules. A scheduler copies them when it opens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType, UnionType
from typing import Any, Generic, Literal, TypeVar, Unpack, get_args, get_origin, get_type_hints, overload
from zoneinfo import ZoneInfo

from ..checks import problem_of_handler
from ..error_types import InvalidOptionError, WorkerRegistrationError
from ..jobs.cron import check_timezone, normalised
from ..jobs.new_job import check_on_exhausted, check_order, check_version
from ..payloads.declared_types import Kind, kind_of, name_of
from .middleware import Middleware, checked_middleware, problem_with_handler
from .running_job import Resources, RunningJob
from .worker import Handler, Worker
from .worker_settings import RegisterOptions, WorkerOptions, WorkerSettings, checked_settings

T = TypeVar("T")
R = TypeVar("R")

# What `cron` takes beside the options of a worker, for the message about an unknown one.
_CRON_ARGUMENTS = ("data", "on_exhausted", "replace", "timezone", "version")


Loop = Literal["trio", "asyncio"]
"""The kind of event loop that async handlers need. uvloop is an asyncio loop."""


@dataclass(frozen=True, slots=True)
class CronDeclaration:
    """A schedule that exists as long as a worker for it does.

    Attributes:
        expression, timezone: When its job is due.
        data: The payload of its job, as it is stored.
        on_exhausted: What happens when an occurrence uses up its retries.
        version: Of two declarations, the one with the higher number is newer.
    """

    expression: str
    timezone: str
    data: Any
    on_exhausted: str
    version: int | None


class Workers(Generic[Resources]):
    """A set of workers. Make it at the top level of a module, and pass it to any number of schedulers.

    A scheduler copies the set when it opens: it does not run a handler that is registered here later. Register with the
    scheduler then (`scheduler.register`).

    `Workers[Pool]()` takes handlers whose `job.resources` is a Pool, and schedulers that are opened with it need one.

    Args:
        middleware: Functions around each run, outermost first: `async def timing(job, run): await run()`. A plain
            function, `def timing(job, run): run()`, runs in the thread of a plain handler; those come last.
        loop: The event loop that the async handlers and middleware need: "trio", or "asyncio", which uvloop is too.
            A scheduler on the other one refuses to open with these workers, and `trio-monque run` uses this one if
            `--loop` is not given. None if they run on any loop, as with anyio.

    Attributes:
        by_name: The workers, by the name of their jobs. Every claim and every run asks it; `register` changes it.
        followed: The names of the workers that have a `then`.

    Raises:
        InvalidOptionError: A middleware is not such a function, or an async one comes after a plain one; or `loop` is
            something else.
    """

    by_name: Mapping[str, Worker[Any]]
    followed: Set[str]

    def __init__(self, *, middleware: Iterable[Middleware] = (), loop: Loop | None = None) -> None:
        self._middleware = checked_middleware(middleware)
        self._loop: Loop | None = _checked_loop(loop)
        self._hold({})
        self._crons: dict[str, CronDeclaration] = {}
        self._resources: dict[Worker[Any], Any] = {}

    @overload
    def register(
        self,
        name: str,
        handler: Handler[T, Resources, R],
        /,
        *,
        payload: Callable[..., T] | UnionType | None = ...,
        **options: Unpack[RegisterOptions],
    ) -> Worker[T, R]: ...

    @overload
    def register(  # type: ignore[overload-overlap]  # The next is for unions: mypy sees `A | B` as a UnionType or as a type.
        self, name: str, /, *, payload: Callable[..., T], **options: Unpack[RegisterOptions]
    ) -> Callable[[Handler[T, Resources, R]], Worker[T, R]]: ...

    @overload
    def register(
        self, name: str, /, *, payload: UnionType | type[Any] | None = ..., **options: Unpack[RegisterOptions]
    ) -> Callable[[Handler[T, Resources, R]], Worker[T, R]]: ...

    def register(
        self,
        name: str,
        handler: Callable[..., Any] | None = None,
        /,
        *,
        replace: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> Any:
        """Register a handler for the jobs of a name. Without a handler, return a decorator.

        Args:
            name: 1 to 255 characters, no whitespace or control characters.
            handler: An async function of a RunningJob, or a plain one, which is run in a thread.
            replace: Replace the worker that has this name.
            options: See WorkerSettings: concurrency, timeout, max_attempts, backoff, retry_on, discard_on,
                payload, priority, store_result, then, runs_on.

        Raises:
            InvalidJobIdentifierError: The name is invalid.
            WorkerRegistrationError: The name is taken, or the handler cannot be called.
            InvalidOptionError: An option is invalid; the message names it.
        """
        settings = checked_settings(name, options, "@workers.register('send-email')")

        def add(function: Callable[..., Any]) -> Worker[Any]:
            return self._add(name, function, settings, replace=replace)

        return add if handler is None else add(handler)

    @overload
    def cron(
        self,
        expression: str,
        name: str,
        *,
        payload: Callable[..., T],
        data: T,
        timezone: str | ZoneInfo = ...,
        on_exhausted: str = ...,
        version: int | None = ...,
        **options: Unpack[RegisterOptions],
    ) -> Callable[[Handler[T, Resources, R]], Worker[T, R]]: ...

    @overload
    def cron(
        self,
        expression: str,
        name: str,
        *,
        payload: UnionType | None = ...,
        data: Any = ...,
        timezone: str | ZoneInfo = ...,
        on_exhausted: str = ...,
        version: int | None = ...,
        **options: Unpack[RegisterOptions],
    ) -> Callable[[Handler[T, Resources, R]], Worker[T, R]]: ...

    def cron(
        self,
        expression: str,
        name: str,
        *,
        timezone: str | ZoneInfo = "UTC",
        data: Any = None,
        on_exhausted: str = "continue",
        version: int | None = None,
        replace: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> Any:
        """Return a decorator that registers a handler and declares its schedule.

        Each scheduler that starts with this worker creates the job of the schedule if it does not exist, with the
        unique key `cron:<name>`, and updates it otherwise.

        Args:
            expression: Five fields (minute, hour, day of month, month, day of week), or an alias such as
                "@daily".
            name: As in `register`.
            timezone: The time zone of the expression, or its IANA name.
            data: The payload.
            on_exhausted: What happens when an occurrence uses up its retries: "continue" with the next one, or "fail".
            version: A whole number from 1; raise it when you change the schedule. A release with a lower one, or with
                none, then does not change the schedule back when it restarts. See the guide on schedules.
            replace, options: As in `register`.

        Raises:
            InvalidCronError: The expression or the time zone is invalid.
            InvalidJobIdentifierError, WorkerRegistrationError, InvalidOptionError: As in `register`.
        """
        check_order(expression, name)
        settings = checked_settings(name, options, "@workers.cron('0 9 * * *', 'daily-report')", _CRON_ARGUMENTS)
        check_on_exhausted(on_exhausted)
        check_version(version)
        fields, zone = normalised(expression), check_timezone(expression, timezone)

        def add(function: Callable[..., Any]) -> Worker[Any]:
            worker = self._add(name, function, settings, replace=replace)
            self._crons[name] = CronDeclaration(fields, zone, worker.stored(data), on_exhausted, version)
            return worker

        return add

    def _add(self, name: str, handler: Callable[..., Any], settings: WorkerSettings, *, replace: bool) -> Worker[Any]:
        if isinstance(handler, Worker):  # One function for several names: the decorators are stacked.
            handler = handler.handler
        if problem := (
            problem_of_handler(handler, "job")
            or _problem_of_data(handler, settings)
            or problem_with_handler(self._middleware, handler)
        ):
            raise WorkerRegistrationError(name, problem)
        if name in self.by_name and not replace:
            raise WorkerRegistrationError(name, "is already registered: choose another name, or pass replace=True")
        worker: Worker[Any] = Worker(name, handler, settings, self._middleware)
        self._hold({**self.by_name, name: worker})
        self._crons.pop(name, None)
        return worker

    def copy(self) -> Workers[Resources]:
        """An independent set of the same workers and schedules."""
        return self.subset(self.names)

    def subset(self, names: Collection[str]) -> Workers[Resources]:
        """An independent set of the workers with these names, with their schedules. Other names are ignored."""
        chosen = Workers[Resources](middleware=self._middleware, loop=self._loop)
        chosen._hold({name: worker for name, worker in self.by_name.items() if name in names})
        chosen._crons.update({name: cron for name, cron in self._crons.items() if name in names})
        chosen._resources.update(self._resources)
        return chosen

    def with_resources(self, resources: Resources) -> Workers[Any]:
        """An independent set of the same workers, whose handlers get these resources instead of the scheduler's."""
        equipped = Workers[Any](middleware=self._middleware, loop=self._loop)
        equipped._hold(self.by_name)
        equipped._crons.update(self._crons)
        equipped._resources.update(dict.fromkeys(self.by_name.values(), resources))
        return equipped

    def union(self, *others: Workers[Any]) -> Workers[Any]:
        """An independent set of the workers of all these sets, with their schedules and their own resources.

        Each worker keeps its middleware. A handler that is registered later gets the middleware of the first set.

        Raises:
            WorkerRegistrationError: Two of the sets have a worker of the same name.
            InvalidOptionError: One of the sets declares trio as its `loop`, and another one asyncio.
        """
        united = Workers[Any](middleware=self._middleware, loop=loop_of_all([self, *others]))
        for one in (self, *others):
            united._add_all(one)
        return united

    def _add_all(self, other: Workers[Any]) -> None:
        for name in other.names:
            if name in self.by_name:
                raise WorkerRegistrationError(name, "is registered in two sets: choose another name in one of them")
        self._hold({**self.by_name, **other.by_name})
        self._crons.update(other._crons)
        self._resources.update(other._resources)

    @classmethod
    def copied(cls, given: Workers[Resources] | None) -> Workers[Resources]:
        """Return a copy; an empty set for None. Raise InvalidOptionError for anything else."""
        if given is None:
            return cls()
        if not isinstance(given, cls):
            raise InvalidOptionError("workers", given, "must be the Workers that the handlers were registered with")
        return given.copy()

    @property
    def loop(self) -> Loop | None:
        """The event loop that the handlers need, as it was declared; None if they run on any."""
        return self._loop

    def check_loop(self, running: Loop) -> None:
        """Raise InvalidOptionError if the handlers need another event loop than the one that would run them."""
        if self._loop not in (None, running):
            opened = (
                "open the scheduler in a program on trio (trio.run), in a test of pytest-trio or of anyio's backend "
                "trio, or with `trio-monque run --loop trio`"
                if self._loop == "trio"
                else "open the scheduler in a program on asyncio (asyncio.run, or uvloop.run), in a test of "
                "pytest-asyncio or of anyio's backend asyncio, or with `trio-monque run --loop asyncio`"
            )
            raise InvalidOptionError("loop", self._loop, f"these workers would run on {running}: {opened}")

    def get(self, name: str) -> Worker[Any] | None:
        return self.by_name.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.by_name)

    def _hold(self, workers: Mapping[str, Worker[Any]]) -> None:
        # A database thread may go through the mapping while a worker is registered. So that replaces it.
        self.by_name = workers
        self.followed = {name for name, worker in workers.items() if worker.settings.then is not None}

    @property
    def crons(self) -> Mapping[str, CronDeclaration]:
        """The declared schedules, by the name of their worker."""
        return MappingProxyType(self._crons)

    @property
    def own_resources(self) -> Mapping[Worker[Any], Any]:
        """What `with_resources` has given to workers, by the worker."""
        return MappingProxyType(self._resources)


def loop_of_all(sets: Iterable[Workers[Any]]) -> Loop | None:
    """Return the event loop that the handlers of all these sets need; None if they run on any.

    Raises:
        InvalidOptionError: They need two.
    """
    loops: set[Loop] = {one.loop for one in sets if one.loop is not None}
    if len(loops) > 1:
        raise InvalidOptionError(
            "loop", "asyncio", 'other workers declare loop="trio": run the two in processes of their own'
        )
    return loops.pop() if loops else None


def _checked_loop(loop: object) -> Loop | None:
    if loop is None:
        return None
    if loop == "trio":
        return "trio"
    if loop == "asyncio":
        return "asyncio"
    uvloop = ' (uvloop is an asyncio loop: write "asyncio")' if loop == "uvloop" else ""
    raise InvalidOptionError("loop", loop, f'must be "trio" or "asyncio"{uvloop}, or None for handlers that run on any')


def _problem_of_data(handler: Callable[..., Any], settings: WorkerSettings) -> str | None:
    """Why the handler would not get the `job.data` that its annotation promises, if that can be known.

    Without `payload=`, it gets plain BSON. Type checkers cannot see that: they believe `RunningJob[Order]`.
    """
    if settings.payload is not None:
        return None
    hints: dict[str, Any] = {}
    with suppress(Exception):  # A name that is imported for type checkers only, or defined further down; a partial.
        hints = get_type_hints(handler)
    for parameter, hint in hints.items():
        if parameter != "return" and get_origin(hint) is RunningJob:
            data = get_args(hint)[0]
            if kind_of(data) not in (None, Kind.TYPED_DICT):
                name = name_of(data)
                return f"its handler takes a RunningJob[{name}], but would get plain BSON: add payload={name}"
    return None
