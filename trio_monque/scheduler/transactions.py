"""`job.transaction`: the writes of a handler's function and the end of its job, committed together or not at all.

What goes on in the database, and what its order closes, is in `store/transactions.py`. This file decides when a
transaction may begin, and what its answer means for the run:

- It takes its turn first, while its claim is renewed as usual: there may be a hundred runs that want one. Then its
  renewals pause (`Control.settle_by`), since each would be a conflict, and the effects would be written again.
- It counts as settled early, as `Claim.finish` does: the handler goes on, and its end writes nothing.
- A run that was cancelled meanwhile must not be completed. The thread asks for that just before it ends the job, and
  never afterwards: from there on, only the database knows. A request to cancel that is stored at the last moment is a
  conflict, and the next attempt meets it in its guard.
- If no answer comes, the claim counts as held. Then the end of the handler is written under the fence, as any end: if
  the transaction was committed after all, that write matches nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import trio

from ..client.context import ClientContext
from ..engine.lease import Beats
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..engine.source import Control
from ..errors import ClaimLostError, InvalidPayloadError, MonqueConnectionError, MonqueError
from ..jobs import transitions
from ..jobs.conditional_write import Transition
from ..jobs.job import Job
from ..store import transactions
from ..store.database_threads import Channel, DatabaseThreads
from ..store.settling import Fate
from ..store.transactions import RECEIPT_PREFIX, Ended
from ..store.types import ClientSession
from .running_job import RunCancelled
from .settlement import MOST_ROUNDS, JobSettlement, decided

R = TypeVar("R")


class SettlesRuns(Protocol):
    """The part of the source of jobs that a transaction needs."""

    def success(self, run: Run[Job], value: Any) -> JobSettlement:
        """Return the settlement of a run that has succeeded with this value. Its worker says whether that is stored."""
        ...

    async def bring_up_to_date(self, settlement: JobSettlement) -> None:
        """Read the schedule of its job again."""
        ...


class Transactions:
    """The transactions of one scheduler."""

    def __init__(
        self,
        context: ClientContext,
        db_threads: DatabaseThreads,
        control: Control[Job, JobSettlement],
        source: SettlesRuns,
        beats: Beats,
    ) -> None:
        self._context = context
        self._db_threads = db_threads
        self._control = control
        self._source = source
        self._beats = beats
        # Not one that holds virtual time: the thread does, until it calls back.
        self._turns = trio.CapacityLimiter(Channel.TRANSACTIONS.value)

    async def commit(self, run: Run[Job], function: Callable[[ClientSession], R]) -> tuple[R, JobSettlement]:
        """See `RunningJob.transaction`. In the engine's run. Returns what the function returned, and the settlement."""
        await trio.lowlevel.checkpoint_if_cancelled()
        _check_open(run)
        attempt = _Attempt(run, function, self._context, self._source, self._beats)
        turn = object()  # Two tasks of one handler may ask for one.
        await self._turns.acquire_on_behalf_of(turn)
        try:
            _check_open(run)
            written = await self._control.settle_by(run, partial(self._write, attempt))
        finally:
            self._turns.release_on_behalf_of(turn)
        ended, settlement = attempt.ended, attempt.settlement
        assert ended is not None
        assert settlement is not None
        if written:
            return ended.value, settlement
        if ended.is_unclear:
            raise MonqueConnectionError(
                f"it is unknown whether the transaction of job {run.claim} was committed: another instance has claimed "
                "or ended the job since",
                unknown_outcome=True,
            )
        raise ClaimLostError(f"the claim on job {run.claim} was lost: its transaction was not committed")

    async def _write(self, attempt: _Attempt[Any]) -> tuple[JobSettlement, bool]:
        run = attempt.run
        for _ in range(MOST_ROUNDS):
            await self._context.refreshed(self._db_threads, Channel.RENEWALS)
            ended = attempt.ended = await self._in_thread(attempt)
            settlement = attempt.settlement
            if ended.fate is Fate.CANCELLED:
                run.cancel(CancelReason.USER)
            if ended.fate in (None, Fate.CANCELLED) or settlement is None:
                await _raise_cancellation(run)
                raise MonqueError(f"the run of job {run.claim} was cancelled: its transaction was not committed")
            if ended.fate is Fate.REFUSED:
                raise InvalidPayloadError(
                    f"the result cannot be stored in job {run.claim}: the server refuses the document. Nothing was "
                    "committed"
                )
            if ended.fate is not Fate.SCHEDULE_CHANGED:
                settlement.fate = ended.fate
                return settlement, ended.fate is Fate.WRITTEN
            await self._source.bring_up_to_date(settlement)
            attempt.updated = settlement.job
        raise MonqueError(f"the transaction of job {run.claim} was not committed: its schedule changed again and again")

    async def _in_thread(self, attempt: _Attempt[R]) -> Ended[R]:
        try:
            return await self._db_threads.call(attempt.in_thread, channel=Channel.TRANSACTIONS)
        except RunCancelled:
            # The function called `check_cancelled`, or `from_thread`. An async handler has its own cancellation.
            if attempt.run.reason is not None:
                await _raise_cancellation(attempt.run)
            raise


def _check_open(run: Run[Job]) -> None:
    if run.is_settled_early or run.is_settling_early:
        raise MonqueError(f"job {run.claim} has one transaction: it is under way, or has ended the job")
    if run.reason is CancelReason.LOST:
        raise ClaimLostError(f"the claim on job {run.claim} was lost or could not be renewed in time")
    if run.reason is not None:
        raise MonqueError(
            f"the run of job {run.claim} is cancelled ({run.reason}): no transaction can complete the job any more"
        )


async def _raise_cancellation(run: Run[Job]) -> None:
    """Raise the cancellation of the run, unless the caller is shielded from it."""
    # Perhaps only a deadline has cancelled the run, and trio has not acted on it yet.
    run.scope.cancel(reason=str(run.reason))
    await trio.lowlevel.checkpoint()


@dataclass(slots=True)
class _Attempt(Generic[R]):
    """One transaction in its thread. The terms that bound it, too (see `TransactionTerms`).

    Attributes:
        settlement: How the run ends by it; the store asks for that after the function has returned.
        updated: The job with its present schedule, if that has changed since the claim.
        ended: The answer of the store.
    """

    run: Run[Job]
    function: Callable[[ClientSession], R]
    context: ClientContext
    source: SettlesRuns
    beats: Beats
    settlement: JobSettlement | None = None
    updated: Job | None = None
    ended: Ended[R] | None = None

    def in_thread(self) -> Ended[R]:
        receipt = RECEIPT_PREFIX + secrets.token_hex(12)
        job = self.run.claim
        ended = transactions.run_transaction(self.context.jobs, job, self.function, self._decide, receipt, self)
        if self.settlement is not None:
            self.settlement.receipt = receipt
        return ended

    def _decide(self, value: R) -> Transition:
        settlement = self.source.success(self.run, value)
        if self.updated is not None:
            settlement.job = self.updated
        self.settlement = settlement
        now = self.context.clock.now()
        settlement.transition = transitions.unless_cancelled(settlement.job, now, decided(settlement, now))
        return settlement.transition

    def seconds_left(self) -> float:
        return self.run.seconds_until_cancelled

    def is_cancelled(self) -> bool:
        return self.run.reason is not None

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def beat(self) -> datetime:
        return self.beats.next(self.context.clock.now())
