"""One run: its cancel scope, its deadlines, and why it was cancelled.

A run ends by itself, or is cancelled at the earliest of these moments, all on trio's clock:

- `lease_deadline`: its claim was not renewed in time. Every renewal moves it, see `lease`. Reason: LOST.
- `deadline`: its time limit is over, or the renewals of its claim end soon (`renewable_until`). Reason: TIMEOUT.
- when something calls `cancel` (USER, SHUTDOWN) or `lose` (LOST).

Its handler is called only if none of these has come, and not after its `start_limit`: `may_begin` is the last look, in
the thread and at the moment of the call. An event loop that was blocked, a thread that had to wait, or a process that
stood still may come to the call long after the claim.

Then its clean-ups, and the answers that it awaits, may go on under shields: for `cleanup_timeout` at most, and never
beyond the end of the lease. Work that no scope can cancel (a thread) is awaited inside `shielded_wait`. A run may have
several such waits at once: a handler in a thread, and the function of its transaction in another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import trio

from ..grace import DISMISSED, Grace
from .demand import ClaimTraits
from .lease import LeaseTerms
from .run_end import PRECEDENCE, CancelReason, RunEnd

ClaimT = TypeVar("ClaimT")

OVERDUE_AFTER: Final = 1.0
"""Seconds from the cancellation of a run until its thread counts as overdue. One that asks now and then has ended."""


@dataclass(slots=True, eq=False)
class _Cleanup:
    """A shield that the handler asked for, until `asked_until`; it may end earlier."""

    scope: trio.CancelScope
    asked_until: float


@dataclass(slots=True, eq=False)
class Block:
    """A part of a run in another task than the run's: `async with claim`, for example.

    Attributes:
        task: That task.
        claim: What it works on.
        scope: Everything of the block happens inside.
        outside: How many nurseries the task had open when it entered the block.
    """

    task: trio.lowlevel.Task
    claim: object
    scope: trio.CancelScope
    outside: int

    def includes(self, nursery: trio.Nursery | None) -> bool:
        """Whether this nursery of the task, or for None what the task does itself, is a part of the block."""
        return nursery is None or nursery in self.task.child_nurseries[self.outside :]


@dataclass(frozen=True, slots=True)
class BlockName:
    """A block, as log lines name it.

    Attributes:
        claim: That of its run.
        group: That of its run.
    """

    claim: object
    group: str

    def __str__(self) -> str:
        return f"the block of {self.claim}"


class Run(Generic[ClaimT]):
    """One execution under a claim. The life of the run is the life of its scope.

    Attributes:
        claim: What is run.
        key, group, is_suspect: Those of its `ClaimTraits`.
        scope: Everything of the handler happens inside.
        abandoned: The engine ended the `shielded_wait` for a thread of this run, which goes on. The source sets it.
        task: The one that it runs in, from its start on.
        thread: The id of the thread in which its handler runs now. The source sets it, in that thread.
        blocks: Those parts of it that are in other tasks; see `extended`.
        claimed_at: When its claim was asked for, on trio's clock.
        is_gone: An answer of the source showed that the claim is free, or another instance's. The reason LOST alone
            does not mean that: a claim that was not renewed in time may still be ours.
        is_settled_early: Its claim was settled while its handler goes on: nothing is left to write.
        is_settling_early: That settlement is on its way, and its outcome unknown.
        parked: How many of its tasks wait for other items, so that it has no slot; see `Runner.park`.
        waits_for: Set while it does nothing but wait: each returns items, in any thread. The source sets it.
        is_releasable: It waits like this, and a drain releases it at once. The source sets it, in any thread.
        has_begun: Its handler, or a middleware around it, was called. The thread that calls it writes this.
        has_broken_engine: The engine crashed by what this run gave it, and must not write its end.
    """

    # An instance may have ten thousand runs: slots keep them small, and what few of them need is made on demand.
    __slots__ = (
        "_awaits_no_thread",
        "_cancelled_at",
        "_cleanups",
        "_cleanups_end",
        "_clock",
        "_ends_at",
        "_grace",
        "_is_past_lease_deadline",
        "_lease_deadline",
        "_reason",
        "_renewal_limit",
        "_sent",
        "_shielded_waits",
        "_start_limit",
        "_started",
        "_terms",
        "_time_limit",
        "abandoned",
        "blocks",
        "claim",
        "claimed_at",
        "group",
        "has_begun",
        "has_broken_engine",
        "is_gone",
        "is_releasable",
        "is_settled_early",
        "is_settling_early",
        "is_suspect",
        "key",
        "parked",
        "scope",
        "task",
        "thread",
        "waits_for",
    )

    def __init__(
        self,
        claim: ClaimT,
        traits: ClaimTraits,
        *,
        terms: LeaseTerms,
        sent: float,
        clock: trio.abc.Clock | None = None,
        now: float | None = None,
    ) -> None:
        """`sent` is when the claim was asked for, on trio's clock; `clock` is that clock, and `now` its moment."""
        self.claim = claim
        self.key = traits.key
        self.group = traits.group
        self.is_suspect = traits.is_suspect
        self.abandoned = False
        self.task: trio.lowlevel.Task | None = None
        self.thread: int | None = None
        self.is_gone = False
        self.is_settled_early = False
        self.is_settling_early = False
        self.parked = 0
        self.waits_for: tuple[Callable[[], Collection[Hashable]], ...] = ()
        self.is_releasable = False
        self.has_begun = False
        self.has_broken_engine = False
        # The clocks of the limits are all trio's: no wall clock decides about a run.
        self._start_limit = traits.start_limit
        self._is_past_lease_deadline = False
        self._terms = terms
        self._reason: CancelReason | None = None
        self._cancelled_at = math.inf
        # Tuples: most handlers have none of these, and the empty tuple takes no memory.
        self._cleanups: tuple[_Cleanup, ...] = ()
        self.blocks: tuple[Block, ...] = ()
        self._shielded_waits: tuple[trio.CancelScope, ...] = ()
        self._awaits_no_thread = False
        # Plain handlers ask for the reason from their threads, where trio.current_time() refuses to answer.
        self._clock = clock = clock or trio.lowlevel.current_clock()
        self._started = started = clock.current_time() if now is None else now
        # The limits, and not the moments at which they end: all runs share these two numbers.
        self._time_limit = traits.time_limit
        self._renewal_limit = traits.renewal_limit
        self.claimed_at = self._sent = sent
        self._lease_deadline = lease_deadline = terms.lease_deadline(sent)
        # One number for all deadlines: trio's scope has one, and `reason_at` compares with it first. As in `_new_ends`,
        # without its calls.
        renewals_end = sent + traits.renewal_limit - terms.cleanup_timeout
        self._ends_at = min(started + traits.time_limit, renewals_end, lease_deadline)
        self._cleanups_end = math.inf
        self.scope = trio.CancelScope(deadline=self._ends_at)
        self._grace: Grace | None = None

    @contextmanager
    def shielded_wait(self) -> Iterator[trio.CancelScope]:
        """Goes around a wait for a thread, which cannot be cancelled: shields that wait until the engine abandons it,
        shortly before the hard end (see the timeline in `shutdown`).
        """
        scope = trio.CancelScope(shield=True)
        self._shielded_waits = (*self._shielded_waits, scope)
        if self._awaits_no_thread:
            self.abandon_threads()
        try:
            with scope:
                yield scope
        finally:
            self._shielded_waits = tuple(one for one in self._shielded_waits if one is not scope)

    def abandon_threads(self) -> None:
        """Ends the waits for its threads: those under way, and those to come."""
        # Before the scopes: a wait that begins in between finds the flag, and ends at once.
        self._awaits_no_thread = True
        for scope in self._shielded_waits:
            scope.cancel(reason="the scheduler's hard end")

    @property
    def grace(self) -> Grace:
        """How long a cancelled run still awaits the answer to what it sent to the database: as long as a clean-up."""
        if self._grace is None:
            self._grace = Grace(self._shields_end)
        return self._grace

    # --- Its deadlines ---

    @property
    def deadline(self) -> float:
        """When it is cancelled for taking too long, on trio's clock; infinity for never. The lease does not count."""
        # The heartbeat renews the claim until the clean-up is over.
        return min(self._started + self._time_limit, self.renewable_until - self._terms.cleanup_timeout)

    @property
    def seconds_until_cancelled(self) -> float:
        """Until its deadlines cancel it; negative afterwards. May be asked for in any thread."""
        return self._ends_at - self._clock.current_time()

    @property
    def now(self) -> float:
        """The moment on trio's clock. May be asked for in any thread."""
        return self._clock.current_time()

    @property
    def duration(self) -> float:
        return max(0.0, self._clock.current_time() - self._started)

    def park(self, time_limit: float) -> None:
        """Note that one more task waits; raise the time limit to `time_limit`, infinity if only renewals limit it."""
        self.parked += 1
        if time_limit > self._time_limit:
            self._time_limit = time_limit
            self._new_ends()

    def unpark(self) -> None:
        """Note that one of those waits is over."""
        # Before the run counts as unparked: its deadline may have ended the wait.
        self._reason_except_lost_at(self._clock.current_time())
        self.parked -= 1

    def wait_to_begin(self) -> None:
        """Its handler waits before the work: its time limit does not run until `begin`."""
        self._started = math.inf
        self._new_ends()

    def begins_at(self, moment: float) -> None:
        """Count its time limit from that moment, for which `begin` is called soon. From any thread."""
        self._started = moment

    def begin(self, moment: float | None = None) -> None:
        """Its time limit runs from now on, or from that moment."""
        self._started = self._clock.current_time() if moment is None else moment
        self._new_ends()
        if self.scope.cancel_called and self.reason is None:
            # The time limit, counted from the call, cancelled it before this could move the deadline.
            self.cancel(CancelReason.SHUTDOWN)  # As in `never_began`: that must not count as a failed attempt.

    def may_begin(self) -> bool:
        """The last look before its handler is called, by the thread that calls it: whether it may be.

        If not, the caller raises NotBegun. A plain handler inside of async middleware is a second call: the run has
        begun by then, and only its cancellation counts.
        """
        now = self._clock.current_time()
        if self.reason_at(now) is not None or (now >= self._start_limit and not self.has_begun):
            return False
        # In the thread that calls the handler, with nothing in between: from here on the end of the run counts.
        self.has_begun = True
        return True

    def may_start_at(self, now: float) -> bool:
        """Whether its handler, which was not called yet, may be called at that moment on trio's clock, which is now."""
        return now < self._start_limit and self.reason_at(now) is None

    def never_began(self) -> None:
        """It was cancelled while its handler waited to be called, on another loop that did not answer.

        Its time limit may have cancelled it, but its handler took no time: that must not count as a failed attempt.
        """
        if self.reason_except_lost is CancelReason.TIMEOUT:
            self._reason = CancelReason.SHUTDOWN  # The source releases what a shutdown has cut short.

    @property
    def renew_by(self) -> float:
        """When a renewal must be sent, on trio's clock, so that its answer is there well before the lease deadline."""
        return self._terms.renew_by(self._sent)

    @property
    def lacks_renewal(self) -> bool:
        """Whether an outage of the renewals leaves less than half an interval until `renew_by`."""
        return self.renew_by - self._clock.current_time() < self._terms.heartbeat_interval / 2

    @property
    def renewable_until(self) -> float:
        """When the heartbeat stops renewing its claim, on trio's clock; see `ClaimTraits.renewal_limit`."""
        return self.claimed_at + self._renewal_limit

    @property
    def is_renewable(self) -> bool:
        """Whether the heartbeat still renews its claim."""
        return self._clock.current_time() < self.renewable_until

    def renewed(self, sent: float) -> None:
        """Its claim was renewed, by a renewal that was sent at that moment."""
        # Without this, an answer that comes late would move the deadline at which the run was cancelled already: the
        # run would have no reason any more, and its clean-up more time than it may take.
        if self.reason is not CancelReason.LOST:
            # The greatest: two renewals may overlap, and the answer to the older one may come last.
            self._sent = max(self._sent, sent)
            self._lease_deadline = self._terms.lease_deadline(self._sent)
            self._new_ends()

    def outlive_lease(self) -> None:
        """Its claim is settled: its handler may go on for as long as it may run, and no lease binds it any more."""
        # The answer to the settlement may come after the lease deadline has cancelled the run. Without this, the run
        # would have no reason any more, and its clean-up no end.
        if self.reason is not None:
            self._cancelled_at = self.cancelled_at
        # No clean-up and no wait for an answer is clipped to the lease any more (see `_shields_end`).
        self._sent = self._lease_deadline = math.inf
        self._new_ends()

    def _new_ends(self) -> None:
        self._ends_at = min(self.deadline, self._lease_deadline)
        self._set_deadlines()

    def _set_deadlines(self) -> None:
        self.scope.deadline = self._ends_at
        for block in self.blocks:
            block.scope.deadline = self._ends_at
        for cleanup in self._cleanups:
            cleanup.scope.deadline = self._end_of(cleanup)
        if self._grace is not None:
            self._grace.end_at(self._shields_end)

    @property
    def lease_deadline(self) -> float:
        """When it is, or was, cancelled because its claim was not renewed, on trio's clock (self-fencing)."""
        return self._lease_deadline

    # --- Its cancellation ---

    @property
    def cancelled_at(self) -> float:
        """When it was cancelled, or will be by its deadlines; on trio's clock."""
        return min(self._cancelled_at, self._ends_at)

    @property
    def reason(self) -> CancelReason | None:
        """Why the run is cancelled; None while it is not.

        Our own record: of several cancellations of one scope, trio keeps the first reason only.
        """
        return self.reason_at(self._clock.current_time())

    def reason_at(self, now: float) -> CancelReason | None:
        """Why it is cancelled at that moment on trio's clock, which is now; see `reason`."""
        if now < self._ends_at and self._reason is None and not (self.is_gone or self._is_past_lease_deadline):
            return None  # First, because every run is asked several times, and this is nearly always the answer.
        # Remembered, for `outlive_lease` lifts the deadline.
        self._is_past_lease_deadline = self._is_past_lease_deadline or now >= self._lease_deadline
        if self.is_gone or self._is_past_lease_deadline:
            return CancelReason.LOST
        return self._reason_except_lost_at(now)

    @property
    def reason_except_lost(self) -> CancelReason | None:
        """Why it was cancelled, LOST left aside. It decides what the end means if the claim is still ours after all."""
        return self._reason_except_lost_at(self._clock.current_time())

    def _reason_except_lost_at(self, now: float) -> CancelReason | None:
        # Report TIMEOUT only if the time limit came before the lease deadline; the earlier of the two cancelled the
        # scope.
        if self._reason is None and self.deadline <= min(now, self._lease_deadline):
            # A parked run whose renewals end has not exceeded its own limit: it is released, and its next run goes on.
            is_handed_over = self.parked and now < self._started + self._time_limit
            self._reason = CancelReason.SHUTDOWN if is_handed_over else CancelReason.TIMEOUT
        # `begins_at` has moved the deadline, and the scope has ended by the old one: `begin` comes too late.
        if self._reason is None and self._ends_at <= now and self._ends_at < min(self.deadline, self._lease_deadline):
            return CancelReason.SHUTDOWN
        return self._reason

    def cancel(self, reason: CancelReason) -> None:
        """Cancels the run, at its next checkpoint; a stronger reason replaces a weaker one."""
        # A user's request outranks a shutdown: the job must end as cancelled, and not be released to run again.
        current = self.reason_except_lost
        if current is None or PRECEDENCE.index(reason) > PRECEDENCE.index(current):
            self._reason = reason
        self._cancel()

    def lose(self) -> None:
        """Its claim is gone: cancels the run, and nothing of it may be written."""
        # First: `_cancel` reads the reason, and nothing of this run may be written from now on.
        self.is_gone = True
        self._cancel()

    def _cancel(self) -> None:
        self._cancelled_at = min(self._cancelled_at, self._clock.current_time())
        self._set_deadlines()
        for scope in (self.scope, *(block.scope for block in self.blocks)):
            scope.cancel(reason=str(self.reason))

    @contextmanager
    def extended(self) -> Iterator[trio.CancelScope]:
        """Cancel the body with the run. For a part of the run in a task outside the run's scope."""
        scope = trio.CancelScope(deadline=self._ends_at)
        if self.scope.cancel_called:
            scope.cancel(reason=str(self.reason))
        task = trio.lowlevel.current_task()
        block = Block(task, self.claim, scope, len(task.child_nurseries))
        self.blocks = (*self.blocks, block)
        try:
            with scope:
                yield scope
        finally:
            self.blocks = tuple(one for one in self.blocks if one is not block)

    @property
    def is_overdue_in_thread(self) -> bool:
        """Whether it was cancelled, but its thread goes on and holds its slot. May be asked for in any thread."""
        return self.thread is not None and self._clock.current_time() - self.cancelled_at >= OVERDUE_AFTER

    # --- Its clean-ups ---

    @contextmanager
    def cleaning_up(self, seconds: float) -> Iterator[trio.CancelScope]:
        """Shields its body for `seconds`, until `cleanup_timeout` after the cancellation at most, and within the lease.

        The run may already be cancelled, or be cancelled while the body runs.
        """
        scope = trio.CancelScope(shield=True)
        cleanup = _Cleanup(scope, self._clock.current_time() + seconds)
        scope.deadline = self._end_of(cleanup)
        with scope:
            self._cleanups = (*self._cleanups, cleanup)
            try:
                yield scope
            finally:
                self._cleanups = tuple(one for one in self._cleanups if one is not cleanup)

    def _end_of(self, cleanup: _Cleanup) -> float:
        return min(cleanup.asked_until, self._shields_end)

    @property
    def seconds_left(self) -> float:
        """How much longer its answers are awaited, as things stand. From any thread.

        Infinity after its end, which does not limit the tasks that it started and that go on elsewhere.
        """
        return math.inf if self.has_ended else self._shields_end - self._clock.current_time()

    @property
    def _shields_end(self) -> float:
        """When a clean-up, or the wait for an answer, ends at the latest."""
        # Clipped to the lease: the next holder may start right after it, and must not meet this clean-up.
        by_timeout = self.cancelled_at + self._terms.cleanup_timeout
        return min(by_timeout, self._terms.cleaned_up_by(self._sent), self._cleanups_end)

    def end_cleanups(self) -> None:
        """Ends the shields of all clean-ups, of those under way and of those to come."""
        self._cleanups_end = -math.inf
        self._set_deadlines()

    # --- Its end ---

    @property
    def has_ended(self) -> bool:
        """Whether its handler has ended."""
        # Its grace records that: one attribute less in each of ten thousand runs.
        return self._grace is not None and self._grace.is_dismissed

    def dismiss(self) -> None:
        """Its handler has ended. Tasks that it started, and that go on elsewhere, no longer wait by its deadlines."""
        if self._grace is None:
            self._grace = DISMISSED
        else:
            self._grace.dismiss()

    def ended(self, error: BaseException | None, value: object) -> RunEnd:
        """How it ended, if its handler ends now with what it raised, or returned."""
        now = self._clock.current_time()
        duration = max(0.0, now - self._started)
        return RunEnd(
            error, value, self.scope.cancelled_caught, self.reason_at(now), duration, has_begun=self.has_begun
        )

    def __str__(self) -> str:
        """As log lines name it."""
        return f"the handler of {self.claim}"
