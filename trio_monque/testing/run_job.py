"""run_job: runs one handler without a database, in a real run, and decides its outcome as production does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, Unpack, cast, overload

import trio

from ..bridge.handler_loop import ON_TRIO, HandlerLoop
from ..bridge.host_for_asyncio import call_on_trio
from ..checks import LARGEST_NUMBER
from ..client.client_context import ClientContext
from ..client.event_delivery import EventDelivery
from ..clock import virtual_time
from ..engine.guard import Stop
from ..engine.lease import LeaseTerms
from ..engine.run import Run
from ..engine.run_end import CancelReason, RunEnd
from ..engine.runner import Runner
from ..engine.slots import Slots
from ..engine.waker import WakeSignal
from ..error_types import UnreadablePayloadError
from ..foreign_errors import is_a, leaves_of
from ..jobs.conditional_write import applied
from ..jobs.job import Job
from ..jobs.new_job import NewJob, NewSchedule
from ..jobs.nursery_scopes import Asking, opened_by, with_scope
from ..jobs.outcomes import Discard, Discarded, Failed, Outcome, Retry, Snooze
from ..jobs.retries_and_next_occurrences import ErrorTypes
from ..jobs.stored_value_limits import snapshot
from ..loop_time import LoopTime
from ..options_and_defaults import SchedulerConfig, SchedulerOptions, scheduler_config
from ..scheduler.context import SchedulerContext
from ..scheduler.events_and_report import JobReporter
from ..scheduler.paused_names import PausedNames
from ..scheduler.run_reports import reported
from ..scheduler.running_job import JobSurroundings, RunningJob
from ..scheduler.runs import JobRuns
from ..scheduler.scheduler import Scheduler
from ..scheduler.settlement import JobSettlement, decided
from ..scheduler.worker import Worker
from ..scheduler.worker_settings import WorkerSettings
from ..scheduler.workers import Workers
from ..store.driver.database_threads import DatabaseThreads
from ..store.driver.types import CodecOptions, ObjectId
from .no_database import AWARE, NURSERY, NoDatabaseError, claimed, context_without_database, new_job, registered
from .recorder import RecordingScheduler

T = TypeVar("T")
R = TypeVar("R")

NEVER_ENDING = LARGEST_NUMBER
"""Seconds of a heartbeat that is never due: there is nothing to renew, and no other instance to take the job."""


@dataclass(frozen=True, kw_only=True)
class HandlerRun:
    """What a handler did, and what that means for its job.

    Attributes:
        outcome: `Succeeded`, `Failed` (counted, and retried while attempts are left), `Discarded`
            (failed for good) or `Snoozed`. They compare by value: `Succeeded()`, or `Succeeded(result)`
            if the worker stores results.
        value: What the handler returned, stored or not.
        error: The exception that decided the outcome; None if the handler succeeded or snoozed.
        job: The job as it would be stored now: its `status`, its `next_run_at`, its `fail_count`.
        cancel_reason: Why the run was cancelled: "timeout", or None.
        duration: Seconds, on trio's clock: virtual ones under `MockClock`, real ones on asyncio.
        saved: The checkpoint that `job.saved` had at the end.
        progress: Every value that was given to `job.set_progress`, in order.
        enqueued: What the handler enqueued, in order, with the data as it would be stored.
        scheduled: What it declared with `schedule`.
        drained: Whether it called `job.scheduler.drain()`.
    """

    outcome: Outcome
    value: Any
    error: BaseException | None
    job: Job
    cancel_reason: CancelReason | None
    duration: float
    saved: Any
    progress: tuple[Any, ...]
    enqueued: tuple[NewJob, ...]
    scheduled: tuple[NewSchedule, ...]
    drained: bool


class RunJobOptions(SchedulerOptions, total=False):
    """The options of `run_job`; see there."""

    attempt: int | None
    fail_count: int
    fail_reason: str | None
    saved: Any
    unique_key: str | None
    meta: Mapping[str, str] | None
    timeout: float | None
    resources: Any
    scheduler: object
    codec_options: CodecOptions[Any] | None
    reraise: bool


# A Worker is such a callable, too: so data of another type than its own is an error, and so is none.
@overload
async def run_job(handler: Callable[[RunningJob[T]], Any], data: T, **options: Unpack[RunJobOptions]) -> HandlerRun: ...
@overload
async def run_job(
    handler: Callable[[RunningJob[None]], Any], data: None = ..., **options: Unpack[RunJobOptions]
) -> HandlerRun: ...
@overload
async def run_job(
    handler: Callable[[RunningJob[Any]], Any], *, stored: Any, **options: Unpack[RunJobOptions]
) -> HandlerRun: ...
async def run_job(
    handler: Worker[Any] | Callable[[RunningJob[Any]], Any],
    data: Any = None,
    *,
    stored: Any = None,
    attempt: int | None = None,
    fail_count: int = 0,
    fail_reason: str | None = None,
    saved: Any = None,
    unique_key: str | None = None,
    meta: Mapping[str, str] | None = None,
    timeout: float | None = None,
    resources: Any = None,
    scheduler: object = None,
    codec_options: CodecOptions[Any] | None = None,
    reraise: bool = True,
    **options: Unpack[SchedulerOptions],
) -> HandlerRun:
    """Run a handler once, as a scheduler would, without a database; on trio, asyncio or uvloop.

    The run is a real one: a cancel scope with a deadline, a thread for a plain handler, the data as it
    comes back from BSON and through the worker's `payload`. `job.save` and `job.set_progress` check
    their arguments and keep them in memory. `job.scheduler` is a RecordingScheduler.

    `Retry`, `Snooze` and `Discard`, the errors that the worker names in `retry_on` and `discard_on`,
    data that its `payload` cannot read, and a timeout become the outcome. `run_job` raises
    any other error unchanged, so that the test fails with it.

    If cancelled, it cancels the run with the reason "shutdown", as a scheduler does, and ends when the handler
    has ended.

    Args:
        handler: A worker, or a function that could be registered as one.
        data: The data as you would give it to `enqueue`.
        stored: The stored data, instead of `data`: the document of another release, for example.
        attempt: Which claim of the job this is, from 1; by default one more than `fail_count`.
        fail_count: Failures in a row before this run.
        fail_reason: Why the last one failed.
        saved: The checkpoint that an earlier attempt saved.
        unique_key: The job's unique key.
        meta: The job's meta.
        timeout: Seconds that the run may take, instead of the timeout of the worker.
        resources: Given to the handler as `job.resources`.
        scheduler: Given to the handler as `job.scheduler`, instead of a RecordingScheduler.
        codec_options: The codec options of the handler's database. By default those of the driver, except that
            datetimes are timezone-aware.
        reraise: If False, the outcome has the error that would be raised.
        options: As for `open_scheduler`: `max_attempts`, `retry_jitter`, `cleanup_timeout` and so on.

    Raises:
        InvalidJobIdentifierError, InvalidPayloadError, PayloadTooLargeError, InvalidOptionError,
        WorkerRegistrationError: The job or the worker is invalid.
        MonqueError: It was called outside of an event loop.
    """
    config = scheduler_config(options)
    workers, worker = registered(handler)
    context = context_without_database(config, codec_options or AWARE)
    job = claimed(
        new_job(context, worker, data, stored, timeout=timeout, unique_key=unique_key, meta=meta),
        attempt=attempt,
        fail_count=fail_count,
        fail_reason=fail_reason,
        saved=snapshot(saved, config.max_payload_size, context.jobs.codec.callers),
    )
    recorder = RecordingScheduler(context, job)
    given = cast("Scheduler", recorder if scheduler is None else scheduler)
    make = partial(_Alone, context, workers, config, given, resources)
    terms = LeaseTerms(NEVER_ENDING, config.cleanup_timeout)
    source, settlement = await call_on_trio("run_job", "run of the handler", partial(_seen_through, make, job, terms))
    error = _error_of(settlement, source.ended, worker.settings, reraise=reraise)
    return HandlerRun(
        outcome=settlement.outcome,
        value=source.ended.value,
        error=error,
        job=applied(replace(job, **dict(source.reports)), decided(settlement, context.clock.now())),
        cancel_reason=source.ended.reason,
        duration=source.ended.duration,
        saved=job.saved if source.running_job is None else source.running_job.saved,
        progress=tuple(value for name, value in source.reports if name == "progress"),
        enqueued=recorder.enqueued,
        scheduled=recorder.scheduled,
        drained=recorder.drained,
    )


def _error_of(
    settlement: JobSettlement, end: RunEnd, settings: WorkerSettings, *, reraise: bool
) -> BaseException | None:
    """The exception that decided the outcome; raised if neither handler nor worker says what it means."""
    outcome = settlement.outcome
    error = outcome.error if isinstance(outcome, Failed | Discarded) else None
    if error is None or _is_expected(error, end, settings):
        return error
    # What the handler raised, whole: the outcome may name one leaf of a group.
    error = error if end.error is None else end.error
    if reraise or not all(is_a(leaf, Exception) for leaf in leaves_of(error)):
        raise error
    return error


class _Alone(JobRuns):
    """One run without a database: it keeps what it would write."""

    running_job: RunningJob[Any] | None = None

    def __init__(
        self,
        context: ClientContext,
        workers: Workers,
        config: SchedulerConfig,
        scheduler: Scheduler,
        resources: Any,
        loop: HandlerLoop,
    ) -> None:
        def make(run: Run[Job], worker: Worker[Any]) -> RunningJob[Any]:
            its_loop = loop if worker.settings.runs_on is None else ON_TRIO
            surroundings = JobSurroundings(scheduler, resources, self, its_loop)
            self.running_job = made = RunningJob[Any](run, surroundings)
            return made

        db_threads = DatabaseThreads()
        paused = PausedNames(db_threads, time_of_loops=LoopTime(is_event_driven=True))
        shared = SchedulerContext(context, db_threads, workers, config, paused, JobReporter(EventDelivery()))
        self._context = context
        self._virtual_time = virtual_time()
        self.nurseries = _StepsOnly(context, config)
        super().__init__(shared, make, self.nurseries)
        self.reports: list[tuple[str, Any]] = []
        self._end: RunEnd | None = None

    @property
    def ended(self) -> RunEnd:
        assert self._end is not None, "a run that was seen through has ended"
        return self._end

    def conclude(self, claim: Job, end: RunEnd) -> JobSettlement:
        self._end = end
        return super().conclude(claim, end)

    def now(self) -> datetime:
        return self._context.clock.now() if self._virtual_time is None else self._virtual_time.now()

    def snapshot(self, value: Any, name: str) -> Any:
        return reported(value, name, self._jobs, self._config.max_payload_size)

    async def report(self, run: Run[Job], name: str, value: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.reports.append((name, value))

    async def transaction(self, run: Run[Job], function: Callable[[Any], R]) -> R:
        raise NoDatabaseError("job.transaction")


class _StepsOnly:
    """Stores the steps of a run without a database, which cannot open job nurseries."""

    def __init__(self, context: ClientContext, config: SchedulerConfig) -> None:
        self._codec_options = context.jobs.codec.callers
        self._max_payload_size = config.max_payload_size

    async def open_scope(self, run: Run[Job]) -> Asking:
        raise NoDatabaseError(NURSERY)

    async def store_step(self, run: Run[Job], key: str, value: Any) -> None:
        await trio.lowlevel.checkpoint()
        stored = snapshot(value, self._max_payload_size, self._codec_options, f"step {key!r}")
        scope = opened_by(run.claim)
        run.claim = with_scope(run.claim, replace(scope, steps={**(scope.steps or {}), key: stored}))

    async def record_failure(self, run: Run[Job], block: str, children: Sequence[ObjectId]) -> None: ...

    async def reset_deaths(self, run: Run[Job]) -> None: ...

    def park(self, run: Run[Job]) -> None: ...

    def unpark(self, run: Run[Job]) -> None: ...

    def changed(self) -> None: ...

    def takes_back(self, claim: Job) -> bool:
        return False  # There are no other runs.

    async def closing_scope(self, run: Run[Job], handler: Awaitable[object]) -> object:
        return await handler  # There are no children.


class _Silent:
    """The observer of the run: it makes neither events nor log records."""

    def run_started(self, claim: Job) -> None: ...

    def run_settled(self, settlement: JobSettlement) -> None: ...

    def claim_lost(self, claim: Job) -> None: ...

    def failed_after_settlement(self, claim: Job, error: Exception) -> None: ...


class _Accepting:
    """Stands for the settler: every settlement is written at once."""

    def __init__(self) -> None:
        self.settlements: list[JobSettlement] = []

    def settle(self, settlement: JobSettlement, written: Callable[[bool | None], None], run: Run[Job]) -> None:
        self.settlements.append(settlement)
        written(True)  # noqa: FBT003

    def await_answer(self, answered: trio.Event) -> None:
        answered.set()

    def forget_answer(self, answered: trio.Event) -> None: ...


async def _seen_through(
    make: Callable[[HandlerLoop], _Alone], job: Job, terms: LeaseTerms, loop: HandlerLoop
) -> tuple[_Alone, JobSettlement]:
    """In trio: the run, from its begin to its end."""
    source = make(loop)
    accepting = _Accepting()
    stop = Stop()
    runner: Runner[Job, JobSettlement] = Runner(source, _Silent(), Slots(None), accepting, WakeSignal(), stop, terms)
    run = runner.hold(job, trio.current_time())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cut_when_cancelled, run)
        # A cancellation reaches the run through its own scope, with its reason and its bounded clean-ups.
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as running:
                running.start_soon(runner.run_to_end, run)
        nursery.cancel_scope.cancel(reason="the run has ended")
    await trio.lowlevel.checkpoint_if_cancelled()
    for crash in stop.crashes:
        raise crash
    (settlement,) = accepting.settlements
    return source, settlement


async def _cut_when_cancelled(run: Run[Job]) -> None:
    try:
        await trio.sleep_forever()
    finally:
        run.cancel(CancelReason.SHUTDOWN)


def _is_expected(error: BaseException, end: RunEnd, settings: WorkerSettings) -> bool:
    """Whether the handler, or its worker, said what this error means for the job."""
    if end.error is None:
        return end.reason is CancelReason.TIMEOUT
    retry_on, discard_on = cast("ErrorTypes", settings.retry_on or ()), cast("ErrorTypes", settings.discard_on)
    named = (Retry, Snooze, Discard, UnreadablePayloadError, *retry_on, *discard_on)
    return all(is_a(leaf, named) for leaf in leaves_of(end.error))
