"""`job.transaction`: the writes of a handler's function and the end of its job, committed together or not at all.

A request to cancel that is stored at the last moment is a conflict, and the next attempt meets it in its guard. A
schedule that changes meanwhile is read again, as in any settlement, and the transaction is made again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, TypeVar

from ..client.client_context import ClientContext
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..error_types import InvalidPayloadError, MonqueConnectionError, MonqueError
from ..host.transactions import Transactions, cut_short, raise_cancellation
from ..jobs import transitions
from ..jobs.conditional_write import Transition
from ..jobs.job import Job
from ..store.database_threads import Channel, DatabaseThreads
from ..store.job_transactions import JobEnd
from ..store.settling import Fate
from ..store.transactions import CommitOutcome, Ended
from ..store.types import ClientSession
from .running_job import RunCancelled
from .settlement import JobSettlement, decided
from .settling import MOST_ROUNDS, bring_up_to_date

R = TypeVar("R")


class SettlesRuns(Protocol):
    """The part of `JobRuns` that a transaction needs."""

    def success(self, run: Run[Job], value: Any) -> JobSettlement:
        """Return the settlement of a run that has succeeded with this value. Its worker says whether that is stored."""
        ...


class JobTransaction:
    """One transaction: how it ends its job, and what the answer means."""

    def __init__(self, run: Run[Job], context: ClientContext, db_threads: DatabaseThreads, runs: SettlesRuns) -> None:
        self._run = run
        self._context = context
        self._db_threads = db_threads
        self._runs = runs
        self._end: JobEnd[Any] = JobEnd(context.jobs, run.claim, self._decide)
        self._settlement: JobSettlement | None = None
        self._updated: Job | None = None
        self._rounds = 0

    async def commit(
        self, transactions: Transactions[Job, JobSettlement], function: Callable[[ClientSession], R]
    ) -> tuple[R, JobSettlement]:
        """Return what the function returned, and the settlement. See `RunningJob.transaction`."""
        run = self._run
        try:
            ended = await transactions.commit(run, function, self._end, self._concluded)
        except RunCancelled:
            # The function called `check_cancelled`, or `from_thread`. An async handler has its own cancellation.
            if run.reason is not None:
                await raise_cancellation(run)
            raise
        if ended.outcome is CommitOutcome.UNKNOWN:
            raise MonqueConnectionError(
                f"it is unknown whether the transaction of job {run.claim} was committed: another instance has claimed "
                "or ended the job since",
                unknown_outcome=True,
            )
        assert self._settlement is not None
        return ended.value, self._settlement

    def _decide(self, value: Any) -> Transition:
        """In the thread of the transaction."""
        settlement = self._settlement = self._runs.success(self._run, value)
        settlement.job = self._updated or settlement.job
        settlement.receipt = self._end.receipt
        now: datetime = self._context.clock.now()
        settlement.transition = transitions.unless_cancelled(settlement.job, now, decided(settlement, now))
        return settlement.transition

    async def _concluded(self, ended: Ended[Any]) -> tuple[JobSettlement, bool] | None:
        settlement, run = self._settlement, self._run
        assert settlement is not None, "its end was decided"
        match ended.outcome:
            case CommitOutcome.COMMITTED:
                settlement.fate = Fate.WRITTEN
            case CommitOutcome.REFUSED:
                raise InvalidPayloadError(
                    f"the result cannot be stored in job {run.claim}: the server refuses the document. Nothing was "
                    "committed"
                )
            case CommitOutcome.UNMATCHED:
                settlement.fate = await self._db_threads.call(self._end.read_fate, channel=Channel.RENEWALS)
            case _:
                settlement.fate = Fate.LOST
        if settlement.fate is Fate.CANCELLED:
            run.cancel(CancelReason.USER)
            await raise_cancellation(run)
            raise cut_short(f"job {run.claim}")
        if settlement.fate is Fate.JOB_CHANGED:
            self._rounds += 1
            if self._rounds == MOST_ROUNDS:
                raise MonqueError(f"the transaction of job {run.claim} was not committed: the job kept changing")
            await bring_up_to_date(settlement, self._context, self._db_threads)
            self._updated = settlement.job
            return None
        return settlement, settlement.fate is Fate.WRITTEN
