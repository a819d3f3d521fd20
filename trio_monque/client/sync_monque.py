"""SyncMonque: the blocking client. It carries operations out in the calling thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from ..checks import is_async
from ..clock import virtual_time
from ..error_types import InvalidOptionError, MonqueConnectionError, MonqueError
from ..jobs.enqueued import Enqueued
from ..jobs.job import Job
from ..jobs.new_job import JobOptions
from ..jobs.stored_value_limits import AsyncWorker, PlainWorker, TypedWorker
from ..store.driver.types import ClientSession, ObjectId
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
from .client_context import ClientContext
from .event_delivery import EventDelivery
from .job_wait import JobWait, Until, job_wait
from .job_wait_calls import wait_blocking
from .job_wait_polling import EndWatcher
from .local_wakeups import LISTENING, Announcer
from .operation import Operation, blocking_calls, present_as
from .schedules import ScheduleOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def blocking(
    operation: Callable[Concatenate[ClientContext, P], Operation[R]],
) -> Callable[Concatenate[SyncMonque, P], R]:
    """Make a blocking method from an operation, with its signature and documentation."""

    def method(self: SyncMonque, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(operation(self._context, *args, **kwargs))

    present_as(method, operation)
    method.__qualname__ = f"SyncMonque.{method.__name__}"
    return method


@blocking_calls
class SyncMonque:
    """The calls of Monque, blocking: for threads, scripts, Django and plain handlers. See `Monque.sync`.

    Raises:
        CallContextError: It is called in a task of an event loop, which would block; `sync_in_loop` allows it.
    """

    def __init__(
        self,
        context: ClientContext,
        event_delivery: EventDelivery,
        end_watcher: EndWatcher | None = None,
        *,
        blocks_loops: bool = False,
    ) -> None:
        self.blocks_loops = blocks_loops
        self._context = context
        self._event_delivery = event_delivery
        self._end_watcher = end_watcher or EndWatcher(context.jobs)
        self._announcer = Announcer(context.jobs.collection.full_name)

    # --- Enqueue and schedule. Written out, because the data's type depends on the worker ---

    @overload
    def enqueue(
        self, worker: AsyncWorker[T, R], data: T, *, session: ClientSession | None = ..., **options: Unpack[JobOptions]
    ) -> Job[R]: ...
    @overload
    def enqueue(
        self,
        worker: AsyncWorker[None, R],
        data: None = ...,
        *,
        session: ClientSession | None = ...,
        **options: Unpack[JobOptions],
    ) -> Job[R]: ...
    @overload
    def enqueue(
        self, worker: PlainWorker[T, R], data: T, *, session: ClientSession | None = ..., **options: Unpack[JobOptions]
    ) -> Job[R]: ...
    @overload
    def enqueue(
        self,
        worker: PlainWorker[None, R],
        data: None = ...,
        *,
        session: ClientSession | None = ...,
        **options: Unpack[JobOptions],
    ) -> Job[R]: ...
    @overload
    def enqueue(
        self, worker: str, data: Any = ..., *, session: ClientSession | None = ..., **options: Unpack[JobOptions]
    ) -> Job: ...
    def enqueue(
        self,
        worker: str | TypedWorker[Any],
        data: Any = None,
        *,
        session: ClientSession | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """See `Monque.enqueue`. This one can be called from a callback of `with_transaction`."""
        return self._run(enqueue.enqueue(self._context, worker, data, session=session, **options))

    @overload
    def enqueue_with_outcome(
        self, worker: AsyncWorker[T, R], data: T, **options: Unpack[JobOptions]
    ) -> Enqueued[R]: ...
    @overload
    def enqueue_with_outcome(
        self, worker: AsyncWorker[None, R], data: None = ..., **options: Unpack[JobOptions]
    ) -> Enqueued[R]: ...
    @overload
    def enqueue_with_outcome(
        self, worker: PlainWorker[T, R], data: T, **options: Unpack[JobOptions]
    ) -> Enqueued[R]: ...
    @overload
    def enqueue_with_outcome(
        self, worker: PlainWorker[None, R], data: None = ..., **options: Unpack[JobOptions]
    ) -> Enqueued[R]: ...
    @overload
    def enqueue_with_outcome(self, worker: str, data: Any = ..., **options: Unpack[JobOptions]) -> Enqueued[Any]: ...
    def enqueue_with_outcome(
        self, worker: str | TypedWorker[Any], data: Any = None, **options: Unpack[JobOptions]
    ) -> Enqueued[Any]:
        """See `Monque.enqueue_with_outcome`."""
        return self._run(enqueue.enqueue_with_outcome(self._context, worker, data, **options))

    @overload
    def schedule(
        self, cron: str, worker: TypedWorker[T], data: T, *, on_conflict: str = ..., **options: Unpack[ScheduleOptions]
    ) -> Job: ...
    @overload
    def schedule(
        self,
        cron: str,
        worker: TypedWorker[None],
        data: None = ...,
        *,
        on_conflict: str = ...,
        **options: Unpack[ScheduleOptions],
    ) -> Job: ...
    @overload
    def schedule(
        self, cron: str, worker: str, data: Any = ..., *, on_conflict: str = ..., **options: Unpack[ScheduleOptions]
    ) -> Job: ...
    def schedule(
        self,
        cron: str,
        worker: str | TypedWorker[Any],
        data: Any = None,
        *,
        on_conflict: str = "keep",
        **options: Unpack[ScheduleOptions],
    ) -> Job:
        """See `Monque.schedule`."""
        operation = schedules.schedule(self._context, cron, worker, data, on_conflict=on_conflict, **options)
        return self._run(operation)

    @overload
    def document(self, worker: TypedWorker[T], data: T, **options: Unpack[JobOptions]) -> dict[str, Any]: ...
    @overload
    def document(
        self, worker: TypedWorker[None], data: None = ..., **options: Unpack[JobOptions]
    ) -> dict[str, Any]: ...
    @overload
    def document(self, worker: str, data: Any = ..., **options: Unpack[JobOptions]) -> dict[str, Any]: ...
    def document(
        self, worker: str | TypedWorker[Any], data: Any = None, **options: Unpack[JobOptions]
    ) -> dict[str, Any]:
        """See `Monque.document`."""
        return self._run(enqueue.document(self._context, worker, data, **options))

    enqueue_many = blocking(enqueue_many.enqueue_many)
    preview = blocking(schedules.preview)

    # --- The other operations ---

    @overload
    def wait_job(self, job: Job[R], *, timeout: float | None = ...) -> Job[R]: ...
    @overload
    def wait_job(self, job: ObjectId | str, *, timeout: float | None = ...) -> Job: ...
    def wait_job(self, job: Job | ObjectId | str, *, timeout: float | None = None) -> Job:
        """Block until a job has ended, and return it. See `Monque.wait_job`."""
        (ended,) = self._wait(job_wait([job], "all", timeout, check=True), timeout)
        return ended

    @overload
    def wait_jobs(
        self, jobs: Iterable[Job[R]], *, until: Until = ..., timeout: float | None = ..., check: bool = ...
    ) -> Sequence[Job[R]]: ...
    @overload
    def wait_jobs(
        self,
        jobs: Iterable[Job | ObjectId | str],
        *,
        until: Until = ...,
        timeout: float | None = ...,
        check: bool = ...,
    ) -> Sequence[Job]: ...
    def wait_jobs(
        self,
        jobs: Iterable[Job | ObjectId | str],
        *,
        until: Until = "all",
        timeout: float | None = None,
        check: bool = True,
    ) -> Sequence[Job]:
        """Block until several jobs have ended. See `Monque.wait_jobs`."""
        return self._wait(job_wait(jobs, until, timeout, check=check), timeout)

    def _wait(self, wait: JobWait, timeout: float | None) -> Sequence[Job]:
        return wait_blocking(self._context.jobs, self._end_watcher, wait, timeout)

    get_job = blocking(one_job.get_job)
    get_job_by_key = blocking(one_job.get_job_by_key)
    cancel_job = blocking(one_job.cancel_job)
    retry_job = blocking(one_job.retry_job)
    reschedule_job = blocking(one_job.reschedule_job)
    delete_job = blocking(one_job.delete_job)

    cancel_jobs = blocking(bulk.cancel_jobs)
    retry_jobs = blocking(bulk.retry_jobs)
    delete_jobs = blocking(bulk.delete_jobs)
    count_jobs = blocking(job_counting.count_jobs)

    get_jobs = blocking(lists_and_counts.get_jobs)
    get_jobs_with_cursor = blocking(lists_and_counts.get_jobs_with_cursor)
    get_queue_stats = blocking(lists_and_counts.get_queue_stats)
    get_queue_view_summaries = blocking(lists_and_counts.get_queue_view_summaries)
    get_queue_depths = blocking(lists_and_counts.get_queue_depths)
    get_broken_documents = blocking(lists_and_counts.get_broken_documents)
    get_running = blocking(questions.get_running)
    get_schedules = blocking(questions.get_schedules)
    get_error_groups = blocking(questions.get_error_groups)
    get_minutes = blocking(questions.get_minutes)
    why_not_now = blocking(questions.why_not_now)
    findings = blocking(findings_and_overview.findings)
    get_overview = blocking(findings_and_overview.get_overview)

    instances = blocking(fleet.instances)
    paused = blocking(fleet.paused)
    pauses = blocking(fleet.pauses)
    pause = blocking(fleet.pause)
    resume = blocking(fleet.resume)
    recover_stale_jobs = blocking(recovery.recover_stale_jobs)

    # --- How an operation is carried out ---

    def _run(self, operation: Operation[R]) -> R:
        """Carry out an operation in this thread, and deliver what it caused, however it ends."""
        if operation.on_progress is not None and is_async(operation.on_progress):
            problem = "must be a plain function: a blocking call cannot await it"
            raise InvalidOptionError("on_progress", operation.on_progress, problem)
        try:
            while not operation.is_over:
                self._step(operation)
        finally:
            # Announce after an error too: earlier steps of a bulk action stay done.
            for event in operation.events():
                self._event_delivery.deliver_blocking(event)
        return operation.result

    def _step(self, operation: Operation[R]) -> None:
        if operation.pause:
            # Virtual time passes only while all tasks wait, and the task that waits for this thread freezes the clock.
            if virtual_time() is not None:
                raise MonqueError("a thread cannot wait for virtual time to pass: await Monque.recover_stale_jobs")
            time.sleep(operation.pause)
        try:
            operation.step()
        except MonqueConnectionError:
            operation.lost()
            raise
        finally:
            if LISTENING:
                self._announcer.deliver(operation.caused)
        if operation.on_progress is not None:
            operation.on_progress(operation.result)
