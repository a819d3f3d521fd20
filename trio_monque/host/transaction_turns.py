"""Transactions of claims, from begin to end; of jobs and of documents in the same way.

1. A transaction waits for its turn, while its claim is renewed: a hundred runs may be queued for one. In an outage of
   the renewals it waits for the next one: its function would have no time, and an outage fails no attempt. If no
   renewal succeeds, the claim is lost, which counts no attempt either.
2. Then the renewals of its claim pause (`Control.settle_by`), since each would be a conflict, and the effects would be
   written again.
3. So its function has a limit: what is left of the lease, and 60 seconds at most. Without this limit, the lease would
   end first. That counts no attempt, so the job would run again without end.
4. `run_transaction` (`store/driver/transaction_attempts.py`) goes on in a thread: the function, the end of the claim
   (`Transactional.write`) and the commit. What its order closes is explained there.
5. Meanwhile the run watches the limit. A transaction is *given up* when its run is cancelled or its limit is over. The
   thread asks for that just before it ends the claim, and one lock decides which comes first. If the thread is first,
   only the database knows the end.
6. A thread cannot be stopped: the function may compute for hours after that. The run waits for it, and its claim is
   renewed again. Released at once, the job would begin again beside the function, here or in another instance.
7. `Transactional.conclude` says what the fate of the transaction means: the claim is settled, or the transaction is
   made again from 4.

If no answer comes, the claim counts as held. Then the end of the handler is written under the fence, as any end: if the
transaction was committed after all, that write matches nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import outcome
import trio

from ..client.server_time import ServerTime
from ..engine.lease import Beats
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..engine.source import Control
from ..error_types import ClaimLostError, MonqueConnectionError, MonqueError, ShortageError
from ..log import logger_of
from ..store.driver.database_threads import Channel, DatabaseThreads
from ..store.driver.transaction_terms import ClaimSettlement, CommitFate, EndedTransaction
from ..store.driver.types import ClientSession
from .transaction_thread import TransactionThread

logger = logger_of("host")

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")
R = TypeVar("R")

LOOK_INTERVAL: Final = 0.25
"""Seconds between two looks whether the claim of a transaction was renewed. Only in an outage."""

SettlementT_co = TypeVar("SettlementT_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


class Transactional(ClaimSettlement[R_contra], Protocol[R_contra, SettlementT_co]):
    """One claim that ends by a transaction. Its thread calls `ClaimSettlement`, and its run the other methods."""

    async def conclude(self, fate: CommitFate) -> tuple[SettlementT_co, bool] | None:
        """Return the settlement, and whether it was written. None: the transaction is made again.

        Not asked about one that was given up. What it raises goes to the handler, and the claim is held.
        """
        ...

    def unknown(self) -> MonqueConnectionError:
        """Return the error of a transaction whose fate is UNKNOWN."""
        ...


class Transactions(Generic[ClaimT, SettlementT]):
    """The transactions of one host. On the thread of the engine's run."""

    def __init__(
        self, db_threads: DatabaseThreads, time: ServerTime, control: Control[ClaimT, SettlementT], beats: Beats
    ) -> None:
        self._db_threads = db_threads
        self._time = time
        self._control = control
        self._beats = beats
        # A plain limiter: the worker thread itself freezes virtual time, until it calls back.
        self._turns = trio.CapacityLimiter(Channel.TRANSACTIONS.value)

    async def commit(
        self,
        run: Run[ClaimT],
        transactional: Transactional[R, SettlementT],
        function: Callable[[ClientSession], R],
    ) -> R:
        """Call the function in a thread, and end the claim in the same transaction; return what the function returned.

        Raises:
            MonqueError: The claim has ended, or its run is cancelled.
            ClaimLostError: The claim was lost.
            TransactionTimeoutError: The function took longer than its limit.
            MonqueConnectionError: The database did not answer in time; see `unknown_outcome`.
            Exception: What the function raised. Nothing was committed.
        """
        # Nothing is begun for a caller that is cancelled already.
        await trio.lowlevel.checkpoint_if_cancelled()
        # Also before the turn: the function of a transaction may ask for a second one, by a call back. If as many do it
        # as there are turns, each would wait for the others.
        _check_open(run, transactional.item)
        turn = object()  # Not the task: a call back of a function runs in the task that holds a turn for it.
        await self._turns.acquire_on_behalf_of(turn)
        thread = TransactionThread(run, transactional, function, self._time, self._beats)
        try:
            while run.lacks_renewal:  # At most until the end of the lease, which is a reason.
                _check_open(run, transactional.item)
                await trio.sleep(LOOK_INTERVAL)
            _check_open(run, transactional.item)
            written = await self._control.settle_by(run, partial(self._write, thread, transactional))
        finally:
            self._turns.release_on_behalf_of(turn)
        ended = thread.ended
        assert ended is not None, "it was written, or it raised"
        if ended.fate is CommitFate.UNKNOWN:
            raise transactional.unknown()
        if not written:
            raise ClaimLostError(f"the claim on {transactional.item} was lost: its transaction was not committed")
        return ended.value

    async def _write(
        self, thread: TransactionThread[ClaimT, R], transactional: Transactional[R, SettlementT]
    ) -> tuple[SettlementT, bool]:
        thread.begin_limit()
        while True:
            # The end has a date of the server's clock.
            await self._time.refreshed(self._db_threads, Channel.RENEWALS)
            ended = thread.ended = await self._awaited(thread)
            if ended.fate is CommitFate.GIVEN_UP:
                if (overdue := thread.overdue()) is not None:
                    raise overdue
                await raise_cancellation(thread.run)
                raise cut_short(transactional.item)
            settled = await transactional.conclude(ended.fate)
            if settled is not None:
                return settled

    async def _awaited(self, thread: TransactionThread[ClaimT, R]) -> EndedTransaction[R]:
        """Wait for the thread, also while its caller is cancelled; give the transaction up when that is due."""
        result: outcome.Outcome[EndedTransaction[R]] | None = None
        # Shielded, because a cancellation by a scope of the handler does not stop a transaction. That of the run does:
        # `_watch` has a scope that is cancelled with the run (`Run.extended`).
        watching = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            with thread.run.shielded_wait() as wait:
                nursery.start_soon(self._watch, thread, watching, wait)
                try:
                    result = await self._db_threads.call(
                        thread.run_in_thread, channel=Channel.TRANSACTIONS, abandon_on_cancel=True
                    )
                except ShortageError as error:  # Too little memory for a thread.
                    result = outcome.Error(error)  # Not raised here: the nursery would put it into a group.
                finally:
                    watching.cancel(reason="the thread has ended, or is not awaited any more")
            watching.cancel(reason="the wait was over before it began")
        if not wait.cancelled_caught:
            assert result is not None
            return result.unwrap()
        # The hard end of the engine, or the end of the lease while the answer to the commit was awaited.
        if thread.is_given_up:
            # Its function goes on: the claim must not be released beside it.
            thread.run.abandoned = True
        await trio.lowlevel.checkpoint_if_cancelled()
        if thread.is_given_up:
            raise thread.overdue() or cut_short(thread.end.item)
        raise MonqueConnectionError(
            f"the run of {thread.end.item} has ended before the database answered: its transaction may be committed",
            transient=True,
            unknown_outcome=True,
        )

    @trio.lowlevel.enable_ki_protection
    async def _watch(
        self, thread: TransactionThread[ClaimT, R], watching: trio.CancelScope, wait: trio.CancelScope
    ) -> None:
        with watching:
            with thread.run.extended():
                await trio.sleep_until(thread.limit)
            if watching.cancel_called:
                return  # Both at once: the thread has ended. Without this, a log line would say that it goes on.
            if thread.give_up():
                await self._leave_to_thread(thread)
            else:
                # The end of the claim is written: its answer is awaited as any other.
                with thread.run.grace.waiting(wait):
                    await trio.sleep_forever()

    async def _leave_to_thread(self, thread: TransactionThread[ClaimT, R]) -> None:
        """The transaction is given up, and its function still runs."""
        item = thread.end.item
        if thread.overdue() is not None:
            logger.warning(
                "the transaction function of %s exceeded its limit of %.3g s and cannot be stopped; nothing is "
                "committed, and the run ends when the function returns",
                item,
                thread.seconds,
            )
        # Without one, its thread has ended; or it has not begun, and will not call the function any more (`begin`).
        if thread.session_id is not None:
            try:
                # First: a renewal would wait for a document that the transaction has locked, and others with it.
                await self._db_threads.call(thread.abort_on_server, channel=Channel.RENEWALS, abandon_on_cancel=True)
            except MonqueError as error:
                logger.warning(
                    "could not abort the transaction of %s: %s; the server aborts it when it times out", item, error
                )
                if thread.calls > 1:
                    return  # The job may be locked: renewals would wait for it. Its lease ends instead.
        self._control.resume_renewals(thread.run)


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
