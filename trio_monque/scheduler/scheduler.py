"""Scheduler, open_scheduler, run_scheduler: a client that also runs workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import UnionType
from typing import Any, TypeVar, Unpack, overload

import trio

from ..async_with import entered_by_async_with
from ..bridge.handler_loop import HandlerLoop
from ..bridge.host_for_asyncio import Opened, opened, run
from ..client.operation import async_calls
from ..error_types import AsyncWithError
from ..options_and_defaults import SchedulerConfig, SchedulerOptions, scheduler_config
from ..store.driver.types import Database
from .assembly import Listeners, Parts, assembled
from .changes import ChangeSource
from .declared_resources import check_resources
from .events_and_report import SchedulerReport
from .running_job import Resources
from .scheduler_client import SchedulerClient
from .worker import Handler, Worker
from .worker_settings import RegisterOptions, WorkerOptions
from .workers import Workers

T = TypeVar("T")
R = TypeVar("R")


@async_calls("In a plain handler, call job.from_thread(job.scheduler.{name})")
class Scheduler(SchedulerClient):
    """A client that also runs workers. Only `open_scheduler` and `run_scheduler` create it.

    Attributes:
        id: This instance's id in the database and in logs.
    """

    _parts: Parts

    def __init__(self, parts: Parts, *others: object, **options: object) -> None:
        if not isinstance(parts, Parts):
            raise AsyncWithError(
                "a Scheduler is made by `async with open_scheduler(db, workers) as scheduler:`, or as a task, by "
                "`await nursery.start(run_scheduler, db, workers)`"
            )
        self._open(parts.client)
        self.id = parts.config.instance_id
        # Set once, so a narrower type is safe.
        self._parts = parts  # pyright: ignore[reportIncompatibleVariableOverride]

    @overload
    def register(
        self,
        name: str,
        handler: Handler[T, Any, R],
        /,
        *,
        payload: Callable[..., T] | UnionType | None = ...,
        **options: Unpack[RegisterOptions],
    ) -> Worker[T, R]: ...

    @overload
    def register(  # type: ignore[overload-overlap]  # The next is for unions: mypy sees `A | B` as a UnionType or as a type.
        self, name: str, /, *, payload: Callable[..., T], **options: Unpack[RegisterOptions]
    ) -> Callable[[Handler[T, Any, R]], Worker[T, R]]: ...

    @overload
    def register(
        self, name: str, /, *, payload: UnionType | type[Any] | None = ..., **options: Unpack[RegisterOptions]
    ) -> Callable[[Handler[T, Any, R]], Worker[T, R]]: ...

    def register(
        self,
        name: str,
        handler: Callable[..., Any] | None = None,
        /,
        *,
        replace: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> Any:
        """Register a worker with this scheduler while it runs; see `Workers.register`.

        Runs of a replaced handler go on, and are counted and awaited as before.
        """

        def add(function: Callable[..., Any]) -> Worker[Any]:
            parts = self._parts
            worker = parts.workers.register(name, function, replace=replace, **options)
            parts.engine.post(partial(parts.open_group, name))
            return worker

        return add if handler is None else add(handler)


def opened_scheduler(
    db: Database,
    workers: Workers[Any] | None,
    resources: Any,
    listeners: Listeners | None,
    config: SchedulerConfig,
    loop: HandlerLoop,
    *,
    changes: ChangeSource | None = None,
) -> Opened[Scheduler, SchedulerReport]:
    """Make a scheduler, whose handlers run on this loop. It has not started yet."""
    check_resources(workers, resources)
    parts = assembled(db, workers, resources, listeners, config, loop, changes=changes)
    scheduler = Scheduler(parts)
    parts.running_jobs.serve(scheduler, parts.sources.reports)
    for name in parts.workers.names:
        parts.open_group(name)
    return Opened(scheduler, parts.host, parts.body, loop)


@entered_by_async_with("scheduler")
@asynccontextmanager
async def open_scheduler(
    db: Database,
    workers: Workers[Resources] | None = None,
    *,
    resources: Resources | None = None,
    listeners: Listeners | None = None,
    **options: Unpack[SchedulerOptions],
) -> AsyncIterator[Scheduler]:
    """Run a scheduler for as long as the body of `async with`, on trio, asyncio or uvloop.

    Handlers and async listeners run on the event loop of the caller, as tasks with a copy of its context. On asyncio
    the scheduler itself runs on trio in a thread of its own. A handler that blocks the loop then delays the other
    handlers, and the scheduler claims nothing meanwhile, but it renews their claims.

    When the body ends, the scheduler claims no more jobs, and running jobs get `shutdown_timeout` to end. When the body
    raises, is cancelled or interrupted, it cancels running jobs at once, and their jobs are pending again.

    Args:
        db: A `pymongo.database.Database` of a client with room for 21 connections; on asyncio for 31.
        workers: The workers that it runs; they are copied.
        resources: Every handler gets it as `job.resources`, unless its workers have resources of their own
            (`Workers.with_resources`). Needed for a `Workers[Pool]()`.
        listeners: Event classes and their listeners, which receive all events from the start on.
        options: See SchedulerConfig.

    Raises:
        InvalidDatabaseError, InvalidOptionError: An argument is invalid; raised before any command is sent.
        MonqueConnectionError: The database cannot be reached or used.
        InstanceCollisionError: Another live scheduler has the same `instance_id`.
    """
    make = partial(opened_scheduler, db, workers, resources, listeners, scheduler_config(options))
    async with opened("open_scheduler", "scheduler", make) as scheduler:
        yield scheduler


async def run_scheduler(
    db: Database,
    workers: Workers[Resources] | None = None,
    *,
    resources: Resources | None = None,
    listeners: Listeners | None = None,
    task_status: trio.TaskStatus[Scheduler] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[SchedulerOptions],
) -> SchedulerReport:
    """Run a scheduler as a task of your nursery: `scheduler = await nursery.start(run_scheduler, db, workers)`.

    On asyncio, start it in a task group of anyio in the same way.

    It ends after `scheduler.drain()`, and returns its report. If it is cancelled, it cancels running jobs and ends
    within `cleanup_timeout` plus two seconds. Arguments, options and errors are those of `open_scheduler`.
    """
    make = partial(opened_scheduler, db, workers, resources, listeners, scheduler_config(options))
    return await run("run_scheduler", "scheduler", make, task_status)
