"""RunningJob: the argument of a handler. The claimed job, and the calls that affect its run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from ..bridge.handler_loop import CleanupScope, HandlerLoop
from ..checks import check_seconds
from ..client.operation import async_calls
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..error_types import MonqueError
from ..host.transaction_thread import check_limit
from ..jobs.job import Job, checkpoint_of, occurrence_of
from ..store.driver.types import ClientSession, ObjectId
from ..threads_and_frozen_time import call_run
from .handler_nurseries import HandlerNurseries, NurseryReporting
from .scheduler_client import SchedulerClient

if TYPE_CHECKING:
    # Every type checker includes typing_extensions; it is not needed at run time.
    from typing_extensions import TypeVar as TypeVarWithDefault

    Resources = TypeVarWithDefault("Resources", default=Any)
else:
    Resources = TypeVar("Resources")

T = TypeVar("T")
R = TypeVar("R")


class RunCancelled(BaseException):  # Not an error: it unwinds a thread, as trio.Cancelled unwinds a task.
    """Raised by `check_cancelled` to end a plain handler.

    It is not an `Exception`, so that `except Exception` in a handler does not swallow it.
    """


class Reporting(Protocol):
    """Writes checkpoints, progress and transactions of runs."""

    def snapshot(self, value: Any, name: str) -> Any:
        """Return the value as it will be stored. The handler's object may change from then on."""
        ...

    async def report(self, run: Run[Job], name: str, value: Any) -> None:
        """Write a value that `snapshot` returned, under the claim of the run."""
        ...

    async def transaction(self, run: Run[Job], function: Callable[[ClientSession], R]) -> R:
        """Commit the writes of the function and the end of the job together."""
        ...

    def now(self) -> datetime:
        """Return the time by which jobs are due. In any thread."""
        ...

    @property
    def nurseries(self) -> NurseryReporting:
        """Writes for the job nurseries of runs."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class JobSurroundings:
    """What runs of one scheduler share, if their handlers run on the same loop.

    Attributes:
        scheduler, resources: See RunningJob.
        reporting: Writes checkpoints, progress and transactions.
        loop: Where their handlers run.
    """

    scheduler: SchedulerClient
    resources: Any
    reporting: Reporting
    loop: HandlerLoop


def with_any(arguments: Any, number: int) -> tuple[Any, ...]:
    """The arguments of a generic class, with Any for the missing ones. Before Python 3.13, all must be given."""
    given = arguments if isinstance(arguments, tuple) else (arguments,)
    return (*given, *(Any,) * (number - len(given)))


@async_calls("In a plain handler, call job.from_thread(job.{name}, ...)")
class RunningJob(Generic[T, Resources]):
    """A claimed job in its run: `RunningJob[Email]`, or `RunningJob[Email, Pool]` where `resources` is a Pool.

    Attributes:
        job: The job, exactly as it was claimed.
        data: The payload: as it was stored, or what the worker's `payload` made of it.
        scheduler: The scheduler that runs it, typed as a SchedulerClient; enqueue further jobs through it.
        resources: The `resources=` of `open_scheduler`, or those of `Workers.with_resources`.
    """

    __slots__ = (
        "__weakref__",
        "_nurseries",
        "_run",
        "_saved",
        "_surroundings",
        "data",
        "job",
        "resources",
        "scheduler",
    )

    data: T
    resources: Resources

    if not TYPE_CHECKING:

        def __class_getitem__(cls, arguments):
            return super().__class_getitem__(with_any(arguments, 2))

    def __init__(self, run: Run[Job], surroundings: JobSurroundings) -> None:
        self._run = run
        self._surroundings = surroundings
        self._nurseries: HandlerNurseries | None = None  # Made by the first block: most handlers open none.
        self.job = job = run.claim
        self._saved = None if job.saved is None else checkpoint_of(job)
        self.data = job.data
        self.scheduler = surroundings.scheduler
        self.resources = surroundings.resources

    # --- The job ---

    @property
    def id(self) -> ObjectId:
        return self.job.id

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def attempt(self) -> int:
        """The number of this claim on the job, from 1. It always grows, even after crashes."""
        return self.job.attempts

    @property
    def fail_count(self) -> int:
        """Failures in a row before this run."""
        return self.job.fail_count

    @property
    def fail_reason(self) -> str | None:
        """Why the last failed attempt failed."""
        return self.job.fail_reason

    @property
    def next_run_at(self) -> datetime:
        """When this run was due (UTC)."""
        return self.job.next_run_at

    @property
    def occurrence(self) -> datetime | None:
        """The occurrence of a recurring job that this run is for: when it was first due (UTC). None for other jobs.

        It is the same in all attempts, unless the job was rescheduled between them.
        """
        return occurrence_of(self.job)

    @property
    def created_at(self) -> datetime:
        return self.job.created_at

    @property
    def unique_key(self) -> str | None:
        return self.job.unique_key

    @property
    def meta(self) -> Mapping[str, str]:
        """The strings that accompany the job: the `meta` that it was enqueued with. Empty if there are none."""
        return self.job.meta

    @property
    def errors(self) -> Sequence[Mapping[str, Any]]:
        """The last errors, oldest first, each with `at`, `attempt`, `error` and, if stored, `traceback`."""
        return self.job.errors

    # --- The run ---

    def now(self) -> datetime:
        """Return the time by which jobs are due (UTC): that of the database's clock; virtual in a test.

        Compare it with `next_run_at`, `created_at` and other moments of jobs: the clock of this machine may differ, and
        the wall clock does not follow the time of a test. It is never before the claim, and so not before the due date.
        From any thread of the handler.
        """
        # A new measurement of the clock may set it back by some milliseconds. A handler that waits for a moment with a
        # Snooze would then find that it has come too early, and wait again.
        now, claim = self._surroundings.reporting.now(), self.job.claim
        return now if claim is None or claim.since is None else max(now, claim.since)

    @property
    def deadline(self) -> float:
        """When the run is cancelled for its timeout, on the clock of its event loop; infinity without one.

        Compare it with `anyio.current_time()`, `trio.current_time()`, or the `time()` of an asyncio loop.
        """
        return self._surroundings.loop.moment(self._run.deadline)

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the run is cancelled; None while it is not."""
        return self._surroundings.loop.cancel_reason(self._run)

    @property
    def saved(self) -> Any:
        """The last checkpoint that this or an earlier attempt saved; None if there is none.

        For a recurring job, only a checkpoint of the same occurrence counts. It is None, too, if that is unknown: when
        Monque for Node has run the job in between, or the job was rescheduled or retried by hand.
        """
        return self._saved

    async def save(self, state: Any) -> None:
        """Save a checkpoint, which the next attempt gets as `job.saved`. The write is acknowledged by a majority.

        A call that is cancelled before it is sent saves nothing; a call that was sent is awaited.

        Args:
            state: Any BSON value; it replaces the last checkpoint.

        Raises:
            ClaimLostError: The claim was lost. Nothing was saved, and the run is cancelled.
            InvalidPayloadError: The checkpoint cannot be stored.
            MonqueConnectionError: The database did not accept it.
        """
        stored, written = self._reported("saved", state)
        await written
        self._saved = stored

    async def set_progress(self, value: Any) -> None:
        """Store the progress of the run, for programs that look at the job. Errors as in `save`.

        The next attempt does not get it: use `save` for that.
        """
        _, written = self._reported("progress", value)
        await written

    def _reported(self, name: str, value: Any) -> tuple[Any, Awaitable[None]]:
        """Return the value as it will be stored, and its write.

        The value is copied at once: the write may happen in another thread, while the handler changes the value.
        """
        around, run = self._surroundings, self._run
        stored = around.reporting.snapshot(value, name)
        return stored, around.loop.engine.call_for(run, around.reporting.report, run, name, stored)

    async def transaction(self, function: Callable[[ClientSession], R]) -> R:
        """Commit the writes of `function` and the success of this job together, or neither.

        `function(session)` is called in a thread. It passes the session to each call of pymongo (`session=session`),
        and its return value is the result of the job, if the worker stores results. After a conflict it is called
        again: so it should have no effects but those writes, and be short. All its calls together have what is left of
        the lease, and 60 seconds at most. Before that it waits for its turn: a scheduler carries out four transactions
        at a time.

        Afterwards the job has ended: the handler may go on, but neither its result nor its error is stored any more.

        A run that is cancelled while `function` works is not completed: nothing is committed, and the cancellation is
        raised when `function` has returned. The same holds for a function that takes too long. Once the commit is sent,
        its answer is awaited, for `cleanup_timeout` at most. A cancellation by a scope of your own does not stop a
        transaction that has begun.

        Returns:
            What `function` returned.

        Raises:
            BaseException: What `function` raised. Nothing was committed, and the job goes on.
            ClaimLostError: The claim was lost. Nothing was committed, and the run is cancelled.
            InvalidPayloadError, PayloadTooLargeError: The result cannot be stored. Nothing was committed.
            TransactionTimeoutError: `function` took too long. Nothing was committed, and the job goes on.
            MonqueConnectionError: No attempt was committed in time; or, with `unknown_outcome`, nothing shows whether
                it was. Let it end the handler: the job runs again only if it was not committed.
            MonqueError: The job has had its transaction, the run is cancelled, or the server is standalone (a
                transaction needs a replica set; one member is enough).
        """
        around, run = self._surroundings, self._run
        if self._nurseries is not None and self._nurseries.is_open:
            raise MonqueError(
                f"job {self.job} has a job nursery open, and a transaction ends the job: leave the block first"
            )
        return await around.loop.engine.call_for(run, around.reporting.transaction, run, function)

    async def step(self, key: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function once for all runs of this job: its result is stored, and later runs get the stored one.

        Use it for decisions between job nurseries that depend on anything but the data of the job: the time, a random
        number, the result of a query. If the process dies before the result is stored, the next run calls the function
        again. The document of the job holds the results of all steps, so they should be small: for more, start a child.

        A step is kept as long as a checkpoint: until the job, or the occurrence of a recurring job, has completed. If
        the function raises, nothing is stored, and the next attempt calls it again. One step runs at a time.

        Args:
            key: The name of the step in this job.
            function: An async or a plain function. A plain one is called on the event loop.
            args: Its arguments.

        Returns:
            What the function returned, as it is stored: a list for a tuple, for example.

        Raises:
            ClaimLostError: The claim was lost. Nothing was stored, and the run is cancelled.
            InvalidPayloadError: The result cannot be stored.
            MonqueConnectionError: The database did not accept it.
        """
        return await self._nursery_owner().step(key, function, args)

    def _nursery_owner(self) -> HandlerNurseries:
        if self._nurseries is None:
            around = self._surroundings
            self._nurseries = HandlerNurseries(self._run, around.loop, around.reporting.nurseries, self.scheduler)
        return self._nurseries

    def cleanup(self, seconds: float) -> AbstractContextManager[CleanupScope]:
        """`with job.cleanup(5): ...` shields its body from the cancellation of the run, for at most 5 seconds.

        The shield ends at the latest `cleanup_timeout` seconds after the run was cancelled.
        """
        check_seconds("seconds", seconds, zero=True)
        return self._surroundings.loop.cleaning_up(self._run, seconds)

    # --- For plain handlers, from their thread ---

    def check_cancelled(self) -> None:
        """End a plain handler here if its run is cancelled. Call it regularly in a long handler.

        Raises:
            TransactionTimeoutError: In the function of a transaction, if that takes longer than it may.
        """
        check_limit()
        if self._run.reason is not None:
            raise RunCancelled

    @overload
    def from_thread(self, function: Callable[..., Awaitable[R]], /, *args: Any) -> R: ...

    @overload
    def from_thread(self, function: Callable[..., R], /, *args: Any) -> R: ...

    def from_thread(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call a function on the event loop from a plain handler. An async function, such as `job.save`, is awaited.

        The call is cancelled with the run, which ends the handler here as `check_cancelled` does. Shield a clean-up
        inside the call with `job.cleanup`. While the thread waits, virtual time may advance. In the function of a
        transaction that takes too long, it raises TransactionTimeoutError.
        """
        check_limit()
        return call_run(self._in_the_run, function, args)

    async def _in_the_run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        with self._run.extended():
            result = self._surroundings.loop.call_back(function, args)
            return await result if inspect.isawaitable(result) else result
        raise RunCancelled  # The cancellation of the run has ended the call, and `scope` has caught it.

    def __repr__(self) -> str:
        return f"<RunningJob {self.job}>"


def loop_of(running_job: RunningJob[Any, Any]) -> HandlerLoop:
    """Where its handler runs. Not a part of RunningJob, which handlers see."""
    return running_job._surroundings.loop  # noqa: SLF001  # Of this file.
