"""Scheduler, open_scheduler, run_scheduler: a client that also runs workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar, Unpack, overload

import trio

from ..client.monque import Monque
from ..client.wake_board import neighbours, on_the_board
from ..clock import is_on_run, virtual_time
from ..engine.groups import raise_unwrapped
from ..engine.limits import EngineLimits
from ..engine.nursery import Engine
from ..engine.run import Run
from ..errors import MonqueError
from ..jobs.answers import WorkerView
from ..jobs.events import Event
from ..jobs.job import Job
from ..options import SchedulerConfig, SchedulerOptions, scheduler_config
from ..store.connection import check_database, check_pool
from ..store.offload import CONNECTIONS_NEEDED, Channel
from ..store.types import Database
from .health import Observable
from .job_source import JobSource
from .job_stream import JobStream
from .neighbour import EngineOnTheBoard
from .paused_names import PausedNames
from .presence import Presence
from .pruner import Pruner
from .running_job import RunningJob
from .settlements import JobSettlement
from .telling import SchedulerReport, Teller
from .told import Told
from .workers import Handler, Worker, WorkerOptions, Workers

T = TypeVar("T")

Listeners = Mapping[type[Event], Any]

# Seconds that listeners have, when all else has ended, to hear of it. With the engine's hard bound two in all.
LAST_WORDS = 0.5


class Scheduler(Monque, Observable):
    """A client that also runs workers. Made by `open_scheduler` and `run_scheduler` only.

    Attributes:
        id: This instance's id in the database and in logs.
        report: What it did; None until it has been left.
    """

    def __init__(
        self,
        db: Database,
        workers: Workers | None,
        *,
        resources: Any,
        listeners: Listeners | None,
        config: SchedulerConfig,
    ) -> None:
        if not trio.lowlevel.in_trio_task():
            raise MonqueError(
                "a scheduler runs inside trio.run: start one in a trio program. "
                "From asyncio, enqueue with Monque(db) and let a trio process run the jobs"
            )
        check_pool(check_database(db), CONNECTIONS_NEEDED)
        self._virtual = virtual_time()
        self._token = trio.lowlevel.current_trio_token()
        self._open(db, config)
        self.id = config.scheduler_instance_id
        self.report: SchedulerReport | None = None
        self._config = config
        self._resources = resources
        self._workers = Workers.copied(workers)
        self._bus.add_all({} if listeners is None else listeners)
        self._teller = Teller(self._bus)
        self._ended = trio.Event()
        rests = self._virtual is not None
        self._paused = PausedNames(self._door, rests=rests)
        told = Told()
        self._ground.clock_moved = partial(self._announce, None)
        self._source = JobSource(
            self._ground,
            self._door,
            self._workers,
            self._teller,
            config,
            self._running_job,
            self._announce,
            self._paused,
            self._claimed,
            self._on_the_run,
        )
        self._engine: Engine[Job, JobSettlement] = Engine(
            self._source,
            EngineLimits(
                poll_interval=config.poll_interval,
                safety_poll_interval=config.safety_poll_interval,
                heartbeat_interval=config.heartbeat_interval,
                shutdown_timeout=config.shutdown_timeout,
                cleanup_timeout=config.cleanup_timeout,
                concurrency=config.instance_concurrency,
                rests=rests,
                rescues=config.recover_stale_jobs,
                stuck_after=max(2 * config.operation_timeout, config.heartbeat_interval),
            ),
            # In virtual time everything is told in the run itself: what the server says belongs to no moment of it.
            JobStream(self._ground, self._door, self._workers, self._paused, self.id, told)
            if config.change_stream and not rests
            else None,
        )
        self._presence = Presence(
            self._ground,
            self._door,
            config,
            self._engine.stop,
            names=lambda: self._workers.names,
            held=lambda: self._engine.unfinished,
            rests=rests,
        )
        self._engine.company.accompany(self._presence.run, self._presence.progress, self._presence.end)
        look_for_resumes = partial(self._paused.run, self._ground.jobs, self._engine.waker.look)
        self._engine.company.accompany(look_for_resumes, self._paused.progress)
        if config.job_retention is not None:
            pruner = Pruner(self._ground, self._door, self._engine.stop, self.id, config.job_retention, rests=rests)
            self._engine.company.take_in(pruner.run, pruner.progress)
        self._on_the_board = EngineOnTheBoard(self._engine, self._ground, self._paused, told, self.id)
        for name in self._workers.names:
            self._open_lane(name)

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
        """Registers a worker with this scheduler, while it runs; see `Workers.register`.

        The runs of a handler that is replaced go on, and are counted and awaited as before.
        """

        def add(function: Callable[..., Any]) -> Worker[Any]:
            worker = self._workers.register(name, function, replace=replace, **options)
            self._on_the_run(partial(self._open_lane, name))
            return worker

        return add if handler is None else add(handler)

    def _open_lane(self, name: str) -> None:
        worker = self._workers.get(name)
        assert worker is not None
        own = worker.settings.concurrency
        self._engine.slots.set_limit(name, self._config.worker_concurrency if own is None else own)
        self._engine.waker.look()

    def _workers_here(self) -> Mapping[str, WorkerView]:
        slots = self._engine.slots
        return {
            name: WorkerView(concurrency=slots.limit_of(name), active=slots.running_in(name))
            for name in self._workers.names
        }

    def _announce(self, jobs: Sequence[Job] | None) -> None:
        announcer = self._announcer
        self._on_the_run(announcer.announce_unknown if jobs is None else partial(announcer.announce, jobs))

    def _claimed(self) -> None:
        for neighbour in neighbours(self._ground.jobs.collection.full_name):
            if neighbour is not self._on_the_board:
                neighbour.watch(self._engine.is_idle)

    def _on_the_run(self, function: Callable[[], None]) -> None:
        if is_on_run(self._token):
            function()
        else:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function)

    def drain(self) -> None:
        """Begins the orderly end: nothing new is claimed, running jobs get `shutdown_timeout`.

        May be said again, and from any thread: a plain handler may say it.
        """
        self._on_the_run(self._engine.stop.drain)

    async def wait_drained(self) -> None:
        """Returns when the scheduler has ended, which somebody must have asked for."""
        await self._ended.wait()

    def _running_job(self, run: Run[Job]) -> RunningJob[Any]:
        return RunningJob(run, self, self._resources, self._source.report, self._config.cleanup_timeout)

    async def _run(self, *, task_status: trio.TaskStatus[Scheduler] = trio.TASK_STATUS_IGNORED) -> None:
        """The whole life of the scheduler: returns when it has ended, raises what crashed of it."""
        try:
            # Nothing is held yet, so this wait may be cut short at any time.
            await self._door.hand_over(
                self._get_ready, orphan=lambda _: self._presence.leave(), channel=Channel.COMMANDS
            )
            with on_the_board(self._ground.jobs.collection.full_name, self._on_the_board):
                await self._run_listened_to(task_status)
        except BaseException as error:
            self._end()
            if crashes := self._engine.stop.crashes:
                raise BaseExceptionGroup("the scheduler crashed and was cancelled", [*crashes, error]) from None
            raise
        self._end()
        if crashes := self._engine.stop.crashes:
            raise BaseExceptionGroup("the scheduler crashed", crashes)

    def _end(self) -> None:
        engine = self._engine
        report = self._teller.report(tuple(engine.unfinished), tuple(engine.stop.crashes), engine.watchdog.blocked)
        self._teller.tell_unfinished(report.unfinished)
        self.report = report
        self._stats.clear()
        self._ended.set()

    def _get_ready(self) -> None:
        """In a thread: the server's time, the indexes, and with them whether the database can be used at all.

        Then the entry of this instance, whose id must not be another's, and the declared schedules. However many
        instances declare one at once, one job of it exists.
        """
        self._ground.measure_clock_offset()
        self._ground.ensure_indexes()
        self._presence.enter()
        try:
            self._declare_schedules()
        except BaseException:
            self._presence.leave()
            raise

    def _declare_schedules(self) -> None:
        for name, cron in self._workers.crons.items():
            self._sync.schedule(
                cron.expression,
                name,
                cron.data,
                unique_key=f"cron:{name}",
                timezone=cron.timezone,
                on_exhausted=cron.on_exhausted,
                on_conflict="update",
            )

    async def _run_listened_to(self, task_status: trio.TaskStatus[Scheduler]) -> None:
        async with trio.open_nursery() as listening:
            hearing = await listening.start(self._deliver_events)
            try:
                await self._engine.run(started=partial(task_status.started, self))
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_WORDS):
                    async with trio.open_nursery() as last_words:
                        last_words.start_soon(self._leave)
                        await self._bus.wait_caught_up()
                self._bus.lose_patience()
                hearing.cancel(reason="the scheduler has ended")

    async def _leave(self) -> None:
        """Where the engine ended out of order."""
        if self._presence.is_there:
            await self._door.call(self._presence.leave, channel=Channel.RENEWALS, abandon_on_cancel=True)

    async def _lose_patience(self, in_body: trio.CancelScope) -> None:
        """When all is cut, calls of the body are awaited no longer than clean-ups are."""
        with in_body:
            await self._engine.stop.cutting.wait()
            await trio.sleep(self._config.cleanup_timeout)
            self._door.patience.end()

    async def _deliver_events(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        # Shielded: what happens while everything else is being cancelled is what listeners want to hear of.
        with trio.CancelScope(shield=True) as scope:
            task_status.started(scope)
            await self._bus.run()


@asynccontextmanager
async def open_scheduler(
    db: Database,
    workers: Workers | None = None,
    *,
    resources: Any = None,
    listeners: Listeners | None = None,
    **options: Unpack[SchedulerOptions],
) -> AsyncIterator[Scheduler]:
    """Runs a scheduler for as long as the body.

    When the body ends, nothing new is claimed and running jobs get `shutdown_timeout`; when the body
    raises, is cancelled or interrupted, they are cancelled at once and their jobs are pending again.

    Args:
        db: A `pymongo.database.Database` of a client with room for 17 connections.
        workers: What it can run; copied.
        resources: Given to every handler as `job.resources`.
        listeners: Event classes and who hears of them, from the first event on.
        options: See SchedulerConfig.

    Raises:
        InvalidDatabaseError, InvalidOptionError: At once, naming what is wrong.
        MonqueConnectionError: The database cannot be reached or used.
        InstanceCollisionError: Another scheduler that lives has the same `scheduler_instance_id`.
    """
    scheduler = Scheduler(db, workers, resources=resources, listeners=listeners, config=scheduler_config(options))
    body_error: BaseException | None = None
    in_body = trio.CancelScope(shield=True)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(scheduler._run)  # noqa: SLF001
            with trio.CancelScope() as body:
                nursery.start_soon(_end_body_when_crashed, scheduler, body)
                nursery.start_soon(scheduler._lose_patience, in_body)  # noqa: SLF001
                try:
                    yield scheduler
                    scheduler.drain()
                    # Unshielded: cancellation arrives here, and makes the drain a cut.
                    await scheduler.wait_drained()
                except BaseException as error:
                    body_error = error
                    scheduler._engine.stop.cut()  # noqa: SLF001
                    raise
                finally:
                    in_body.cancel(reason="the body has ended")
    except BaseExceptionGroup as group:
        raise_unwrapped(group, around_a_group=isinstance(body_error, BaseExceptionGroup))


async def _end_body_when_crashed(scheduler: Scheduler, body: trio.CancelScope) -> None:
    """The body of a scheduler that crashed is cancelled, as a child that crashes cancels its nursery's body."""
    await scheduler.wait_drained()
    if scheduler._engine.stop.crashes:  # noqa: SLF001
        body.cancel(reason="the scheduler crashed")


async def run_scheduler(
    db: Database,
    workers: Workers | None = None,
    *,
    resources: Any = None,
    listeners: Listeners | None = None,
    task_status: trio.TaskStatus[Scheduler] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[SchedulerOptions],
) -> SchedulerReport:
    """The same as a task of your own nursery: `scheduler = await nursery.start(run_scheduler, db, workers)`.

    Returns what it did when `scheduler.drain()` was said and it has ended. Cancelled, it cuts: running
    jobs are cancelled, and it ends within `cleanup_timeout` plus two seconds. Arguments, options and
    errors are those of `open_scheduler`.
    """
    scheduler = Scheduler(db, workers, resources=resources, listeners=listeners, config=scheduler_config(options))
    try:
        await scheduler._run(task_status=task_status)  # noqa: SLF001
    except BaseExceptionGroup as group:
        raise_unwrapped(group)
    assert scheduler.report is not None
    return scheduler.report
