"""Subscription: one listener, the events that wait for it, and the task that delivers them.

A listener is code of the user, and may do anything: be slow, raise, shield itself from cancellation, or raise a
Cancelled that is not ours. None of it may touch a job, the scheduler or another listener.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, cast

import anyio
import trio

from ..checks import is_async
from ..error_types import ShortageError
from ..events import Event
from ..grace import Grace, using_grace
from ..log import exc_info_of, logger_of
from ..safe_text import shown
from ..threads_and_frozen_time import FreezingLimiter, call_in_thread
from .event_stream import MOST_WAITING

logger = logger_of("events")

AsyncListener = Callable[[Event], Awaitable[object]]
CallListener = Callable[[AsyncListener, Event], Awaitable[object]]

# Seconds until the next attempt, after a thread could not be started for a plain listener.
PAUSE: Final = 0.1


class Subscription:
    """One listener. Touch it only on the trio thread that delivers, except `removed` and the count of delivered ones.

    Attributes:
        removed: Set when the listener is removed, in any thread; read before each call of the listener.
        undelivered: How many events the listener did not get, or has not finished: they wait, or were dropped because
            too many waited.
    """

    def __init__(self, listens_to: type[Event], listener: Callable[[Any], object]) -> None:
        self.listens_to = listens_to
        self.listener = listener
        self.removed = False
        self.caught_up = trio.Event()
        self.caught_up.set()
        self.ended = trio.Event()
        self.ended.set()
        self._waiting: deque[Event] = deque()
        self._arrived = trio.Event()
        self._offered = self._delivered = self._dropped = 0
        self._scope = trio.CancelScope()
        self._is_closed = False

    @property
    def undelivered(self) -> int:
        return 0 if self.removed else self._offered - self._delivered

    def offer(self, event: Event) -> None:
        """Hand over an event; return at once."""
        if self.removed:
            return  # Its task may have ended already: `caught_up` would never be set again.
        self._offered += 1
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
            if self._dropped == 1:
                logger.warning("dropped events for listener %s: it is too slow", self.listener)
            return
        self._waiting.append(event)
        self._arrived.set()
        if self.caught_up.is_set():
            self.caught_up = trio.Event()

    def remove(self) -> None:
        """Deliver no more events."""
        self.removed = True
        self._arrived.set()

    # --- While it is delivered to ---

    def start(self, context: Context, grace: Grace, call: CallListener | None) -> None:
        """Deliver from now on, in a system task. `call` calls an async listener on its loop; None: on this one.

        Not in a nursery of the scheduler: a listener may shield itself from cancellation for as long as it likes, and a
        nursery would wait for it.
        """
        self.ended, self._scope, self._is_closed = trio.Event(), trio.CancelScope(), False
        trio.lowlevel.spawn_system_task(
            self._deliver, grace, call, name=f"listener {shown(self.listener)}", context=context
        )

    def stop(self) -> None:
        """Cancel the current call of the listener, and call it for no further event."""
        self._is_closed = True
        self._scope.cancel(reason="the scheduler has ended")

    def report_left(self) -> None:
        """After `stop`, log how many events the listener did not get."""
        if not self.ended.is_set():
            logger.error("abandoned listener %s: it ignored its cancellation", self.listener)
        if count := self.undelivered:
            logger.warning("listener %s did not receive %d events before the scheduler ended", self.listener, count)

    async def _deliver(self, grace: Grace, call: CallListener | None) -> None:
        try:
            with self._scope, using_grace(grace):
                await self._pump(call)
        except trio.Cancelled:
            pass  # The whole run ends.
        except BaseException as error:
            # An exception that leaves a system task ends the whole trio run.
            logger.error("delivery to listener %s failed", self.listener, exc_info=exc_info_of(error))
        finally:
            self.ended.set()
            self.caught_up.set()

    async def _pump(self, call: CallListener | None) -> None:
        limiter = FreezingLimiter(1)
        while not self.removed:
            await self._arrived.wait()
            self._arrived = trio.Event()
            events = tuple(self._waiting)
            self._waiting.clear()
            if is_async(self.listener):
                for event in events:
                    if self._is_closed:
                        return  # A listener that shields itself has no checkpoint at which the cancellation arrives.
                    await self._call_async(event, call)
            elif events:
                await self._call_in_thread(events, limiter)
            if not self._waiting:
                self.caught_up.set()

    async def _call_async(self, event: Event, call: CallListener | None) -> None:
        try:
            await call_async(self, event, call)
        except trio.Cancelled:
            if trio.current_effective_deadline() == -float("inf"):
                raise
            logger.error("listener %s raised the Cancelled of its own cancel scope", self.listener)
        self._delivered += 1

    async def _call_in_thread(self, events: Sequence[Event], limiter: FreezingLimiter) -> None:
        left = deque(events)  # The thread removes each event that it delivers: a second attempt must not repeat one.
        while True:
            try:
                call = partial(self._call_for_all, left)
                return await call_in_thread(call, limiter=limiter, abandon_on_cancel=True)
            except ShortageError as error:
                logger.debug("listener %s waits for a thread: %s", self.listener, error)
                await trio.sleep(PAUSE)

    def _call_for_all(self, events: deque[Event]) -> None:
        while events and not self._is_closed:
            call_plain(self, events.popleft())
            self._delivered += 1


async def call_async(subscription: Subscription, event: Event, call: CallListener | None = None) -> None:
    """Call an async listener with one event, by `call` if it runs elsewhere; log what it raises."""
    if subscription.removed:
        return
    listener = cast("AsyncListener", subscription.listener)
    try:
        await (listener(event) if call is None else call(listener, event))
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as error:  # noqa: BLE001  # Any error of a listener ends only this call.
        log_failure(listener, event, error)


def call_plain(subscription: Subscription, event: Event) -> None:
    """Call a plain listener with one event; log what it raises."""
    if subscription.removed:
        return
    try:
        result = subscription.listener(event)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("a plain listener returned a coroutine, which is never awaited: give the async function")
    except BaseException as error:  # noqa: BLE001  # The same.
        log_failure(subscription.listener, event, error)


def log_failure(listener: object, event: Event, error: BaseException) -> None:
    """Log that a call of a listener failed."""
    logger.error("listener %s failed for %s", listener, type(event).__name__, exc_info=exc_info_of(error))
