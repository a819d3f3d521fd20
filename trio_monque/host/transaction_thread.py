"""TransactionThread: one transaction in its thread, and what bounds it.

Two sides use it: the thread, which calls the function and ends the claim, and the task of the run, which gives the
transaction up. One lock decides which of them comes first; see `transaction_turns.py`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

import outcome
import trio

from ..client.server_time import ServerTime
from ..engine.lease import Beats
from ..engine.run import Run
from ..error_types import TransactionTimeoutError
from ..store.driver.transaction_attempts import LONGEST, end_on_server, run_transaction
from ..store.driver.transaction_terms import ClaimSettlement, EndedTransaction
from ..store.driver.types import ClientSession

ClaimT = TypeVar("ClaimT")
R = TypeVar("R")

_of_thread: ContextVar[TransactionThread[Any, Any] | None] = ContextVar("transaction_of_thread", default=None)


def check_limit() -> None:
    """Raise TransactionTimeoutError in the function of a transaction that takes longer than it may."""
    thread = _of_thread.get()
    if thread is not None and (overdue := thread.overdue()) is not None:
        raise overdue


@dataclass(slots=True, eq=False)
class TransactionThread(Generic[ClaimT, R]):
    """One transaction in its thread, and the terms that bound it (`TransactionTerms`).

    Attributes:
        limit: When its function must be over, on the clock of its run.
        seconds: How long it had then.
        ended: How it ended the last time.
        calls: How many attempts have begun. From the second one on, the document may be locked before its function is
            called.
        session_id: That of its session, while its thread has it.
        is_given_up: It will not be committed.
        is_overdue: It was given up for its limit, and not because its run was cancelled before that.
    """

    run: Run[ClaimT]
    end: ClaimSettlement[R]
    function: Callable[[ClientSession], R]
    time: ServerTime
    beats: Beats
    limit: float = math.inf
    seconds: float = math.inf
    ended: EndedTransaction[R] | None = None
    calls: int = 0
    session_id: object = None
    is_given_up: bool = False
    is_overdue: bool = False
    _is_ending: bool = False
    # Held for an abort by the id of the session, which its thread must not give back meanwhile.
    _aborting: threading.Lock = field(default_factory=threading.Lock)
    # Between the thread, which ends the claim, and the task that gives the transaction up.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin_limit(self) -> None:
        now = trio.current_time()
        self.limit = min(self.run.renew_by, now + LONGEST)
        # Never negative, however long it took since the look whether the claim lacks a renewal.
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

    def overdue(self) -> TransactionTimeoutError | None:
        """Return the error of a function that takes longer than its limit. In any thread."""
        is_overdue = self.is_overdue if self.is_given_up else self._is_late()
        return TransactionTimeoutError(self.end.item, self.seconds) if is_overdue else None

    def _given_up(self) -> None:
        # What comes first counts: a run that a shutdown has cut has not failed, however long its function takes then.
        if not self.is_given_up:
            self.is_given_up, self.is_overdue = True, self._is_late()

    def _is_late(self) -> bool:
        return self.run.now >= self.limit and self.run.reason is None

    # --- In its thread ---

    def run_in_thread(self) -> outcome.Outcome[EndedTransaction[R]]:
        _of_thread.set(self)  # In the context of this call: see `check_limit`.
        # Captured: a ShortageError of the function must not pass for one of the call.
        return outcome.capture(run_transaction, self.end, self.function, self, is_repeated=self.calls > 0)

    def begin(self, session: ClientSession) -> bool:
        with self._lock:
            self.calls += 1
            self.session_id = session.session_id
            self._is_ending = False
            return self._goes_on()

    def seconds_left(self) -> float:
        return min(self.limit - self.run.now, self.run.seconds_until_cancelled)

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
        # command. So it is awaited: for `ABORT_TIMEOUT` at most. (If the abort arrives later still, it ends one command
        # of another thread, which counts as an outage and is sent again.)
        with self._aborting:
            self.session_id = None

    def beat(self) -> datetime:
        return self.beats.next(self.time.clock.now())
