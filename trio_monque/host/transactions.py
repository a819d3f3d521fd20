"""Transactions of claims: when one may begin, what bounds it, and how its run goes on.

What goes on in the database, and what its order closes, is in `store/transactions.py`. What this file closes:

- A transaction takes its turn first, while its claim is renewed as usual: there may be a hundred runs that want one.
  Then its renewals pause (`Control.settle_by`), since each would be a conflict, and the effects would be written again.
- A run that was cancelled meanwhile must not be completed. The thread asks for that just before it ends the claim, and
  never afterwards: from there on, only the database knows.
- If no answer comes, the claim counts as held. Then the end of the handler is written under the fence, as any end: if
  the transaction was committed after all, that write matches nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from ..client.server_time import ServerTime
from ..engine.lease import Beats
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..engine.source import Control
from ..errors import ClaimLostError, MonqueError
from ..store.database_threads import Channel, DatabaseThreads
from ..store.transactions import ClaimEnd, CommitOutcome, Ended, run_transaction
from ..store.types import ClientSession

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")
R = TypeVar("R")

Concluded = Callable[[Ended[Any]], Awaitable[tuple[SettlementT, bool] | None]]
"""What the answer means: the settlement, and whether it was written. None: the transaction is made again."""


class Transactions(Generic[ClaimT, SettlementT]):
    """The transactions of one host. On the thread of the engine's run."""

    def __init__(
        self, db_threads: DatabaseThreads, time: ServerTime, control: Control[ClaimT, SettlementT], beats: Beats
    ) -> None:
        self._db_threads = db_threads
        self._time = time
        self._control = control
        self._beats = beats
        # Not one that holds virtual time: the thread does, until it calls back.
        self._turns = trio.CapacityLimiter(Channel.TRANSACTIONS.value)

    async def commit(
        self,
        run: Run[ClaimT],
        function: Callable[[ClientSession], R],
        end: ClaimEnd[R],
        concluded: Concluded[SettlementT],
    ) -> Ended[R]:
        """Call the function in a thread, and end the claim in the same transaction.

        Raises:
            MonqueError: The claim has ended, or its run is cancelled.
            ClaimLostError: The claim was lost.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        _check_open(run, end.item)
        turn = object()  # Two tasks of one handler may ask for one.
        await self._turns.acquire_on_behalf_of(turn)
        attempt = _Attempt(run, function, end, self._time, self._beats)
        try:
            _check_open(run, end.item)
            written = await self._control.settle_by(run, partial(self._write, attempt, concluded))
        finally:
            self._turns.release_on_behalf_of(turn)
        assert attempt.ended is not None, "it was written, or it raised"
        if not written and attempt.ended.outcome is not CommitOutcome.UNKNOWN:
            raise ClaimLostError(f"the claim on {end.item} was lost: its transaction was not committed")
        return attempt.ended

    async def _write(
        self, attempt: _Attempt[ClaimT, R], concluded: Concluded[SettlementT]
    ) -> tuple[SettlementT, bool | None]:
        while True:
            await self._time.refreshed(self._db_threads, Channel.RENEWALS)
            ended = attempt.ended = await self._db_threads.call(attempt.in_thread, channel=Channel.TRANSACTIONS)
            if ended.outcome is CommitOutcome.CANCELLED:
                await raise_cancellation(attempt.run)
                raise cut_short(attempt.end.item)
            settled = await concluded(ended)
            if settled is not None:
                return settled


def cut_short(item: str) -> MonqueError:
    """Return the error for a caller that is shielded from the cancellation of its run."""
    return MonqueError(f"the run of {item} was cancelled: its transaction was not committed")


async def raise_cancellation(run: Run[Any]) -> None:
    """Raise the cancellation of the run, unless the caller is shielded from it."""
    # Perhaps only a deadline has cancelled the run, and trio has not acted on it yet.
    run.scope.cancel(reason=str(run.reason))
    await trio.lowlevel.checkpoint()


def _check_open(run: Run[Any], item: str) -> None:
    if run.is_settled_early or run.is_settling_early:
        raise MonqueError(f"{item} has one transaction: it is under way, or has ended the claim")
    if run.reason is CancelReason.LOST:
        raise ClaimLostError(f"the claim on {item} was lost or could not be renewed in time")
    if run.reason is not None:
        raise MonqueError(f"the run of {item} is cancelled ({run.reason}): no transaction can complete it any more")


@dataclass(slots=True, eq=False)
class _Attempt(Generic[ClaimT, R]):
    """One transaction in its thread, and the terms that bound it (`TransactionTerms`)."""

    run: Run[ClaimT]
    function: Callable[[ClientSession], R]
    end: ClaimEnd[R]
    time: ServerTime
    beats: Beats
    ended: Ended[R] | None = None

    def in_thread(self) -> Ended[R]:
        return run_transaction(self.end, self.function, self)

    def seconds_left(self) -> float:
        return self.run.seconds_until_cancelled

    def is_cancelled(self) -> bool:
        return self.run.reason is not None

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def beat(self) -> datetime:
        return self.beats.next(self.time.clock.now())
