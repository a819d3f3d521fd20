"""Scheduler, open_scheduler, run_scheduler: a client that also runs workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import UnionType
from typing import Any, TypeVar, Unpack, overload

import trio

from ..async_with import entered_by_async_with
from ..call_context import async_calls
from ..client.context import ClientContext
from ..clock import virtual_time
from ..engine.run import Run
from ..error_types import AsyncWithError
from ..events import Event
from ..host.application_loop import Opened, opened, run
from ..host.handler_loop import ON_TRIO, HandlerLoop
from ..host.host import Body, Host, Life
from ..host.log_lines import MOST_NAMED
from ..jobs.job import Job
from ..jobs.views import WorkerView
from ..options_and_defaults import SchedulerConfig, SchedulerOptions, scheduler_config
from ..store.connection import check_database, check_pool
from ..store.database_threads import CONNECTIONS_NEEDED
from ..store.types import Database
from .assembly import assembled
from .events_and_report import JobReporter, SchedulerReport
from .running_job import JobSurroundings, Resources, RunningJob
from .scheduler_client import SchedulerClient
from .start import SchedulerStart
from .worker import Handler, Worker
from .worker_settings import RegisterOptions, WorkerOptions
from .workers import Workers

T = TypeVar("T")
R = TypeVar("R")

Listeners = Mapping[type[Event], Any]


@async_calls("In a plain handler, call job.from_thread(job.scheduler.{name})")
class Scheduler(SchedulerClient):
    """A client that also runs workers. Only `open_scheduler` and `run_scheduler` create it.

    Attributes:
        id: This instance's id in the database and in logs.
    """

    def __init__(
        self,
        db: Database,
        workers: Workers | None,
        *,
        resources: Any = None,
        listeners: Listeners | None = None,
        config: SchedulerConfig | None = None,
        loop: HandlerLoop = ON_TRIO,
    ) -> None:
        if config is None:
            raise AsyncWithError(
                "a Scheduler is made by `async with open_scheduler(db, workers) as scheduler:`, or as a task, by "
                "`await nursery.start(run_scheduler, db, workers)`"
            )
        check_pool(check_database(db), CONNECTIONS_NEEDED + loop.further_connections)
        self._open(
            ClientContext.of(db, config, self._workers_here, lambda name: self._workers.get(name)), loop.call_listener
        )
        self._config = config
        self._workers = Workers.copied(workers)
        self._workers.check_loop("trio" if loop is ON_TRIO else "asyncio")
        self._event_delivery.add_all({} if listeners is None else listeners)
        self._reporter = JobReporter(
            self._event_delivery,
            config.instance_id,
            self.namespace,
            shows_errors=config.redact_errors is None,
            full_tracebacks=config.full_tracebacks,
        )
        parts = assembled(
            self._context, self._db_threads, config, self._workers, self._reporter, self._running_job, loop
        )
        self._sources = parts.sources
        self._surroundings = JobSurroundings(self, resources, parts.sources.reports, loop)
        # For workers with runs_on="runtime". In a program on trio it is equal to the other.
        self._in_runtime = replace(self._surroundings, loop=ON_TRIO)
        self._equipped = {
            worker: replace(self._surroundings_of(worker), resources=own)
            for worker, own in self._workers.own_resources.items()
        }
        self._presence = parts.presence
        start = SchedulerStart(
            self._context, self._db_threads, self._workers, parts.presence, self._sync, config.instance_id
        )
        life = Life(
            name="the scheduler",
            get_ready=start.get_ready,
            described=self._described,
            reachable=partial(start.reachable, parts.wakeups),
            leave=start.leave,
        )
        host = Host(parts.engine, self._reporter, life, start_timeout=config.start_timeout)
        contention = parts.sources.claims.contention
        self._set_host(host, self._reporter, virtual_time(), config.instance_id, loop, contention)
        body = Body(
            name="open_scheduler",
            beside=partial(start.bound_calls_of_body, parts.engine.stop.cutting, config.cleanup_timeout),
        )
        self._opened: Opened[Scheduler, SchedulerReport] = Opened(self, host, body, loop)
        for name in self._workers.names:
            self._open_group(name)

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
            worker = self._workers.register(name, function, replace=replace, **options)
            self._engine.on_trio_thread(partial(self._open_group, name))
            return worker

        return add if handler is None else add(handler)

    def _open_group(self, name: str) -> None:
        worker = self._workers.get(name)
        assert worker is not None
        own = worker.settings.concurrency
        self._engine.slots.set_limit(name, self._config.concurrency_per_name if own is None else own)
        self._engine.waker.look()
        self._sources.follow_ups.worker_added()

    def _workers_here(self) -> Mapping[str, WorkerView]:
        slots = self._engine.slots
        return {
            name: WorkerView(concurrency=slots.limit_of(name), active=slots.running_in(name))
            for name in self._workers.names
        }

    def _described(self) -> tuple[str, str]:
        limits = {name: self._engine.slots.limit_of(name) for name in self._workers.names}
        names = [f"{name} ({limit} at a time)" for name, limit in list(limits.items())[:MOST_NAMED]]
        if len(limits) > MOST_NAMED:
            names.append(f"{len(limits) - MOST_NAMED} more")
        most = self._config.concurrency
        in_all = "" if most is None else f", at most {most} in all"
        return self._context.jobs.collection.full_name, f"runs {', '.join(names) or 'nothing (no workers)'}{in_all}"

    def _running_job(self, run: Run[Job], worker: Worker[Any]) -> RunningJob[Any]:
        return RunningJob(run, self._equipped.get(worker) or self._surroundings_of(worker))

    def _surroundings_of(self, worker: Worker[Any]) -> JobSurroundings:
        return self._surroundings if worker.settings.runs_on is None else self._in_runtime


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
            (`Workers.with_resources`).
        listeners: Event classes and their listeners, which receive all events from the start on.
        options: See SchedulerConfig.

    Raises:
        InvalidDatabaseError, InvalidOptionError: An argument is invalid; raised before any command is sent.
        MonqueConnectionError: The database cannot be reached or used.
        InstanceCollisionError: Another live scheduler has the same `instance_id`.
    """
    config = scheduler_config(options)

    def made(loop: HandlerLoop) -> Opened[Scheduler, SchedulerReport]:
        scheduler = Scheduler(db, workers, resources=resources, listeners=listeners, config=config, loop=loop)
        return scheduler._opened  # noqa: SLF001

    async with opened("open_scheduler", "scheduler", made) as scheduler:
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
    config = scheduler_config(options)

    def made(loop: HandlerLoop) -> Opened[Scheduler, SchedulerReport]:
        scheduler = Scheduler(db, workers, resources=resources, listeners=listeners, config=config, loop=loop)
        return scheduler._opened  # noqa: SLF001

    return await run("run_scheduler", "scheduler", made, task_status)
