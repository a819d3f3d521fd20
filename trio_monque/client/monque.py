"""Monque: the async client. It carries operations out in database threads, on any anyio backend."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence, Set
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, Unpack, overload

import anyio
import anyio.lowlevel
import anyio.to_thread

from ..error_types import MonqueConnectionError
from ..events import Event
from ..jobs.enqueued import Enqueued
from ..jobs.job import Job
from ..jobs.new_job import JobOptions
from ..jobs.stored_value_limits import AsyncWorker, PlainWorker, TypedWorker
from ..options_and_defaults import ClientOptions, client_config
from ..store.driver.types import ClientSession, Database, ObjectId
from ..store.jobs.stale_regions import RegionWatch, jobs_of, open_regions
from ..store.reads.diagnosis.held_jobs import Holder, look_at_claims
from . import (
    bulk,
    enqueue,
    enqueue_many,
    findings_and_overview,
    fleet,
    job_counting,
    lists_and_counts,
    one_job,
    questions,
    recovery,
    schedules,
)
from .child_ends import ChildEnds
from .client_context import ClientContext
from .client_parts import ClientParts
from .event_delivery import EventT, Listener
from .event_stream import EventStream
from .job_wait import JobWait, Until, job_wait
from .job_wait_calls import wait_async
from .local_wakeups import LISTENING
from .operation import Operation, async_calls, present_as
from .schedules import ScheduleOptions
from .sync_monque import SyncMonque

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
OtherEventT = TypeVar("OtherEventT", bound=Event)

IN_A_THREAD: Final = (
    "Call sync.{name}(...) of the same client, for example monque.sync.{name}(...) or job.scheduler.sync.{name}(...). "
    "In a plain handler, job.from_thread(job.scheduler.{name}, ...) does as well; in a program, call it in an async "
    "function"
)
"""What to do instead of an async call in a thread without an event loop."""


def awaited(
    operation: Callable[Concatenate[ClientContext, P], Operation[R]],
) -> Callable[Concatenate[Monque, P], Coroutine[Any, Any, R]]:
    """Make an async method from an operation, with its signature and documentation."""

    async def method(self: Monque, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(operation(self._context, *args, **kwargs))

    present_as(method, operation)
    method.__qualname__ = f"Monque.{method.__name__}"
    return method


@async_calls(IN_A_THREAD)
class Monque:
    """The client: enqueues, inspects and manages jobs, but does not run them.

    A client can be made anywhere, also at the top level of a module. It holds nothing that belongs to an event loop,
    and works on trio, asyncio and uvloop, also on several after each other. It never closes your `MongoClient`.

    Cancellation: a call that is cancelled before it sent anything sends nothing. A call that was sent is awaited,
    except that one that only reads ends at once (on asyncio, with the answer).

    Args:
        db: A `pymongo.database.Database`. Its codec options hold for `data`; reads go to the primary.
        options: See ClientConfig: collection_name, max_payload_size, operation_timeout,
            skip_index_creation, stats_cache_ttl, write_concern.

    Raises:
        InvalidDatabaseError: `db` is something else; the message says what to pass.
        InvalidOptionError: An option is invalid; the message names it.
    """

    def __init__(self, db: Database, **options: Unpack[ClientOptions]) -> None:
        self._open(ClientParts.of(ClientContext.of(db, client_config(options))))

    def _open(self, parts: ClientParts) -> None:
        self._context = parts.context
        self._event_delivery = parts.event_delivery
        self._end_watcher = parts.end_watcher
        self._sync = parts.sync
        self._db_threads = parts.db_threads
        self._group = parts.group
        self._announcer = parts.announcer

    @property
    def namespace(self) -> str:
        """The database and the collection of the jobs, as in "shop.monque_jobs"."""
        return self._context.jobs.collection.full_name

    @property
    def sync(self) -> SyncMonque:
        """The same calls, blocking; refused in a task of an event loop."""
        return self._sync

    @property
    def sync_in_loop(self) -> SyncMonque:
        """The same as `sync`, allowed in a task of an event loop too: all its tasks wait for the database."""
        return SyncMonque(self._context, self._event_delivery, self._end_watcher, blocks_loops=True)

    # --- Enqueue and schedule. Written out, because the data's type depends on the worker ---

    @overload
    async def enqueue(
        self, worker: AsyncWorker[T, R], data: T, *, session: ClientSession | None = ..., **options: Unpack[JobOptions]
    ) -> Job[R]: ...
    @overload
    async def enqueue(
        self,
        worker: AsyncWorker[None, R],
        data: None = ...,
        *,
        session: ClientSession | None = ...,
        **options: Unpack[JobOptions],
    ) -> Job[R]: ...
    @overload
    async def enqueue(
        self, worker: PlainWorker[T, R], data: T, *, session: ClientSession | None = ..., **options: Unpack[JobOptions]
    ) -> Job[R]: ...
    @overload
    async def enqueue(
        self,
        worker: PlainWorker[None, R],
        data: None = ...,
        *,
        session: ClientSession | None = ...,
        **options: Unpack[JobOptions],
    ) -> Job[R]: ...
    @overload
    async def enqueue(
        self, worker: str, data: Any = ..., *, session: ClientSession | None = ..., **options: Unpack[JobOptions]
    ) -> Job: ...
    async def enqueue(
        self,
        worker: str | TypedWorker[Any],
        data: Any = None,
        *,
        session: ClientSession | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Store a job, acknowledged by a majority; from then on it runs until it has ended.

        Calls that are made at the same time, with neither a unique key nor a session, share one
        statement. Each call returns or raises its own outcome.

        Args:
            worker: The name of a worker, or the worker, whose `payload` the data is checked against.
            data: What the worker's `payload` declares. Without one: any BSON value, or an instance of a class
                with fields, such as a dataclass, which is stored as a document of them.
            session: A pymongo session of the same client. In a transaction the job is part of it: rolled
                back with it, seen by workers when it commits. Nothing is tried again inside; an error
                after which the whole transaction may be tried again is raised as the driver's, and a
                lost race for a unique key is one.
            run_at: When it is due, timezone-aware; by default now. A moment that has passed is due at once.
            delay: Seconds from now, or a timedelta, instead of `run_at`.
            start_by: If no run has begun by then (timezone-aware), the job is cancelled. Only the first run is limited.
            unique_key: At most one pending or processing job of this name has this key: if there is
                one already, `on_conflict` says what the call does. It returns that job.
            on_conflict: "keep", the default, changes nothing. "replace" gives a pending job that has the key the
                `data` and the due date of this call, and all its attempts again; its other options stay. A running
                job keeps its data, and runs once more afterwards with these. A schedule is kept. "debounce" is
                "replace" with another due date: `delay` seconds from now, and at most `max_wait` from the first of
                such calls. If the answer of the database was lost, the call replaces once more: then the job may run
                once more, too.
            max_wait: Seconds, or a timedelta; only with "debounce". None for no limit.
            max_attempts: After how many failures this job is `failed`, instead of its worker's.
            max_rescues: How many deaths in a row it may cause, instead of the scheduler's.
            timeout: Seconds that one run may take, instead of its worker's.
            meta: Strings that accompany the job and are not its data, such as a tenant or a trace: handlers and
                middleware read `job.meta`. At most 32 entries and 4,096 bytes in all.

        Raises:
            InvalidJobIdentifierError, InvalidPayloadError, PayloadTooLargeError, InvalidOptionError:
                The job is invalid; nothing was sent.
            BrokenDocumentError: A document that is not a job has the unique key; nothing was stored.
            MonqueConnectionError: The database did not store it; with `unknown_outcome`, it may have.
        """
        return await self._run(enqueue.enqueue(self._context, worker, data, session=session, **options))

    @overload
    async def enqueue_with_outcome(
        self, worker: AsyncWorker[T, R], data: T, **options: Unpack[JobOptions]
    ) -> Enqueued[R]: ...
    @overload
    async def enqueue_with_outcome(
        self, worker: AsyncWorker[None, R], data: None = ..., **options: Unpack[JobOptions]
    ) -> Enqueued[R]: ...
    @overload
    async def enqueue_with_outcome(
        self, worker: PlainWorker[T, R], data: T, **options: Unpack[JobOptions]
    ) -> Enqueued[R]: ...
    @overload
    async def enqueue_with_outcome(
        self, worker: PlainWorker[None, R], data: None = ..., **options: Unpack[JobOptions]
    ) -> Enqueued[R]: ...
    @overload
    async def enqueue_with_outcome(
        self, worker: str, data: Any = ..., **options: Unpack[JobOptions]
    ) -> Enqueued[Any]: ...
    async def enqueue_with_outcome(
        self, worker: str | TypedWorker[Any], data: Any = None, **options: Unpack[JobOptions]
    ) -> Enqueued[Any]:
        """Enqueue a job as `enqueue` does, and return the job together with what became of it.

        The outcome is "created", "kept" or "replaced": see Enqueued. It takes no `session`. After a lost answer that
        was found out about, the outcome is that of the sending that the database answered.
        """
        return await self._run(enqueue.enqueue_with_outcome(self._context, worker, data, **options))

    @overload
    async def schedule(
        self, cron: str, worker: TypedWorker[T], data: T, *, on_conflict: str = ..., **options: Unpack[ScheduleOptions]
    ) -> Job: ...
    @overload
    async def schedule(
        self,
        cron: str,
        worker: TypedWorker[None],
        data: None = ...,
        *,
        on_conflict: str = ...,
        **options: Unpack[ScheduleOptions],
    ) -> Job: ...
    @overload
    async def schedule(
        self, cron: str, worker: str, data: Any = ..., *, on_conflict: str = ..., **options: Unpack[ScheduleOptions]
    ) -> Job: ...
    async def schedule(
        self,
        cron: str,
        worker: str | TypedWorker[Any],
        data: Any = None,
        *,
        on_conflict: str = "keep",
        **options: Unpack[ScheduleOptions],
    ) -> Job:
        """Store a recurring job: on success it moves to its next occurrence.

        Args:
            cron: Five fields, or an alias such as @daily, which is stored as five fields.
            worker, data: As for `enqueue`.
            unique_key: Makes it a declaration: if a pending or processing job of this name has the
                key, the call stores no second one. Without a key, each call makes another job.
            timezone: The zone of `cron`, or its IANA name; "UTC" by default.
            on_exhausted: What an occurrence that used up its retries means: "continue" with the next
                one, which is the default, or "fail".
            on_conflict: If the key is in use: "keep" the job as it is, or "update" its cron, time zone,
                data, meta and `on_exhausted`, unless its `version` is higher. A run that is under way keeps what
                it began with.
            version: A whole number from 1 that decides which of two declarations is the newer one: "update" leaves
                a schedule of a higher version as it is, and logs that. None is older than any version.
            meta: As for `enqueue`; each occurrence has it.

        Raises:
            InvalidCronError: The expression or the time zone is invalid; nothing was sent.
            The errors of `enqueue`.
        """
        operation = schedules.schedule(self._context, cron, worker, data, on_conflict=on_conflict, **options)
        return await self._run(operation)

    @overload
    async def document(self, worker: TypedWorker[T], data: T, **options: Unpack[JobOptions]) -> dict[str, Any]: ...
    @overload
    async def document(
        self, worker: TypedWorker[None], data: None = ..., **options: Unpack[JobOptions]
    ) -> dict[str, Any]: ...
    @overload
    async def document(self, worker: str, data: Any = ..., **options: Unpack[JobOptions]) -> dict[str, Any]: ...
    async def document(
        self, worker: str | TypedWorker[Any], data: Any = None, **options: Unpack[JobOptions]
    ) -> dict[str, Any]:
        """Check a job as `enqueue` does, and return its document, for you to insert.

        You insert it with another driver, in its transaction for example. The job is due from the server's time on,
        and the indexes exist when this returns: call it before the transaction begins. A unique key in use is a
        duplicate key error of your insert.
        """
        return await self._run(enqueue.document(self._context, worker, data, **options))

    enqueue_many = awaited(enqueue_many.enqueue_many)
    preview = awaited(schedules.preview)

    # --- The other operations ---

    @overload
    async def wait_job(self, job: Job[R], *, timeout: float | None = ...) -> Job[R]: ...
    @overload
    async def wait_job(self, job: ObjectId | str, *, timeout: float | None = ...) -> Job: ...
    async def wait_job(self, job: Job | ObjectId | str, *, timeout: float | None = None) -> Job:
        """Wait until a job has ended, and return it. `job.result` is what its handler returned, if its worker is
        registered with `store_result=True`.

        A change stream reports the end within milliseconds, whichever process runs the job. Without change streams,
        the client looks once a second. All waits of a client share one stream, which is open while there are any. A
        majority of the replica set holds the end that is returned.

        A handler that waits for a job keeps its own slot meanwhile: with one slot for both, neither ends.

        Cancelled, it ends at once.

        Args:
            job: A job, or its id.
            timeout: Seconds after which TimeoutError is raised; None for no limit.

        Raises:
            JobFailedError, JobCancelledError: It ended so; the error has the job.
            JobDeletedError: It was deleted, or never existed: for example, because the text cannot be an id.
            TimeoutError: No end is known by then. The job goes on. If the last look at the database failed, the
                `__cause__` says why.
            InvalidOptionError: It is recurring, so it does not end, or an argument is invalid.
            BrokenDocumentError: The document is not a job.
            MonqueConnectionError: The database cannot be used, for example for want of rights. A wait outlasts
                elections, lost connections and outages, also at its beginning.
        """
        (ended,) = await self._wait(job_wait([job], "all", timeout, check=True), timeout)
        return ended

    @overload
    async def wait_jobs(
        self, jobs: Iterable[Job[R]], *, until: Until = ..., timeout: float | None = ..., check: bool = ...
    ) -> Sequence[Job[R]]: ...
    @overload
    async def wait_jobs(
        self,
        jobs: Iterable[Job | ObjectId | str],
        *,
        until: Until = ...,
        timeout: float | None = ...,
        check: bool = ...,
    ) -> Sequence[Job]: ...
    async def wait_jobs(
        self,
        jobs: Iterable[Job | ObjectId | str],
        *,
        until: Until = "all",
        timeout: float | None = None,
        check: bool = True,
    ) -> Sequence[Job]:
        """Wait until several jobs have ended; see `wait_job`.

        Args:
            jobs: Jobs or their ids.
            until: "all", or "first": until one of them has ended.
            timeout: As for `wait_job`.
            check: Raise JobFailedError, JobCancelledError or JobDeletedError as soon as one job means that, although
                others run on. With False, failed and cancelled jobs are returned like others.

        Returns:
            The jobs that have ended, in your order; with "first", one.

        Raises:
            See `wait_job`.
        """
        return await self._wait(job_wait(jobs, until, timeout, check=check), timeout)

    async def _wait(self, wait: JobWait, timeout: float | None) -> Sequence[Job]:
        return await wait_async(self._context.jobs, self._db_threads, self._end_watcher, wait, timeout)

    get_job = awaited(one_job.get_job)
    get_job_by_key = awaited(one_job.get_job_by_key)
    cancel_job = awaited(one_job.cancel_job)
    retry_job = awaited(one_job.retry_job)
    reschedule_job = awaited(one_job.reschedule_job)
    delete_job = awaited(one_job.delete_job)

    cancel_jobs = awaited(bulk.cancel_jobs)
    retry_jobs = awaited(bulk.retry_jobs)
    delete_jobs = awaited(bulk.delete_jobs)
    count_jobs = awaited(job_counting.count_jobs)

    get_jobs = awaited(lists_and_counts.get_jobs)
    get_jobs_with_cursor = awaited(lists_and_counts.get_jobs_with_cursor)
    get_queue_stats = awaited(lists_and_counts.get_queue_stats)
    get_queue_view_summaries = awaited(lists_and_counts.get_queue_view_summaries)
    get_queue_depths = awaited(lists_and_counts.get_queue_depths)
    get_broken_documents = awaited(lists_and_counts.get_broken_documents)
    get_running = awaited(questions.get_running)
    get_schedules = awaited(questions.get_schedules)
    get_error_groups = awaited(questions.get_error_groups)
    get_minutes = awaited(questions.get_minutes)
    why_not_now = awaited(questions.why_not_now)
    findings = awaited(findings_and_overview.findings)
    get_overview = awaited(findings_and_overview.get_overview)

    instances = awaited(fleet.instances)
    paused = awaited(fleet.paused)
    pauses = awaited(fleet.pauses)
    pause = awaited(fleet.pause)
    resume = awaited(fleet.resume)
    recover_stale_jobs = awaited(recovery.recover_stale_jobs)

    # --- Events ---

    def on(self, event_type: type[EventT], listener: Listener[EventT]) -> Callable[[], None]:
        """Call `listener` with every event of the type; return a function that removes it.

        A scheduler reports all that it does: it runs an async listener as a task and a plain one in a thread. A
        slow or a raising listener does not slow or break a job (one that is too slow misses events, which is
        logged). A client that runs no jobs reports what its own calls did, before they return.
        """
        return self._event_delivery.on(event_type, listener)

    @overload
    def events(
        self, one: type[EventT], other: type[OtherEventT], /
    ) -> AbstractAsyncContextManager[EventStream[EventT | OtherEventT]]: ...

    @overload
    def events(self, *types: type[EventT]) -> AbstractAsyncContextManager[EventStream[EventT]]: ...

    # Without the first, mypy takes the events of two classes for plain `Event`s, which have no `job`.
    def events(self, *types: type[Any]) -> AbstractAsyncContextManager[EventStream[Any]]:
        """`async with monque.events(JobFailed, ...) as stream: async for event in stream: ...`.

        Events of these types, in the order in which they happened, from entering until leaving the block;
        the stream of a scheduler ends when the scheduler has ended. A slow reader misses events, which
        `stream.dropped` counts.
        """
        return self._event_delivery.events(*types)

    # --- How an operation is carried out ---

    async def _run(self, operation: Operation[R]) -> R:
        """Carry out an operation in database threads, and deliver what it caused, however it ends."""
        if operation.is_over:
            await anyio.lowlevel.checkpoint()  # Every async call is a checkpoint, also one that sends nothing.
        try:
            while not operation.is_over:
                await self._step(operation)
        except BaseException:
            # The thread may have finished its work for a caller that was cancelled meanwhile: that is reported too.
            await self._event_delivery.deliver_all(operation.events(), has_failed=True)
            raise
        if events := operation.events():
            await self._event_delivery.deliver_all(events)
        return operation.result

    async def _step(self, operation: Operation[R]) -> None:
        if operation.pause:
            await anyio.sleep(operation.pause)
        try:
            if isinstance(operation, enqueue.Enqueue) and operation.can_share:
                operation.stored(await self._group.enqueue(operation.draft))
            else:
                await self._db_threads.call(operation.step, abandon_on_cancel=operation.only_reads)
        except (MonqueConnectionError, anyio.get_cancelled_exc_class()):
            # A cancelled caller too may leave a job that is stored: one that shared the statement of another caller
            # never gets it, and a thread may go on after the grace of its caller.
            operation.lost()
            raise
        finally:
            # Not in the thread, which may go on after a caller that no longer waits. Also after a step that failed: its
            # write may have been applied.
            if LISTENING and not operation.only_reads:
                self._announcer.deliver(operation.caused)
        if operation.on_progress is not None:
            result: Any = operation.result
            answer = operation.on_progress(result)
            if inspect.isawaitable(answer):
                await answer


async def announce(monque: Monque, event: Event) -> None:
    """Bring an event to the listeners of the client that none of its own calls caused."""
    await monque._event_delivery.deliver(event)  # noqa: SLF001  # Of the class above.


def context_of(monque: Monque) -> ClientContext:
    """Return what the operations of a client share."""
    return monque._context  # noqa: SLF001  # Of the class above.


async def carry_out(monque: Monque, operation: Operation[R]) -> R:
    """Carry out an operation of a client."""
    return await monque._run(operation)  # noqa: SLF001  # Of the class above.


async def follow_ends(monque: Monque, ends: ChildEnds, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`, and report ends to a job nursery of this client meanwhile."""
    await ends.follow(monque._context.jobs, monque._db_threads, monque._end_watcher, work)  # noqa: SLF001  # Of the class above.


def regions_of(monque: Monque) -> Callable[[Set[str] | None], RegionWatch]:
    """Return what opens a stream of what becomes stale in the collection of a client. To be called in a thread.

    It gets None for all changes; or, for a narrow stream, regions among which are the jobs that are looked at.
    """
    jobs = monque._context.jobs  # noqa: SLF001  # Of the class above.
    return lambda looked_at: open_regions(jobs, None if looked_at is None else jobs_of(looked_at))


def collection_of(monque: Monque) -> str:
    """Return the database and the collection of a client, such as "shop.monque_jobs"."""
    return str(monque._context.jobs.collection.full_name)  # noqa: SLF001  # Of the class above.


def forget_statistics_of(monque: Monque) -> None:
    """Let the next questions of a client count again, whatever it has kept."""
    monque._context.forget_statistics()  # noqa: SLF001  # Of the class above.


async def server_time_of(monque: Monque) -> datetime:
    """Return the server's time, as a client measures it."""
    return await anyio.to_thread.run_sync(monque._context.now)  # noqa: SLF001  # Of the class above.


async def holders_of(monque: Monque) -> Sequence[Holder]:
    """Return who holds the running jobs, with claims that are not renewed: also programs that are not instances."""
    context = monque._context  # noqa: SLF001  # Of the class above.
    return await anyio.to_thread.run_sync(lambda: look_at_claims(context.jobs, context.now()))
