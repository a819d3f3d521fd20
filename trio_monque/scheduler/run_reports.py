"""RunReports: writes what a handler reports while its run goes on: checkpoints, progress, and its transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from ..clock import virtual_time
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..error_types import ClaimLostError, DocumentRefusedError, InvalidPayloadError, MonqueError
from ..host.transaction_turns import Transactions
from ..jobs import transitions
from ..jobs.job import Job
from ..jobs.stored_value_limits import snapshot
from ..store.driver.types import ClientSession
from ..store.job_collection import JobCollection
from ..store.jobs import job_changes
from .context import SchedulerContext
from .run_nurseries import RunNurseries
from .runs import JobRuns
from .settlement import JobSettlement
from .transactions import JobTransaction

R = TypeVar("R")


def reported(value: Any, name: str, jobs: JobCollection, max_size: int | None) -> Any:
    """Return what `save` or `set_progress` stores for this value; see `snapshot`."""
    return snapshot(value, max_size, jobs.codec.callers, "saved state" if name == "saved" else name)


class RunReports:
    """The `Reporting` of running jobs. Used on the thread of the trio run, but for `snapshot`.

    Args:
        announce_written: Called with the settlement that a transaction has written.
    """

    def __init__(
        self,
        shared: SchedulerContext,
        runs: JobRuns,
        transactions: Transactions[Job, JobSettlement],
        announce_written: Callable[[Sequence[JobSettlement]], None],
        nurseries: RunNurseries,
    ) -> None:
        self._context = shared.client
        self._db_threads = shared.db_threads
        self._max_payload_size = shared.config.max_payload_size
        self._runs = runs
        self._transactions = transactions
        self._announce_written = announce_written
        self.nurseries = nurseries
        # Taken here: a thread that a handler starts itself does not know for which run it works.
        self._virtual_time = virtual_time()

    def snapshot(self, value: Any, name: str) -> Any:
        """Return a value of a handler as it will be stored. In any thread."""
        return reported(value, name, self._context.jobs, self._max_payload_size)

    def now(self) -> datetime:
        """Return the time by which jobs are due; see `RunningJob.now`. In any thread."""
        return self._context.clock.now() if self._virtual_time is None else self._virtual_time.now()

    async def report(self, run: Run[Job], name: str, value: Any) -> None:
        """Write a checkpoint or progress, as `snapshot` returned it, under the claim; see `RunningJob.save`."""
        if run.is_settling_early:
            raise MonqueError(f"job {run.claim} is in its transaction, which ends it: save before that")
        if run.is_settled_early:
            raise MonqueError(f"job {run.claim} has ended with its transaction: nothing more can be saved")
        if run.reason is CancelReason.LOST:
            raise ClaimLostError(
                f"the claim on job {run.claim} was lost or could not be renewed in time: nothing was saved"
            )
        transition = transitions.report(run.claim, self._context.clock.now(), **{name: value})
        try:
            is_held = await self._db_threads.call(partial(job_changes.report_if_held, self._context.jobs, transition))
        except DocumentRefusedError as error:
            what = "checkpoint" if name == "saved" else name
            raise InvalidPayloadError(f"the {what} cannot be stored in job {run.claim}: {error}") from error
        if not is_held:
            run.lose()
            raise ClaimLostError(f"the claim on job {run.claim} was lost: nothing was saved")

    async def transaction(self, run: Run[Job], function: Callable[[ClientSession], R]) -> R:
        """Commit the writes of the function and the end of the job together; see `RunningJob.transaction`."""
        # The transaction completes the job, so no child may be live then, not even one of an earlier run.
        await self.nurseries.close_scope(run)
        transaction = JobTransaction(run, self._context, self._db_threads, self._runs)
        value, settlement = await transaction.commit(self._transactions, function)
        self._announce_written([settlement])
        return value
