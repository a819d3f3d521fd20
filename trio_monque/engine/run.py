"""One run: its cancel scope, its deadline, and why it was cancelled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

import trio

ClaimT = TypeVar("ClaimT")


class CancelReason(StrEnum):
    """Why a run is cancelled."""

    LOST = "lost"
    """The claim is gone: nothing that the run does may be written."""
    USER = "user"
    """Somebody asked for it."""
    TIMEOUT = "timeout"
    """It took longer than it may."""
    SHUTDOWN = "shutdown"
    """The scheduler leaves."""


_PRECEDENCE: Final = (CancelReason.SHUTDOWN, CancelReason.TIMEOUT, CancelReason.USER, CancelReason.LOST)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended.

    Attributes:
        error: What the handler raised; None where it returned, or was cancelled and raised nothing else.
        value: What it returned.
        cancelled: Whether the cancellation ended it; a handler may also have returned or raised in spite of one.
        reason: Why it was cancelled, if it was.
        duration: Seconds.
    """

    error: BaseException | None
    value: object
    cancelled: bool
    reason: CancelReason | None
    duration: float


class Run(Generic[ClaimT]):
    """One execution under a claim. The life of the run is the life of its scope.

    Attributes:
        claim: What is run.
        scope: Everything of the handler happens inside.
        patience: Goes around a wait for a thread, which cannot be cancelled: shields that wait until the
            engine's patience ends.
        abandoned: The engine's patience ended before the thread did.
    """

    def __init__(self, claim: ClaimT, time_limit: float) -> None:
        self.claim = claim
        self.scope = trio.CancelScope()
        self.patience = trio.CancelScope(shield=True)
        self.abandoned = False
        self._reason: CancelReason | None = None
        self._cancelled_at = math.inf
        self._cleanups: dict[trio.CancelScope, float] = {}
        self._cleanups_end = math.inf
        # Plain handlers ask for the reason from their threads, where trio.current_time() refuses to answer.
        self._clock = trio.lowlevel.current_clock()
        self._started = self._clock.current_time()
        self.scope.deadline = self._started + time_limit

    @property
    def deadline(self) -> float:
        """On trio's clock; infinity for none."""
        return self.scope.deadline

    @property
    def cancelled_at(self) -> float:
        """When it was cancelled, or will be for taking too long; on trio's clock, infinity for never."""
        return min(self._cancelled_at, self.scope.deadline)

    @property
    def duration(self) -> float:
        return self._clock.current_time() - self._started

    @property
    def reason(self) -> CancelReason | None:
        """Why the run is cancelled; None while it is not.

        Ours, and not the scope's: with several cancellations, trio keeps the first reason.
        """
        if self._reason is None and self.scope.deadline <= self._clock.current_time():
            return CancelReason.TIMEOUT
        return self._reason

    def cancel(self, reason: CancelReason) -> None:
        """Cancels the run, at its next checkpoint; a stronger reason replaces a weaker one."""
        current = self.reason
        if current is None or _PRECEDENCE.index(reason) > _PRECEDENCE.index(current):
            self._reason = reason
        self._cancelled_at = min(self._cancelled_at, self._clock.current_time())
        for cleanup, timeout in self._cleanups.items():
            cleanup.deadline = min(cleanup.deadline, self.cancelled_at + timeout)
        self.scope.cancel(reason=str(reason))

    @contextmanager
    def cleaning_up(self, seconds: float, timeout: float) -> Iterator[trio.CancelScope]:
        """Shields its body for so many seconds, and no longer than `timeout` after the run is cancelled.

        Also where it is cancelled only later, while the body runs.
        """
        deadline = min(self._clock.current_time() + seconds, self.cancelled_at + timeout, self._cleanups_end)
        with trio.CancelScope(shield=True, deadline=deadline) as scope:
            self._cleanups[scope] = timeout
            try:
                yield scope
            finally:
                del self._cleanups[scope]

    def end_cleanups(self) -> None:
        """Takes their shields from the clean-ups, those that are under way and those to come."""
        self._cleanups_end = -math.inf
        for cleanup in self._cleanups:
            cleanup.cancel(reason="nothing is cleaned up any more")

    def end_unsettled(self) -> RunEnd:
        """The end of a run whose real one could not be written: as if it had been cut short."""
        return RunEnd(None, None, cancelled=True, reason=CancelReason.SHUTDOWN, duration=self.duration)
