"""JobRuns: calls the handler of a claimed job, and decides what the end of its run means."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import Any, Final

from ..engine.demand import ClaimTraits
from ..engine.run import Run
from ..engine.run_end import RunEnd
from ..foreign_errors import safe_error
from ..host.missed_leases import MissedLeases
from ..jobs.job import Job
from ..jobs.rescue_policy import is_suspect
from ..jobs.stored_value_limits import snapshot
from ..jobs.verdicts import CutShort, Failed, Succeeded
from ..threads import HoldingLimiter
from .context import SchedulerContext
from .job_run import Policies, call_handler, lack_of_module, verdict_of
from .settlement import JobSettlement
from .worker import MakeRunningJob, Worker

# A run may hold its job for this share of `lock_timeout`. The rest allows for clocks that differ: a Node process takes
# a job away after `lock_timeout` by its own clock.
SHARE_OF_LOCK_TIMEOUT: Final = 0.9

ALWAYS_THERE: Final = "only jobs with a worker are claimed, and workers are never removed"


class JobRuns:
    """The `RunSource` of jobs. Used on the thread of the trio run, but for `success`."""

    def __init__(self, shared: SchedulerContext, running_job: MakeRunningJob) -> None:
        self._jobs = shared.client.jobs
        self._clock = shared.client.clock
        self._db_threads = shared.db_threads
        self._workers = shared.workers
        self._config = config = shared.config
        self._running_job = running_job
        self._threads = HoldingLimiter(math.inf)  # The slots limit the number of threads.
        self._policies = Policies(config)
        lock_timeout = config.lock_timeout
        self._longest_hold = math.inf if lock_timeout is None else SHARE_OF_LOCK_TIMEOUT * lock_timeout
        self._longest_run = self._longest_hold - config.cleanup_timeout
        self._missed_leases = MissedLeases()

    def traits_of(self, claim: Job) -> ClaimTraits:
        worker = self._workers.get(claim.name)
        assert worker is not None, ALWAYS_THERE
        return ClaimTraits(
            claim.id,
            claim.name,
            is_suspect(claim),
            self._time_limit(claim, worker),
            self._longest_hold,
            math.inf if claim.start_by is None else self._clock.on_run_clock(claim.start_by),
        )

    def _time_limit(self, claim: Job, worker: Worker[Any]) -> float:
        own = worker.settings.timeout if claim.timeout is None else claim.timeout
        return self._longest_run if own is None else min(own, self._longest_run)

    def execute(self, run: Run[Job]) -> Awaitable[object]:
        worker = self._workers.get(run.claim.name)
        assert worker is not None, ALWAYS_THERE
        return call_handler(worker, self._running_job(run, worker), run, self._threads, self._db_threads)

    def conclude(self, claim: Job, end: RunEnd) -> JobSettlement:
        worker = self._workers.get(claim.name)
        assert worker is not None, ALWAYS_THERE
        settings, policy = worker.settings, self._policies.policy_of(worker)
        if not end.has_begun and (lack := lack_of_module(end.error)) is not None:
            # Its payload needs what is not installed here. Another instance may have it.
            self._jobs.leave_to_others(claim, lack)
            return JobSettlement(claim, CutShort(has_begun=False), policy, end.duration)
        most = self._config.max_rescues if claim.max_rescues is None else claim.max_rescues
        end = self._missed_leases.counted(claim.id, end, most)
        try:
            verdict = verdict_of(end, self._time_limit(claim, worker), policy, store_result=settings.store_result)
            if isinstance(verdict, Succeeded) and settings.store_result:
                # Encode the result before it joins a batch. A result that cannot be stored fails its own job only, and
                # the handler's object may change until the batch is sent without changing what is stored.
                verdict = self._encoded(worker, verdict.result)
        except BaseException as error:  # noqa: BLE001  # A fault in code or values of the user fails its own job only.
            verdict = Failed(safe_error(error))
        return JobSettlement(claim, verdict, policy, end.duration)

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
        worker = self._workers.get(run.claim.name)
        assert worker is not None, ALWAYS_THERE
        verdict = self._encoded(worker, value) if worker.settings.store_result else Succeeded()
        return JobSettlement(run.claim, verdict, self._policies.policy_of(worker), run.duration)
