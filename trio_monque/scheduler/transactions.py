"""`job.transaction`: the writes of a handler's function and the end of its job, committed together or not at all.

A request to cancel that is stored at the last moment is a conflict, and the next attempt meets it in its guard. A
schedule that changes meanwhile is read again, as in any settlement, and the transaction is made again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from ..client.client_context import ClientContext
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..error_types import InvalidPayloadError, MonqueConnectionError, MonqueError
from ..host.transaction_turns import Transactions, cut_short, raise_cancellation
from ..jobs import transitions
from ..jobs.job import Job
from ..store.driver.database_threads import Channel, DatabaseThreads
from ..store.driver.transaction_terms import CommitFate, FoundCommit
from ..store.driver.types import ClientSession, Collection
from ..store.jobs import transactions as job_transactions
from ..store.jobs.settling import Fate
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
    """The transaction of one job: a `Transactional`, which decides how its job ends and what its fate means."""

    def __init__(self, run: Run[Job], context: ClientContext, db_threads: DatabaseThreads, runs: SettlesRuns) -> None:
        self._run = run
        self._context = context
        self._db_threads = db_threads
        self._runs = runs
        # Of this transaction, and of all its attempts: one of them is committed at most.
        self._receipt = f"tx:{secrets.token_hex(12)}"
        self._settlement: JobSettlement | None = None
        # As it was read again, after its schedule had changed.
        self._updated: Job | None = None
        self._rounds = 0

    async def commit(
        self, transactions: Transactions[Job, JobSettlement], function: Callable[[ClientSession], R]
    ) -> tuple[R, JobSettlement]:
        """Return what the function returned, and the settlement. See `RunningJob.transaction`."""
        try:
            value = await transactions.commit(self._run, self, function)
        except RunCancelled:
            # The function called `check_cancelled`, or `from_thread`. An async handler has its own cancellation.
            if self._run.reason is not None:
                await raise_cancellation(self._run)
            raise
        return value, self._decided()

    @property
    def item(self) -> str:
        return f"job {self._run.claim}"

    @property
    def collection(self) -> Collection:
        return self._context.jobs.collection

    @property
    def operation_timeout(self) -> float:
        return self._context.jobs.operation_timeout

    # --- In the thread of the transaction ---

    def hold(self, beat: datetime, session: ClientSession) -> None:
        job_transactions.hold(self._context.jobs, self._run.claim, beat, session)

    def write(self, value: Any, session: ClientSession) -> bool:
        # Decided anew in each attempt: the function has returned another value, and the schedule may have been read
        # again.
        settlement = self._settlement = self._runs.success(self._run, value)
        settlement.job = self._updated or settlement.job
        settlement.receipt = self._receipt
        now: datetime = self._context.clock.now()
        # Unlike an ordinary completion, this one asks that no cancellation was requested: the work is not done before
        # it is committed, so no request comes too late.
        transition = transitions.unless_cancelled(settlement.job, now, decided(settlement, now))
        settlement.transition = transition
        return job_transactions.write_end(self._context.jobs, transition, self._receipt, session)

    def find_out(self, beat: datetime) -> FoundCommit:
        return job_transactions.find_out(self._context.jobs, self._run.claim, self._receipt, beat)

    # --- On the run ---

    async def conclude(self, fate: CommitFate) -> tuple[JobSettlement, bool] | None:
        settlement, run = self._decided(), self._run
        if fate is CommitFate.REFUSED:
            raise InvalidPayloadError(
                f"the result cannot be stored in {self.item}: the server refuses the document. Nothing was committed"
            )
        settlement.fate = await self._fate(fate)
        if settlement.fate is Fate.CANCELLED:
            # The request was met by the guard, and nothing of the function was committed: the run ends as a cancelled
            # one, and its end carries the request out.
            run.cancel(CancelReason.USER)
            await raise_cancellation(run)
            raise cut_short(self.item)
        if settlement.fate is Fate.JOB_CHANGED:
            self._rounds += 1
            # Bounded: a job that changes in every round would keep its run and its slot without end.
            if self._rounds == MOST_ROUNDS:
                raise MonqueError(f"the transaction of {self.item} was not committed: the job kept changing")
            await bring_up_to_date(settlement, self._context, self._db_threads)
            self._updated = settlement.job
            return None
        return settlement, settlement.fate is Fate.WRITTEN

    async def _fate(self, fate: CommitFate) -> Fate:
        if fate is not CommitFate.UNMATCHED:
            # UNKNOWN: the claim is gone in any case. `unknown` is raised for it.
            return Fate.WRITTEN if fate is CommitFate.COMMITTED else Fate.LOST
        # Outside of the transaction, which is aborted: only a new read shows which condition did not hold. If all hold
        # again, the job has changed, and the transaction is made again. WRITTEN is only what has the receipt: an
        # earlier attempt was committed after all.
        transition = self._decided().transition
        assert transition is not None, "it matched nothing, so it was sent"
        read_fate = partial(job_transactions.read_fate, self._context.jobs, self._run.claim, transition, self._receipt)
        return await self._db_threads.call(read_fate, channel=Channel.RENEWALS)

    def unknown(self) -> MonqueConnectionError:
        return MonqueConnectionError(
            f"it is unknown whether the transaction of {self.item} was committed: another instance has claimed or "
            "ended the job since",
            unknown_outcome=True,
        )

    def _decided(self) -> JobSettlement:
        assert self._settlement is not None, "its end was decided"
        return self._settlement
