"""Transactions of claims: when one may begin, what bounds it, and how its run goes on.

What goes on in the database, and what its order closes, is in `store/transactions.py`. What this file closes:

- A transaction takes its turn first, while its claim is renewed as usual: a hundred runs may be queued for a turn.
  Then its renewals pause (`Control.settle_by`), since each would be a conflict, and the effects would be written again.
- So the function has a limit: what is left of the lease, and 60 seconds at most. Without one of its own, the lease
  would end, and the job would begin again, uncounted and for ever.
- A transaction is *given up* when its run is cancelled or its limit is over. The thread asks for that just before it
  ends the claim, and one lock decides which comes first. If the thread is first, only the database knows the end.
- A thread cannot be stopped: the function may compute for hours after that. The run waits for it, and its claim is
  renewed again. Released at once, the job would begin again beside the function, here or in another instance.
- If no answer comes, the claim counts as held. Then the end of the handler is written under the fence, as any end: if
  the transaction was committed after all, that write matches nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

import outcome
import trio

from ..client.server_time import ServerTime
from ..engine.lease import Beats
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..engine.source import Control
from ..error_types import ClaimLostError, MonqueConnectionError, MonqueError, ShortageError, TransactionTimeoutError
from ..log import logger_of
from ..store.database_threads import Channel, DatabaseThreads
from ..store.transactions import LONGEST, ClaimEnd, CommitOutcome, Ended, end_on_server, run_transaction
from ..store.types import ClientSession

logger = logger_of("host")

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
        # A plain limiter: the worker thread itself freezes virtual time, until it calls back.
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
        # Also before the turn: the function of a transaction may ask for a second one, by a call back. If as many do it
        # as there are turns, each would wait for the others.
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
        attempt.begin_limit()
        while True:
            await self._time.refreshed(self._db_threads, Channel.RENEWALS)
            ended = attempt.ended = await self._awaited(attempt)
            if ended.outcome is CommitOutcome.GIVEN_UP:
                if (overdue := attempt.overdue()) is not None:
                    raise overdue
                await raise_cancellation(attempt.run)
                raise cut_short(attempt.end.item)
            settled = await concluded(ended)
            if settled is not None:
                return settled
            attempt.is_repeated = True

    async def _awaited(self, attempt: _Attempt[ClaimT, R]) -> Ended[R]:
        """Wait for the thread, also while its caller is cancelled; give the transaction up when that is due."""
        result: outcome.Outcome[Ended[R]] | None = None
        # Shielded, because a cancellation by a scope of the handler does not stop a transaction. That of the run does.
        watching = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            with attempt.run.shielded_wait() as wait:
                nursery.start_soon(self._watch, attempt, watching, wait)
                try:
                    result = await self._db_threads.call(
                        attempt.in_thread, channel=Channel.TRANSACTIONS, abandon_on_cancel=True
                    )
                except ShortageError as error:
                    result = outcome.Error(error)  # Not raised here: the nursery would put it into a group.
            watching.cancel(reason="the thread has ended, or is not awaited any more")
        if not wait.cancelled_caught:
            assert result is not None
            return result.unwrap()
        # The hard end of the engine, or the end of the lease while the answer to the commit was awaited.
        attempt.run.abandoned |= attempt.is_given_up
        await trio.lowlevel.checkpoint_if_cancelled()
        raise MonqueConnectionError(
            f"the run of {attempt.end.item} has ended before the database answered: its transaction may be committed",
            transient=True,
            unknown_outcome=True,
        )

    @trio.lowlevel.enable_ki_protection
    async def _watch(self, attempt: _Attempt[ClaimT, R], watching: trio.CancelScope, wait: trio.CancelScope) -> None:
        with watching:
            with attempt.run.extended():
                await trio.sleep_until(attempt.limit)
            if watching.cancel_called:
                return  # Both at once: the thread has ended. Without this, a log line would say that it goes on.
            if attempt.give_up():
                await self._leave_to_thread(attempt)
            else:
                # The end of the claim is written: its answer is awaited as any other.
                with attempt.run.grace.waiting(wait):
                    await trio.sleep_forever()

    async def _leave_to_thread(self, attempt: _Attempt[ClaimT, R]) -> None:
        """The transaction is given up, and its function still runs."""
        item = attempt.end.item
        if attempt.overdue() is not None:
            logger.warning(
                "the function of the transaction of %s takes longer than its limit of %.3g s, and cannot be stopped: "
                "nothing of it is committed, and the run ends when the function returns",
                item,
                attempt.seconds,
            )
        if attempt.session_id is None:
            return  # Its thread has not begun, and never calls the function; or it has ended.
        try:
            # First: a renewal would wait for a document that the transaction has locked, and others with it.
            await self._db_threads.call(attempt.abort_on_server, channel=Channel.RENEWALS, abandon_on_cancel=True)
        except MonqueError as error:
            logger.warning(
                "could not abort the transaction of %s: %s; the server aborts it when it is too old", item, error
            )
            if attempt.has_repeated:
                return  # The job may be locked: renewals would wait for it. Its lease ends instead.
        self._control.resume_renewals(attempt.run)


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


_attempt_of_thread: ContextVar[_Attempt[Any, Any] | None] = ContextVar("attempt_of_thread", default=None)


def check_limit() -> None:
    """Raise TransactionTimeoutError in the function of a transaction that takes longer than it may."""
    attempt = _attempt_of_thread.get()
    if attempt is not None and (overdue := attempt.overdue()) is not None:
        raise overdue


@dataclass(slots=True, eq=False)
class _Attempt(Generic[ClaimT, R]):
    """One transaction in its thread, and the terms that bound it (`TransactionTerms`).

    Attributes:
        limit: When its function must be over, on the clock of its run.
        seconds: How long it had then.
        is_repeated: The document has changed since an earlier call, and is locked first.
        has_repeated: The function was called again: its document may be locked.
        session_id: That of its session, while its thread has it.
        is_given_up: It will not be committed.
        is_overdue: It was given up for its limit, and not because its run was cancelled before that.
    """

    run: Run[ClaimT]
    function: Callable[[ClientSession], R]
    end: ClaimEnd[R]
    time: ServerTime
    beats: Beats
    ended: Ended[R] | None = None
    limit: float = math.inf
    seconds: float = math.inf
    is_repeated: bool = False
    has_repeated: bool = False
    is_given_up: bool = False
    is_overdue: bool = False
    session_id: object = None
    _is_ending: bool = False
    # Held for an abort by the id of the session, which its thread must not give back meanwhile.
    _aborting: threading.Lock = field(default_factory=threading.Lock)
    # Between the thread, which ends the claim, and the task that gives the transaction up.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin_limit(self) -> None:
        now = trio.current_time()
        self.limit = min(self.run.renew_by, now + LONGEST)
        self.seconds = max(0.0, self.limit - now)

    def give_up(self) -> bool:
        """Give the transaction up, unless its thread ends the claim already; return whether it is given up."""
        with self._lock:
            if not self._is_ending:
                self._given_up()
            return self.is_given_up

    def abort_on_server(self) -> None:
        """In another thread: abort it by the id of its session."""
        with self._aborting:
            if self.session_id is not None:
                end_on_server(self.end, self.session_id)

    def _given_up(self) -> None:
        # What comes first counts: a run that a shutdown has cut has not failed, however long its function takes then.
        if not self.is_given_up:
            self.is_given_up, self.is_overdue = True, self._is_late()

    def _is_late(self) -> bool:
        return self.run.now >= self.limit and self.run.reason is None

    # --- In its thread ---

    def in_thread(self) -> outcome.Outcome[Ended[R]]:
        _attempt_of_thread.set(self)  # In the context of this call.
        return outcome.capture(run_transaction, self.end, self.function, self, is_repeated=self.is_repeated)

    def begin(self, session: ClientSession) -> bool:
        with self._lock:
            self.has_repeated = self.is_repeated or self.session_id is not None
            self.session_id = session.session_id
            self._is_ending = False
            return self._goes_on()

    def seconds_left(self) -> float:
        return min(self.limit - self.run.now, self.run.seconds_until_cancelled)

    def overdue(self) -> TransactionTimeoutError | None:
        is_overdue = self.is_overdue if self.is_given_up else self._is_late()
        return TransactionTimeoutError(self.end.item, self.seconds) if is_overdue else None

    def may_end(self) -> bool:
        with self._lock:
            self._is_ending = self._goes_on()
            return self._is_ending

    def _goes_on(self) -> bool:
        # By the clock, too: the task that gives it up may be late.
        if self.run.reason is not None or self._is_late():
            self._given_up()
        return not self.is_given_up

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def leave(self) -> None:
        # The driver gives the session to the next command of any thread, and an abort that is under way would end that
        # command. So it is awaited: for `ABORT_TIMEOUT` at most.
        with self._aborting:
            self.session_id = None

    def beat(self) -> datetime:
        return self.beats.next(self.time.clock.now())
