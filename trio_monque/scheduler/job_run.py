"""What the handler of a job gets (`RunningJobs`), and its call: on its loop, or in a thread."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from ..bridge.handler_loop import ON_TRIO, HandlerLoop
from ..engine.run import Run
from ..engine.run_end import NotBegun
from ..error_types import ShortageError
from ..foreign_errors import safe_error
from ..grace import using_grace
from ..jobs.job import Job, log_extra
from ..log import logger_of
from ..store.driver.database_threads import DatabaseThreads
from ..threads_and_frozen_time import FreezingLimiter, call_in_thread
from ..unfinished_work import unfinished_work
from .middleware import around_async
from .running_job import JobSurroundings, Reporting, RunCancelled, RunningJob, loop_of
from .scheduler_client import SchedulerClient
from .worker import Worker
from .workers import Workers

logger = logger_of("scheduler")

# Seconds until the next attempt to start a thread. Other threads of the process have to end first.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0


class RunningJobs:
    """Makes a RunningJob for each run of one scheduler.

    Args:
        workers: Its workers. Some have resources of their own.
        resources: For all other workers.
        loop: Where its handlers run, except those with runs_on="runtime".
    """

    _on_loop: JobSurroundings
    _in_runtime: JobSurroundings
    _with_own_resources: Mapping[Worker[Any], JobSurroundings]

    def __init__(self, workers: Workers, resources: Any, loop: HandlerLoop) -> None:
        self._workers = workers
        self._resources = resources
        self._loop = loop

    def serve(self, scheduler: SchedulerClient, reporting: Reporting) -> None:
        """Set what handlers get as `job.scheduler`, and what writes for them; called once, before anything runs."""
        self._on_loop = JobSurroundings(scheduler, self._resources, reporting, self._loop)
        # In a program on trio the two are equal.
        self._in_runtime = replace(self._on_loop, loop=ON_TRIO)
        self._with_own_resources = {
            worker: replace(self._on_loop if worker.settings.runs_on is None else self._in_runtime, resources=own)
            for worker, own in self._workers.own_resources.items()
        }

    def of(self, run: Run[Job], worker: Worker[Any]) -> RunningJob[Any]:
        """Return what the handler of the worker gets for this run."""
        shared = self._on_loop if worker.settings.runs_on is None else self._in_runtime
        return RunningJob(run, self._with_own_resources.get(worker, shared))


def call_handler(
    worker: Worker[Any],
    running_job: RunningJob[Any],
    run: Run[Job],
    threads: FreezingLimiter,
    db_threads: DatabaseThreads,
) -> Awaitable[object]:
    """Call the handler. Return an awaitable of what it returns or raises, which must be awaited at once.

    An async handler is called on its loop, a plain one in a thread. This is not a coroutine itself: each coroutine that
    waits beside a handler takes a quarter of a kilobyte.
    """
    if worker.is_async and worker.settings.payload is None:  # Most are so.
        return loop_of(running_job).call_handler(worker.called, running_job, run)
    if worker.settings.payload is not None:
        if worker.is_slow_to_load(running_job.job.data):
            return _called_with_large_data(worker, running_job, run, threads, db_threads)
        running_job.data = worker.loaded(running_job.job.data)
    return _called(worker, running_job, run, threads)


async def _called_with_large_data(
    worker: Worker[Any],
    running_job: RunningJob[Any],
    run: Run[Job],
    threads: FreezingLimiter,
    db_threads: DatabaseThreads,
) -> object:
    """Read the data in a thread first: to check 16 MB takes seconds, in which the loop would do nothing else."""
    load = partial(worker.loaded, running_job.job.data)
    try:
        running_job.data = await db_threads.call(load, abandon_on_cancel=True)
    except ShortageError:  # No thread can start, which is not a failure of the job.
        running_job.data = load()
    return await _called(worker, running_job, run, threads)


def _called(
    worker: Worker[Any], running_job: RunningJob[Any], run: Run[Job], threads: FreezingLimiter
) -> Awaitable[object]:
    loop = loop_of(running_job)
    if worker.is_async:
        return loop.call_handler(worker.called, running_job, run)
    if worker.around_thread:
        return _thread_in_middleware(worker, running_job, run, threads)
    return _called_in_thread(worker, running_job, run, threads)


async def _thread_in_middleware(
    worker: Worker[Any], running_job: RunningJob[Any], run: Run[Job], threads: FreezingLimiter
) -> object:
    """Run a plain handler in a thread, inside of async middleware, which is on the loop of async handlers."""
    loop = loop_of(running_job)

    def call_thread(running_job: RunningJob[Any]) -> Awaitable[object]:
        return loop.engine.call(_called_in_thread, worker, running_job, run, threads)

    try:
        return await loop.call_handler(around_async(worker.around_thread, call_thread), running_job, run)
    except RunCancelled:
        await trio.lowlevel.checkpoint()  # Raises the cancellation, in the task of the run.
        raise


@trio.lowlevel.enable_ki_protection  # Middleware, which may call this, has none.
async def _called_in_thread(
    worker: Worker[Any], running_job: RunningJob[Any], run: Run[Job], threads: FreezingLimiter
) -> object:
    """Run a plain handler in a thread. A thread cannot be cancelled: after a cancellation the run waits for
    it until the engine's hard end. The thread ends early if the handler calls `check_cancelled`.
    """
    has_begun = False

    def call() -> _EndOfThread:
        nonlocal has_begun
        has_begun = True
        run.thread = threading.get_ident()
        try:
            return _in_thread(worker, running_job, run)
        finally:
            run.thread = None  # The thread may work for another run next.

    delay = FIRST_PAUSE
    while True:
        try:
            with using_grace(run), run.shielded_wait() as wait:
                ended = await call_in_thread(call, limiter=threads, abandon_on_cancel=True)
            if wait.cancelled_caught:
                run.abandoned = True
            else:
                if ended.error is not None:
                    raise ended.error
                if not ended.was_cancelled:
                    return ended.value
            break  # The handler has raised RunCancelled, or the engine no longer waits for its thread.
        except ShortageError as error:
            if has_begun:
                raise  # The handler itself raised it.
            # No thread is not a failure of the job: its run waits for one, without a limit.
            logger.warning(
                "the handler of job %s is waiting for a thread: %s; retrying",
                run.claim,
                error,
                extra=log_extra(run.claim),
            )
        await trio.sleep(delay)  # Not shielded: a run that is cancelled while it waits ends.
        delay = min(2 * delay, LONGEST_PAUSE)
    if run.reason is None:
        raise RuntimeError("the handler raised RunCancelled, although nothing had cancelled its run")
    # Perhaps only a deadline has cancelled the run, and trio has not acted on it yet. The answer to a renewal must not
    # move that deadline now: the checkpoint would return, and the run would count as succeeded.
    run.scope.cancel(reason=str(run.reason))
    await trio.lowlevel.checkpoint()
    # A middleware shields this, or is on another loop, which the cancellation has not reached yet. It must not take the
    # end of a handler that was cut for a success.
    raise RunCancelled


class _EndOfThread(NamedTuple):
    """How a plain handler ended.

    An error is a value here, and is raised in the task of the run. On its way there, threads and context managers touch
    what they pass on: they set its `__traceback__`, for example, which the class of the error may not allow.
    """

    value: object = None
    error: BaseException | None = None
    was_cancelled: bool = False


def _in_thread(worker: Worker[Any], running_job: RunningJob[Any], run: Run[Job]) -> _EndOfThread:
    """Call the handler, unless it must not begin any more: then the error is NotBegun."""
    is_in_middleware = run.has_begun
    if not run.may_begin():
        # The run was cancelled: that ends the middleware around this.
        return _EndOfThread(was_cancelled=True) if is_in_middleware else _EndOfThread(error=NotBegun())
    try:
        result = worker.called(running_job)
    except RunCancelled:
        return _EndOfThread(was_cancelled=True)
    except BaseException as error:  # noqa: BLE001  # Raised again, in the task of the run.
        return _EndOfThread(error=safe_error(error))
    if (problem := unfinished_work(result)) is not None:
        problem = f"the handler {worker.handler!r}, a plain function, {problem}"
        return _EndOfThread(error=TypeError(problem))
    return _EndOfThread(result)
