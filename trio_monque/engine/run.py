"""One run: its cancel scope, its deadlines, and why it was cancelled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from ..grace import DISMISSED, Grace
from .lease import LeaseTerms
from .run_end import PRECEDENCE, CancelReason, RunEnd

ClaimT = TypeVar("ClaimT")


@dataclass(slots=True, eq=False)
class _Cleanup:
    """A shield of the handler's: it asked for so much, and gets no more than `timeout` after its cancellation."""

    scope: trio.CancelScope
    asked_until: float
    timeout: float


class Run(Generic[ClaimT]):
    """One execution under a claim. The life of the run is the life of its scope.

    Attributes:
        claim: What is run.
        scope: Everything of the handler happens inside.
        abandoned: The engine's hard end came before the thread had ended.
        task: The one that it runs in, from its start on.
        claimed_at: When its claim was asked for, on trio's clock.
        is_gone: The claim is known to be another's, or free.
        is_settled: Its claim was settled while its handler goes on: nothing is left to write.
        is_settling: That is being written, and the outcome is not known: whether its claim is there proves nothing.
    """

    # There may be ten thousand of them, so what few of them need is made when it is needed.
    __slots__ = (
        "_cancelled_at",
        "_cleanups",
        "_cleanups_end",
        "_clock",
        "_ends_at",
        "_extensions",
        "_fenced_at",
        "_grace",
        "_hold_limit",
        "_is_fenced",
        "_reason",
        "_sent",
        "_shielded_wait",
        "_started",
        "_terms",
        "_time_limit",
        "abandoned",
        "claim",
        "claimed_at",
        "is_gone",
        "is_settled",
        "is_settling",
        "scope",
        "task",
    )

    def __init__(
        self, claim: ClaimT, time_limit: float, *, terms: LeaseTerms, sent: float, hold_limit: float = math.inf
    ) -> None:
        """`sent` is when the claim was asked for, on trio's clock; the limits are seconds."""
        self.claim = claim
        self.abandoned = False
        self.task: trio.lowlevel.Task | None = None
        self.is_gone = False
        self.is_settled = False
        self.is_settling = False
        self._is_fenced = False
        self._terms = terms
        self._reason: CancelReason | None = None
        self._cancelled_at = math.inf
        # Tuples: a handler has one or two at a time, and most have none.
        self._cleanups: tuple[_Cleanup, ...] = ()
        self._extensions: tuple[trio.CancelScope, ...] = ()
        self._shielded_wait: trio.CancelScope | None = None
        # Plain handlers ask for the reason from their threads, where trio.current_time() refuses to answer.
        self._clock = trio.lowlevel.current_clock()
        self._started = self._clock.current_time()
        # The limits, and not the moments: they are one number for all.
        self._time_limit = time_limit
        self._hold_limit = hold_limit
        self.claimed_at = self._sent = sent
        self._fenced_at = terms.cancelled_at(sent)
        self._ends_at = min(self.deadline, self._fenced_at)
        self._cleanups_end = math.inf
        self.scope = trio.CancelScope(deadline=self._ends_at)
        self._grace: Grace | None = None

    @property
    def shielded_wait(self) -> trio.CancelScope:
        """A scope for a wait, such as for a thread, that the engine's hard end ends, and not the run's cancellation."""
        if self._shielded_wait is None:
            self._shielded_wait = trio.CancelScope(shield=True)
        return self._shielded_wait

    def forget_shielded_wait(self) -> None:
        """No thread was started. The next wait needs a new scope, as a scope can be entered only once."""
        self._shielded_wait = None

    @property
    def grace(self) -> Grace:
        """How long the run, once cancelled, waits for answers of the database: as long as a clean-up may take."""
        if self._grace is None:
            self._grace = Grace(self._grace_end)
        return self._grace

    # --- Its deadlines ---

    @property
    def deadline(self) -> float:
        """When it will be cancelled for taking too long, on trio's clock; infinity for never.

        Its lease does not count here: that moves with every heartbeat.
        """
        return min(self._started + self._time_limit, self.held_until - self._terms.cleanup_timeout)

    @property
    def duration(self) -> float:
        return max(0.0, self._clock.current_time() - self._started)

    def wait_to_begin(self) -> None:
        """Its handler waits before the work: none of its time passes until `begin`."""
        self._started = math.inf
        self._new_ends()

    def begin(self) -> None:
        """From now on it takes time."""
        self._started = self._clock.current_time()
        self._new_ends()

    @property
    def held_until(self) -> float:
        """Until when its claim is renewed, on trio's clock: the absolute limit on one run."""
        return self.claimed_at + self._hold_limit

    @property
    def is_held(self) -> bool:
        """Whether its claim is renewed."""
        return self._clock.current_time() < self.held_until

    def renewed(self, sent: float) -> None:
        """Its claim was renewed, by a renewal that was sent at that moment.

        A run that has fenced itself stays cancelled: its clean-up may end beside another's run as it is.
        """
        if self.reason is not CancelReason.LOST:
            self._sent = max(self._sent, sent)
            self._fenced_at = self._terms.cancelled_at(self._sent)
            self._new_ends()

    def outlive_lease(self) -> None:
        """Its claim is settled: its handler may go on for as long as it may run, and no lease binds it any more."""
        self._fenced_at = math.inf
        self._new_ends()

    def _new_ends(self) -> None:
        self._ends_at = min(self.deadline, self._fenced_at)
        self._set_deadlines()

    def _set_deadlines(self) -> None:
        self.scope.deadline = self._ends_at
        for extension in self._extensions:
            extension.deadline = self._ends_at
        for cleanup in self._cleanups:
            cleanup.scope.deadline = self._end_of(cleanup)
        if self._grace is not None:
            self._grace.end_at(self._grace_end)

    @property
    def fenced_at(self) -> float:
        """When it is cancelled unless its claim is renewed before, or was; on trio's clock."""
        return self._fenced_at

    # --- Its cancellation ---

    @property
    def cancelled_at(self) -> float:
        """When it was cancelled, or will be by its deadlines; on trio's clock."""
        return min(self._cancelled_at, self._ends_at)

    @property
    def reason(self) -> CancelReason | None:
        """Why the run is cancelled; None while it is not.

        Ours, and not the scope's: with several cancellations, trio keeps the first reason.
        """
        return self._reason_at(self._clock.current_time())

    def _reason_at(self, now: float) -> CancelReason | None:
        if now < self._ends_at and self._reason is None and not (self.is_gone or self._is_fenced):
            return None  # Asked several times of every run, and nearly always so.
        # Once it has fenced itself, a renewal that is answered late changes nothing.
        self._is_fenced = self._is_fenced or now >= self._fenced_at
        if self.is_gone or self._is_fenced:
            return CancelReason.LOST
        return self._reason_but_lost_at(now)

    @property
    def reason_but_lost(self) -> CancelReason | None:
        """Why it was cancelled, but for losing its claim: what its end means where the claim turns out to be ours."""
        return self._reason_but_lost_at(self._clock.current_time())

    def _reason_but_lost_at(self, now: float) -> CancelReason | None:
        if self._reason is None and self.deadline <= min(now, self._fenced_at):
            self._reason = CancelReason.TIMEOUT
        return self._reason

    def cancel(self, reason: CancelReason) -> None:
        """Cancels the run, at its next checkpoint; a stronger reason replaces a weaker one."""
        current = self.reason_but_lost
        if current is None or PRECEDENCE.index(reason) > PRECEDENCE.index(current):
            self._reason = reason
        self._cancel()

    def lose(self) -> None:
        """Its claim is gone: nothing that it does may be written."""
        self.is_gone = True
        self._cancel()

    def _cancel(self) -> None:
        self._cancelled_at = min(self._cancelled_at, self._clock.current_time())
        self._set_deadlines()
        for scope in (self.scope, *self._extensions):
            scope.cancel(reason=str(self.reason))

    @contextmanager
    def extended(self) -> Iterator[trio.CancelScope]:
        """For a part of the run that is in no task of its scope: a scope to enter, cancelled with the run's."""
        scope = trio.CancelScope(deadline=self._ends_at)
        if self.scope.cancel_called:
            scope.cancel(reason=str(self.reason))
        self._extensions = (*self._extensions, scope)
        try:
            yield scope
        finally:
            self._extensions = tuple(one for one in self._extensions if one is not scope)

    # --- Its clean-ups ---

    @contextmanager
    def cleaning_up(self, seconds: float, timeout: float) -> Iterator[trio.CancelScope]:
        """Shields its body for this many seconds, and no longer than `timeout` after the run is cancelled.

        Also where it is cancelled only later, while the body runs. And never beyond its lease.
        """
        scope = trio.CancelScope(shield=True)
        cleanup = _Cleanup(scope, self._clock.current_time() + seconds, timeout)
        scope.deadline = self._end_of(cleanup)
        with scope:
            self._cleanups = (*self._cleanups, cleanup)
            try:
                yield scope
            finally:
                self._cleanups = tuple(one for one in self._cleanups if one is not cleanup)

    def _end_of(self, cleanup: _Cleanup) -> float:
        return min(cleanup.asked_until, self._shields_end(cleanup.timeout))

    @property
    def _grace_end(self) -> float:
        return self._shields_end(self._terms.cleanup_timeout)

    def _shields_end(self, timeout: float) -> float:
        """Until when at most anything is shielded that may go on for `timeout` seconds after its cancellation."""
        return min(self.cancelled_at + timeout, self._terms.cleaned_up_by(self._sent), self._cleanups_end)

    def end_cleanups(self) -> None:
        """Takes their shields from the clean-ups, those that are under way and those to come."""
        self._cleanups_end = -math.inf
        self._set_deadlines()

    # --- Its end ---

    @property
    def has_ended(self) -> bool:
        """Whether its handler has."""
        return self._grace is not None and self._grace.is_dismissed

    def dismiss(self) -> None:
        """Its handler has ended: what was started there, and goes on elsewhere, is bound by it no more."""
        if self._grace is None:
            self._grace = DISMISSED
        else:
            self._grace.dismiss()

    def ended(self, error: BaseException | None, value: object) -> RunEnd:
        """How it ended, now: with what its handler raised, or returned."""
        now = self._clock.current_time()
        return RunEnd(error, value, self.scope.cancelled_caught, self._reason_at(now), max(0.0, now - self._started))
