"""Follows the stream of hints: opens it, opens it again, and passes on what it tells."""

from __future__ import annotations

import math
from typing import Final, Generic, TypeVar

import trio

from .claimer import Claimer
from .demand import Hints, StreamFailedError
from .heartbeat import renew
from .observer import LoopObserver
from .progress import Progress
from .runner import Runner
from .source import HintStream, RenewalSource
from .waker import Waker

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")

FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 30.0
"""Seconds between two attempts while the stream is broken: doubled from the first to the longest; it never gives up."""

FAILURES_TO_TELL: Final = 3
"""After this many failures in a row, the observer reports the fallback to polling."""

# A second answer is asked for so much later than the last one came: what happens meanwhile shares it, and one look.
# Not a debounce: nothing that happens puts the next answer off.
PACE: Final = 0.01

# After a single new item, which costs no look: at 200 a second, each would wait five milliseconds for the one before.
PACE_OF_ONE: Final = 0.002

# While more is due than can start, hints about more are not needed, and each claim and each settlement would wake a
# wait that is open on the server, for nothing. So the stream is asked at this interval, without a wait: a request to
# end, which matters then as ever, is heard within that time.
PACE_BEHIND: Final = 0.02

# How many seconds the server waits for a change. Long only if there was none during the short wait: a wait
# that has begun cannot be made shorter once the answer shows a backlog.
SHORT_WAIT: Final = 0.1
LONG_WAIT: Final = math.inf

# Seconds that a request to end waits for a claim in flight, which may be the one that it concerns.
CLAIM_TIMEOUT: Final = 1.0

# Seconds to get out of the wait for hints when the end has come. Well within the engine's hard bound.
LEAVING_TIMEOUT: Final = 0.5


class Watcher(Generic[ClaimT, SettlementT]):
    """The loop over the stream; and while that is up, polls are rare."""

    def __init__(
        self,
        stream: HintStream[ClaimT],
        source: RenewalSource[ClaimT],
        observer: LoopObserver,
        runner: Runner[ClaimT, SettlementT],
        claimer: Claimer[ClaimT, SettlementT],
        waker: Waker,
        *,
        poll_interval: float,
        safety_poll_interval: float,
    ) -> None:
        self.progress = Progress("watcher")
        self._stream = stream
        self._source = source
        self._observer = observer
        self._runner = runner
        self._claimer = claimer
        self._waker = waker
        self._poll_interval = poll_interval
        self._safety_poll_interval = safety_poll_interval
        self._failures = 0
        self._is_waiting = False
        self._ending = trio.Event()
        self._ended = trio.Event()

    async def run(self) -> None:
        """Returns when the end was asked for, or where there is no stream to be had."""
        try:
            while not self._ending.is_set():
                try:
                    opened_at = trio.current_time()
                    self.progress.ask()
                    await self._stream.open()
                    self.progress.answered()
                    await self._follow()
                    # Whatever ends it again and again must not make a busy loop of this one.
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
        """Ends the loop, and the wait in a thread that it may be in; bounded."""
        self._ending.set()
        with trio.move_on_after(LEAVING_TIMEOUT):
            if self._is_waiting:
                try:
                    await self._stream.end_wait()
                except StreamFailedError:
                    return
            await self._ended.wait()

    async def _follow(self) -> None:
        self._observer.stream_connected()
        # The stream does not report what happened before it was open: this looks for it; and then for requests.
        self._waker.poll_every(self._safety_poll_interval, hears_others=True)
        try:
            await self._pass_on(Hints(is_asked_to_end=lambda _: True))
            nothing: Hints[ClaimT] = Hints()
            wait = SHORT_WAIT
            while not self._ending.is_set():
                hints = await self._next(wait)
                self.progress.answered()
                # Not already when it was opened: one that breaks at the first answer, again and again, is not up.
                self._failures = 0
                await self._pass_on(hints)
                if hints.ended:
                    return
                if hints != nothing:
                    await trio.sleep(PACE if hints.item is None else PACE_OF_ONE)
                wait = await self._until_next(SHORT_WAIT if hints != nothing else LONG_WAIT)
        finally:
            self._observer.stream_closed()
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
        """For how long the next answer is worth a wait. While there is more than can start, it returns in pace."""
        if not self._claimer.is_behind:
            return wait
        with trio.move_on_after(PACE_BEHIND):
            # The first item after a backlog is to start at once, too.
            await self._wait_caught_up()
            return SHORT_WAIT
        return 0.0

    async def _wait_caught_up(self) -> None:
        while self._claimer.is_behind:
            await self._runner.wait_changed()

    async def _pass_on(self, hints: Hints[ClaimT]) -> None:
        # A wake alone finds what is due now; where something is due later, too, that must be asked for.
        if hints.look or hints.due <= trio.current_time() < hints.last_due:
            self._waker.look()
        if hints.due < math.inf:
            self._waker.expect(hints.due, hints.item)
        if hints.is_asked_to_end is not None:
            # The claim decides, not the hint. Where it cannot be asked now, the next beat asks.
            await renew(self._source, self._observer, self._runner, self.progress, hints.is_asked_to_end)
            if self._claimer.is_claiming:
                # It may be about what is claimed in this very moment, and not held yet.
                with trio.move_on_after(CLAIM_TIMEOUT):
                    await self._claimer.wait_claimed()
                await renew(self._source, self._observer, self._runner, self.progress, hints.is_asked_to_end)

    async def _failed(self, failure: StreamFailedError) -> None:
        self._failures += 1
        self.progress.fail(failure.error)
        if self._failures == 1:
            self._observer.stream_failed(failure.error)
        if self._failures == FAILURES_TO_TELL:
            self._observer.stream_fallback(failure.error)
        with trio.move_on_after(min(FIRST_DELAY * 2 ** min(self._failures - 1, 10), LONGEST_DELAY)):
            await self._ending.wait()
