"""Follows the stream of hints: opens it, opens it again after a failure, and passes each hint on.

A hint is never proof: it says where to look, or which claims to renew now. So a stream that is late or misses something
costs time (until the next poll or heartbeat), and breaks nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

from .claimer import Claimer
from .demand import Hints, StreamFailedError
from .heartbeat import Heartbeat
from .observer import LoopObserver
from .progress import Progress
from .run_end import CancelReason
from .source import HintStream
from .waker import Waker

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")

FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 30.0
"""Seconds between two attempts to open a broken stream: doubled from the first to the longest, without an end."""

FAILURES_TO_REPORT: Final = 3
"""After this many failures in a row, the observer reports the fallback to polling."""

# Seconds from an answer with hints to the next question: the hints of that time share one answer and one look. Not a
# debounce: no hint delays the next question.
PACE: Final = 0.01

# After an answer with a single new item, which costs no look. With PACE, an item that comes five milliseconds after
# another would wait for five more.
PACE_OF_ONE: Final = 0.002

# While more is due than can start, nothing needs hints about new items, and each claim and each settlement would wake a
# wait that is open on the server. So the watcher then asks at this interval, without a wait: a request to cancel
# arrives within that time.
PACE_BEHIND: Final = 0.02

# Seconds that the server waits for a change. Long only if there was none during the short wait: once a wait has begun,
# it cannot be made shorter when a backlog appears.
SHORT_WAIT: Final = 0.1
LONG_WAIT: Final = math.inf

# Seconds that a request to cancel waits for the claims in flight: one of them may be the claim that it concerns.
CLAIM_TIMEOUT: Final = 1.0

# Seconds to end the wait for hints at the end of the engine. Well before its hard end.
LEAVING_TIMEOUT: Final = 0.5


class Watcher(Generic[ClaimT, SettlementT]):
    """The loop over the stream. While the stream is open, polls are rare."""

    def __init__(
        self,
        stream: HintStream[ClaimT],
        observer: LoopObserver,
        heartbeat: Heartbeat[ClaimT, SettlementT],
        claimer: Claimer[ClaimT, SettlementT],
        waker: Waker,
        *,
        poll_interval: float,
        safety_poll_interval: float,
    ) -> None:
        self.progress = Progress("watcher")
        self._stream = stream
        self._observer = observer
        self._heartbeat = heartbeat
        self._claimer = claimer
        self._waker = waker
        self._poll_interval = poll_interval
        self._safety_poll_interval = safety_poll_interval
        self._failures = 0
        self._is_waiting = False
        self._ending = trio.Event()
        self._ended = trio.Event()

    async def run(self) -> None:
        """Returns when the end was asked for, or if the server offers no stream."""
        try:
            while not self._ending.is_set():
                try:
                    opened_at = trio.current_time()
                    self.progress.ask()
                    await self._stream.open()
                    self.progress.answered()
                    await self._follow()
                    # Without this, a stream that opens and ends again and again makes this a busy loop.
                    with trio.move_on_at(opened_at + FIRST_DELAY):
                        await self._ending.wait()
                except StreamFailedError as failure:
                    if failure.is_final:
                        self._observer.stream_fallback(failure.error)
                        return
                    await self._failed(failure)
        finally:
            self._ended.set()

    async def end(self) -> None:
        """Ends the loop, and the wait in a thread that it may be in. Takes `LEAVING_TIMEOUT` at most."""
        self._ending.set()
        with trio.move_on_after(LEAVING_TIMEOUT):
            if self._is_waiting:
                try:
                    await self._stream.end_wait()
                except StreamFailedError:
                    return  # Nothing else ends that wait. The engine cancels its services next, and so this loop.
            await self._ended.wait()

    async def _follow(self) -> None:
        self._observer.stream_connected()
        # The stream does not report what happened before it was open. This looks for new items, and the renewal of all
        # claims finds requests to cancel.
        self._waker.poll_every(self._safety_poll_interval, hears_others=True)
        try:
            await self._pass_on(Hints(is_cancel_requested=lambda _: True))
            nothing: Hints[ClaimT] = Hints()
            wait = SHORT_WAIT
            while not self._ending.is_set():
                hints = await self._next(wait)
                self.progress.answered()
                # Here, and not when it was opened: without this, a stream that breaks at its first answer again and
                # again would be opened each second, and never be reported.
                self._failures = 0
                await self._pass_on(hints)
                if hints.ended:
                    return
                if hints != nothing:
                    await trio.sleep(PACE if hints.item is None else PACE_OF_ONE)
                wait = await self._until_next(SHORT_WAIT if hints != nothing else LONG_WAIT)
        finally:
            self._observer.stream_closed()
            # At the end nothing more is claimed, and no poll is needed.
            if not self._ending.is_set():
                self._waker.poll_every(self._poll_interval)
            await self._stream.close()

    async def _next(self, wait: float) -> Hints[ClaimT]:
        self._is_waiting = True
        try:
            return await self._stream.next(wait)
        finally:
            self._is_waiting = False

    async def _until_next(self, wait: float) -> float:
        """Returns when it is time to ask next, with the number of seconds that the server shall wait for a change."""
        if not self._claimer.is_behind:
            return wait
        with trio.move_on_after(PACE_BEHIND):
            # Without this, the first item after a backlog would wait for the rest of the interval.
            await self._claimer.wait_caught_up()
            return SHORT_WAIT
        return 0.0

    async def _pass_on(self, hints: Hints[ClaimT]) -> None:
        # If one item is due now and others are due later, `expect` only wakes the claimer for the first. `look` also
        # asks when the next one is due.
        if hints.look or hints.due <= trio.current_time() < hints.last_due:
            self._waker.look()
        if hints.due < math.inf:
            self._waker.expect(hints.due, hints.item)
        if hints.is_cancel_requested is not None:
            # The hint only says which claims to renew now: the renewal finds the request. If it fails, the next
            # heartbeat finds it.
            await self._find_requests(hints.is_cancel_requested)
            # A claim in flight may be the one that the user asked to cancel. The renewal above does not have it yet,
            # and its own answer may be older than the request. Without this, the run would go on until the next
            # heartbeat.
            if self._claimer.is_claiming:
                with trio.move_on_after(CLAIM_TIMEOUT):
                    await self._claimer.wait_claimed()
                await self._find_requests(hints.is_cancel_requested)

    async def _find_requests(self, concerns: Callable[[ClaimT], bool]) -> None:
        # Renewed first: a run that begins its transaction during this renewal is among the paused ones then.
        await self._heartbeat.renew(self.progress, concerns)
        # A claim that is being settled in a transaction: a renewal would conflict with that.
        if runs := self._heartbeat.paused(concerns):
            requested = await self._stream.cancel_requested([run.claim for run in runs])
            # Only those that are still in it: the others were settled meanwhile, and their handlers may go on; or the
            # transaction has failed, and the next renewal finds the request.
            paused = self._heartbeat.paused(concerns)
            for run, is_requested in zip(runs, requested, strict=True):
                if is_requested and run in paused:
                    run.cancel(CancelReason.USER)

    async def _failed(self, failure: StreamFailedError) -> None:
        self._failures += 1
        self.progress.fail(failure.error)
        if self._failures == 1:
            self._observer.stream_failed(failure.error)
        if self._failures == FAILURES_TO_REPORT:
            self._observer.stream_fallback(failure.error)
        with trio.move_on_after(min(FIRST_DELAY * 2 ** min(self._failures - 1, 10), LONGEST_DELAY)):
            await self._ending.wait()
