"""JobRuns: has the handler of a claimed job called, and decides what the end of its run means (the outcome)."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from functools import partial
from typing import Any, Final, Protocol, cast

from ..engine.demand import ClaimTraits
from ..engine.run import Run
from ..engine.run_end import CancelReason, RunEnd
from ..error_types import UnreadablePayloadError
from ..exponential_backoff import Backoff, asked_backoff
from ..foreign_errors import is_a, leaves_of, safe_error
from ..host.run_ends import MissedLeases, failure_of
from ..jobs.error_history import ErrorText
from ..jobs.job import Job
from ..jobs.job_parts import NurseryScope
from ..jobs.nursery_errors import is_of_own_child
from ..jobs.outcomes import CutShort, Discarded, Failed, Outcome, Snooze, Snoozed, Succeeded
from ..jobs.rescue_policy import is_suspect
from ..jobs.retries_and_next_occurrences import ErrorTypes, RetryPolicy, judged
from ..jobs.stored_value_limits import snapshot
from ..options_and_defaults import SchedulerConfig
from ..payloads.problems import ValueProblem
from ..safe_text import message_of
from ..threads_and_frozen_time import FreezingLimiter
from .context import SchedulerContext
from .job_run import call_handler
from .running_job import RunCancelled
from .settlement import JobSettlement
from .worker import MakeRunningJob, Worker
from .worker_settings import WorkerSettings
from .workers import Workers

# A run may hold its job for this share of `lock_timeout`. The rest allows for clocks that differ: a Node process takes
# a job away after `lock_timeout` by its own clock.
SHARE_OF_LOCK_TIMEOUT: Final = 0.9

ALWAYS_THERE: Final = "only jobs with a worker are claimed, and workers are never removed"

MOST_CAUSES: Final = 10
"""How deep a missing module is searched in the causes of an unreadable payload."""

PUT_BACK_FOR: Final = 30.0
"""Seconds until a job runs again after it was put back because too many runs wait for their children."""

_SUCCEEDED: Final = Succeeded()


class ClosesScopes(Protocol):
    """The part of `RunNurseries` that the end of a run needs."""

    def closing_scope(self, run: Run[Job], handler: Awaitable[object]) -> Awaitable[object]:
        """Run the handler, and return its value once no child in the scope of its job is live."""
        ...

    def takes_back(self, claim: Job) -> bool:
        """Whether a run was put back because too many wait for their children."""
        ...


class JobRuns:
    """The `RunSource` of jobs. Used on the thread of the trio run, but for `success`."""

    def __init__(self, shared: SchedulerContext, running_job: MakeRunningJob, nurseries: ClosesScopes) -> None:
        self._nurseries = nurseries
        self._jobs = shared.client.jobs
        self._clock = shared.client.clock
        self._db_threads = shared.db_threads
        self._workers = shared.workers
        self._config = config = shared.config
        self._running_job = running_job
        self._threads = FreezingLimiter(math.inf)  # The slots limit the number of threads.
        self._policies = _Policies(config, shared.workers)
        # Only with Node on the same collection: it takes a job away by the age of its lock, however alive its holder
        # is.
        lock_timeout = config.lock_timeout
        self._longest_hold = math.inf if lock_timeout is None else SHARE_OF_LOCK_TIMEOUT * lock_timeout
        self._longest_run = self._longest_hold - config.cleanup_timeout
        self._missed_leases = MissedLeases()

    def traits_of(self, claim: Job) -> ClaimTraits:
        worker = self._workers.by_name.get(claim.name)
        assert worker is not None, ALWAYS_THERE
        return ClaimTraits(
            claim.id.binary,
            claim.name,
            claim.rescues > 0 and is_suspect(claim),
            self._time_limit(claim, worker),
            self._longest_hold,
            math.inf if claim.limits.start_by is None else self._clock.on_run_clock(claim.limits.start_by),
        )

    def _time_limit(self, claim: Job, worker: Worker[Any]) -> float:
        own = worker.settings.timeout if claim.limits.timeout is None else claim.limits.timeout
        return self._longest_run if own is None else min(own, self._longest_run)

    def _time_limit_in_words(self, claim: Job, worker: Worker[Any]) -> str:
        limit, own = self._time_limit(claim, worker), claim.limits.timeout
        whose = "the job's timeout" if limit == own else "the timeout of its worker"
        if limit == self._longest_run:
            whose = "lock_timeout allows no more"
        return f"{limit:g} s ({whose})"

    def execute(self, run: Run[Job]) -> Awaitable[object]:
        worker = self._workers.by_name.get(run.claim.name)
        assert worker is not None, ALWAYS_THERE
        called = call_handler(worker, self._running_job(run, worker), run, self._threads, self._db_threads)
        return called if run.claim.nursery is None else self._nurseries.closing_scope(run, called)

    def conclude(self, claim: Job, end: RunEnd) -> JobSettlement:
        worker = self._workers.by_name.get(claim.name)
        assert worker is not None, ALWAYS_THERE
        settings = worker.settings
        policy = self._policies[worker]
        # No attempt is counted: the handler was not called, and another instance may be able to call it.
        if not end.has_begun and (lack := _lack_of_module(end.error)) is not None:
            # Its payload needs what is not installed here. Another instance may have it.
            self._jobs.leave_to_others(claim, lack)
            return JobSettlement(claim, CutShort(has_begun=False), policy, end.duration)
        if end.reason is CancelReason.LOST or self._missed_leases.in_a_row:
            most = self._config.max_rescues if claim.limits.max_rescues is None else claim.limits.max_rescues
            end = self._missed_leases.counted(claim.id, end, most)
        # However it ended: it is asked once, and then forgotten.
        was_put_back = claim.nursery is not None and self._nurseries.takes_back(claim)
        # Everything that may run code of the user is in here: a subclass of an exception, a result that encodes itself.
        try:
            outcome: Outcome
            if end.error is not None or end.cancelled:  # As `has_succeeded`, without its call for every run.
                outcome = _outcome_of_failed(end, self._time_limit_in_words(claim, worker), policy)
                if claim.nursery is not None:
                    outcome = _not_again(outcome, claim.nursery)
                    if was_put_back and type(outcome) is CutShort:
                        outcome = Snoozed(Snooze(after=PUT_BACK_FOR))
            elif settings.store_result or claim.child is not None:
                # Encode the result before it joins a batch. A result that cannot be stored fails its own job only, and
                # the handler's object may change until the batch is sent without changing what is stored.
                outcome = self._encoded(worker, end.value)
            else:
                outcome = _SUCCEEDED
        except BaseException as error:  # noqa: BLE001  # A fault in code or values of the user fails its own job only.
            outcome = Failed(safe_error(error))
        return JobSettlement(claim, outcome, policy, end.duration)

    def _encoded(self, worker: Worker[Any], value: Any) -> Succeeded:
        result = worker.stored_result(value)
        if result is None:
            return Succeeded()
        return Succeeded(snapshot(result, self._config.max_payload_size, self._jobs.codec.callers, "result"))

    def success(self, run: Run[Job], value: Any) -> JobSettlement:
        """Return the settlement of a run that has succeeded with this value. In any thread.

        Raises:
            InvalidPayloadError, PayloadTooLargeError: The worker stores results, and this one cannot be stored.
        """
        worker = self._workers.by_name.get(run.claim.name)
        assert worker is not None, ALWAYS_THERE
        is_stored = worker.settings.store_result or run.claim.child is not None
        outcome = self._encoded(worker, value) if is_stored else Succeeded()
        return JobSettlement(run.claim, outcome, self._policies[worker], run.duration)


def _without_unwinding(error: BaseException) -> BaseException | None:
    """What a cancelled run raised, without the RunCancelled by which `check_cancelled` ended its thread."""
    leaves = leaves_of(error)
    others = [leaf for leaf in leaves if not is_a(leaf, RunCancelled)]
    if len(others) == len(leaves):
        return error
    return BaseExceptionGroup("beside the cancellation", others) if others else None


def _lack_of_module(error: BaseException | None) -> str | None:
    """Why a payload could not be read by this process, if a module was missing; None for another reason."""
    if not is_a(error, UnreadablePayloadError):
        return None
    cause: BaseException | None = error
    for _ in range(MOST_CAUSES):
        cause = None if cause is None else cause.__cause__
        if is_a(cause, ImportError):
            return f"this process cannot import what its payload needs: {message_of(cast('ImportError', cause), 300)}"
    return None


def _outcome_of_failed(end: RunEnd, time_limit: str, policy: RetryPolicy) -> Outcome:
    """Decide what the end of a run that did not succeed means for its job."""
    full_tracebacks = policy.error_text.full_tracebacks
    error = failure_of(end, time_limit, _without_unwinding, full_tracebacks=full_tracebacks)
    if type(error) is UnreadablePayloadError and not full_tracebacks:
        _forget_frames(error)
    # If a client requested the cancellation, the settlement finds the request, and writes it instead of the release.
    return CutShort(end.has_begun) if error is None else judged(error, policy)


def _not_again(outcome: Outcome, scope: NurseryScope) -> Outcome:
    """Make a failure by a child of its own block final: the next attempt would find the same failure."""
    if isinstance(outcome, Failed) and is_of_own_child(outcome.error, scope.id):
        return Discarded(outcome.error)
    return outcome


def _forget_frames(error: UnreadablePayloadError) -> None:
    """Remove the frames of this library: the message has the path of the value. A cause keeps those of the user."""
    error.__traceback__ = None
    cause = error.__cause__
    if isinstance(cause, ValueProblem):
        cause.__traceback__ = None
        behind = cause.__cause__ if cause.__suppress_context__ else cause.__context__
        if behind is None and not hasattr(cause, "__notes__"):
            error.__cause__ = None  # Its text is the end of the message: a traceback would print it twice.


class _Policies(dict[Worker[Any], RetryPolicy]):
    """The retry policy of each worker: its own options, and the scheduler's options for what it leaves out.

    A dict that makes what is missing, as the end of every run needs it. In any thread.
    """

    def __init__(self, config: SchedulerConfig, workers: Workers) -> None:
        super().__init__()
        self._workers = workers
        self._max_attempts = config.max_attempts
        self._backoff = Backoff(
            base=config.base_retry_interval, cap=config.max_backoff_delay, jitter=config.retry_jitter
        )
        self._error_text = ErrorText(config.store_tracebacks, config.redact_errors, config.full_tracebacks)

    def __missing__(self, worker: Worker[Any]) -> RetryPolicy:
        # Keyed by the worker and not by its name: `register(replace=True)` may give the name another worker while runs
        # of the first one go on. Replaced workers are forgotten here: a program may replace one again and again.
        for one in list(self):
            if self._workers.by_name.get(one.name) is not one:
                self.pop(one, None)
        policy = self[worker] = self._new_policy(worker.settings)
        return policy

    def _new_policy(self, worker: WorkerSettings) -> RetryPolicy:
        backoff = worker.backoff
        return RetryPolicy(
            max_attempts=self._max_attempts if worker.max_attempts is None else worker.max_attempts,
            backoff=self._backoff,
            own_backoff=partial(asked_backoff, backoff, self._backoff) if callable(backoff) else backoff,
            retry_on=cast("ErrorTypes | None", worker.retry_on),
            discard_on=cast("ErrorTypes", worker.discard_on),
            error_text=self._error_text,
        )
