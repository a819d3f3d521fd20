"""How async code calls the database: threads, their limiters, and what cancellation means.

pymongo blocks, so each call runs in a thread. Renewals and settlements pass through a limiter of their
own: behind two hundred enqueuing tasks on a shared one, a renewal waits for more than a second.

A thread cannot be cancelled, and the database may have done what it asked. So a cancelled caller still waits for the
answer, for a limited time: its grace (`grace.py`).
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

import anyio
import anyio.lowlevel
import trio

from ...error_types import MonqueConnectionError
from ...grace import OWNERS, Grace, GraceOwner, grace_of_task, grace_owner_of_context
from ...threads_and_frozen_time import FreezingLimiter, Limiter, call_in_thread, starting_thread, work_unawaited

T = TypeVar("T")


class Channel(Enum):
    """Who is calling. The value is how many calls of the kind may be under way at once, for each client."""

    COMMANDS = 10
    CLAIMS = 2
    RENEWALS = 3  # And settlements: what must not wait behind anything else.
    TRANSACTIONS = 4  # Each takes as long as a function of a handler, so they have threads of their own.
    WATCH = 1  # The change stream. It waits for writes of other programs, so virtual time does not wait for it.


CONNECTIONS_NEEDED = sum(channel.value for channel in Channel) + 1  # One to spare, for the driver's own.


class DatabaseThreads:
    """Runs store functions in threads, on trio or on any other anyio backend.

    Any number of event loops may share one object: each loop has limiters of its own.

    Attributes:
        grace: For calls of tasks that belong to no run.
    """

    def __init__(self) -> None:
        self.grace = Grace()
        self._limiters: dict[Channel, anyio.lowlevel.RunVar[object]] = {
            channel: anyio.lowlevel.RunVar(f"monque_{channel.name}") for channel in Channel
        }

    async def call(
        self,
        function: Callable[[], T],
        *,
        channel: Channel = Channel.COMMANDS,
        abandon_on_cancel: bool = False,
    ) -> T:
        """Call `function` in a thread; return or raise what it returns or raises.

        If the caller is cancelled before its turn, nothing is called. Once the thread runs, a cancelled caller waits
        for it until its grace ends; with `abandon_on_cancel`, it does not wait. The thread then goes on by itself.

        Raises:
            MonqueConnectionError: With an unknown outcome: the caller's grace ended although it was
                shielded from cancellation.
        """
        if not trio.lowlevel.in_trio_task():
            owner = grace_owner_of_context() or self.grace
            return await _awaited_although_cancelled(function, self._asyncio_limiter(channel), owner)
        limiter = self._trio_limiter(channel)
        if abandon_on_cancel:
            return await call_in_thread(function, limiter=limiter, abandon_on_cancel=True)
        # Wait for the thread although cancelled, within the grace of the calling run, or else of these threads.
        grace = (grace_of_task() if OWNERS else None) or self.grace
        sent = _Sent(limiter, grace)
        # As `Grace.waiting` and `Grace.shield` do, without their calls: every call of a client passes here.
        sent.scope.deadline = grace.until
        grace.scopes[sent.scope] = None
        try:
            with sent.scope:
                return await call_in_thread(function, limiter=sent, abandon_on_cancel=True)
        finally:
            del grace.scopes[sent.scope]
        await trio.lowlevel.checkpoint_if_cancelled()
        raise _ended_first(unknown_outcome=sent.is_sent)

    async def hand_over(self, function: Callable[[], T], orphan: Callable[[T | None], None], *, channel: Channel) -> T:
        """Like `call`, for what the database grants: if cancelled, the wait ends, and `orphan` gets what came too late.

        `orphan` gets None if the call failed: then it is not known what the database has granted.

        Exactly one side owns the result. Checking for cancellation after the call would leave a moment
        between the check and the delivery, in which a granted claim is stranded. Only on trio.
        """
        handoff = Handoff(function, orphan)
        try:
            return await self.call(handoff.produce, channel=channel, abandon_on_cancel=True)
        except trio.Cancelled:
            handoff.abandon()
            raise

    def _trio_limiter(self, channel: Channel) -> Limiter:
        limiter = self._limiters[channel].get(None)
        if limiter is None:
            made = trio.CapacityLimiter if channel is Channel.WATCH else FreezingLimiter
            limiter = made(channel.value)
            self._limiters[channel].set(limiter)
        return cast("Limiter", limiter)

    def _asyncio_limiter(self, channel: Channel) -> asyncio.Semaphore:
        limiter = self._limiters[channel].get(None)
        if limiter is None:
            # Not a CapacityLimiter: its token is for the thread, not for the task. If the task is cancelled natively
            # while it acquires such a token, most versions of anyio lose it, or do not wake the next one.
            limiter = asyncio.Semaphore(channel.value)
            self._limiters[channel].set(limiter)
        return cast("asyncio.Semaphore", limiter)


LONGEST_WAIT: Final = 0.5
"""Seconds after which a wait on asyncio asks again how long it may last: a renewal or a cancellation moves that."""


async def _awaited_although_cancelled(function: Callable[[], T], limiter: asyncio.Semaphore, owner: GraceOwner) -> T:
    """On asyncio a task can be cancelled natively, past every anyio shield: wait for the thread all the same.

    The cancellation is delivered when the thread has ended, and what the thread returned is lost then. In a handler the
    wait ends with the grace of its run, which is before its lease ends: another instance may run the job then.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()
    await limiter.acquire()
    cancelled: asyncio.CancelledError | None = None
    call = asyncio.ensure_future(_in_anyio_thread(function))
    # Not when this wait ends: the thread may go on after it.
    call.add_done_callback(partial(_thread_ended, limiter))
    with anyio.CancelScope(shield=True):
        while not call.done() and (left := owner.seconds_left) > 0:
            try:
                # By the clock, and in short waits: the cancellation of the run does not pass the shield.
                await asyncio.wait([call], timeout=min(left, LONGEST_WAIT))
            except asyncio.CancelledError as error:
                cancelled = error
    if call.done() and cancelled is None:
        return call.result()
    if cancelled is not None:
        raise cancelled
    await anyio.lowlevel.checkpoint_if_cancelled()
    raise _ended_first(unknown_outcome=True)


def _thread_ended(limiter: asyncio.Semaphore, call: asyncio.Future[Any]) -> None:
    limiter.release()
    if not call.cancelled():
        call.exception()  # Retrieved: its caller may wait no longer, and asyncio would log that it was not.


def _ended_first(*, unknown_outcome: bool) -> MonqueConnectionError:
    return MonqueConnectionError(
        "the run has ended before the database answered", transient=True, unknown_outcome=unknown_outcome
    )


async def _in_anyio_thread(function: Callable[[], T]) -> T:
    unlimited = anyio.CapacityLimiter(math.inf)  # The caller has limited us already.
    with starting_thread(function) as started:
        return await anyio.to_thread.run_sync(started, limiter=unlimited)


class _Sent:
    """A limiter for one call. Once its turn has come, the call is sent, and cancellation waits for the answer."""

    def __init__(self, limiter: Limiter, grace: Grace) -> None:
        self.scope = trio.CancelScope()
        self.is_sent = False
        self._limiter = limiter
        self._grace = grace

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self._limiter.acquire_on_behalf_of(borrower)
        self.is_sent = True
        self.scope.shield = not self._grace.is_over

    def release_on_behalf_of(self, borrower: object) -> None:
        self._limiter.release_on_behalf_of(borrower)


class _State(Enum):
    RUNNING = "running"
    DELIVERED = "delivered"
    ABANDONED = "abandoned"


@dataclass
class Handoff(Generic[T]):
    """One result, two possible owners; the lock decides. The thread produces, the task may abandon.

    Attributes:
        results: The delivered result, which may be None; empty before that.
    """

    function: Callable[[], T]
    orphan: Callable[[T | None], None]
    lock: threading.Lock = field(default_factory=threading.Lock)
    state: _State = _State.RUNNING
    results: list[T | None] = field(default_factory=list)

    def produce(self) -> T:
        try:
            result = self.function()
        except BaseException:
            # The task gets the error and finds out what became of the call, if it still waits.
            if not self._delivers(None):
                self.orphan(None)
            raise
        if not self._delivers(result):
            self.orphan(result)
        return result

    def _delivers(self, result: T | None) -> bool:
        with self.lock:
            if self.state is not _State.RUNNING:
                return False
            self.state = _State.DELIVERED
            self.results.append(result)
            return True

    def abandon(self) -> None:
        """Give up the result: the waiting task was cancelled. The thread gives it back, or this call if it is there."""
        with self.lock:
            if self.state is _State.RUNNING:
                self.state = _State.ABANDONED
                return
        # The thread had delivered the result, and the cancelled task did not take it.
        for result in self.results:
            work_unawaited(partial(self.orphan, result))  # If the orphan cannot give it back, the lease expires.
