"""EventDelivery: brings events to listeners and streams, and never delays a job."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import trio

from ..async_with import entered_by_async_with
from ..checks import is_async
from ..error_types import InvalidOptionError, ShortageError
from ..events import Event
from ..grace import Grace
from ..log import logger_of
from ..loops import TrioLoop
from ..threads_and_frozen_time import FreezingLimiter, call_in_thread, starting_thread
from .event_stream import EventStream
from .subscription import CallListener, Subscription, call_async, call_plain, log_failure

logger = logger_of("events")

EventT = TypeVar("EventT", bound=Event)
Listener = Callable[[EventT], None] | Callable[[EventT], Awaitable[None]]

STOP_TIMEOUT: Final = 0.1
"""Seconds that listeners have to end after their cancellation. Later ones are left behind."""

LAST_WORDS: Final = 2.0
"""Seconds that listeners have for the events of a call that was cancelled or has failed."""


class EventDelivery:
    """Delivers events to listeners and streams, without delaying the job that an event is about.

    In a scheduler (while `run` runs), an async listener is a task and a plain one is called in a thread,
    as handlers are: neither a slow nor a raising one touches a job, a slot or another listener. In a
    client that runs no jobs, the call that caused an event calls its listeners before it returns.

    Each listener gets its events in order. Two listeners are independent of each other: to get events of several types
    in order, add one listener for their common base class.

    Attributes:
        is_heard: Whether there is, or was, a listener or a stream: without one, no event need be made.

    Args:
        call_listener: While `run` runs, calls an async listener on the loop on which listeners run; None if that is
            the loop of `run`.
    """

    def __init__(self, call_listener: CallListener | None = None) -> None:
        self.is_heard = False
        self._call_listener = call_listener
        # Outside of `run`, any thread adds, removes and reads. While `run` runs, only the thread of the run changes the
        # subscriptions (see `_on_the_run`); streams may be opened and left on any loop.
        self._subscriptions: list[Subscription] = []
        self._streams: list[EventStream[Any]] = []
        self._context: Context | None = None
        self._loop: TrioLoop | None = None
        self._ended = False
        self._grace = Grace()

    def on(self, event_type: type[EventT], listener: Listener[EventT]) -> Callable[[], None]:
        """Call `listener` with every event of the type and its subtypes; return a function that removes it."""
        _check_event_class(event_type)
        if not callable(listener):
            raise InvalidOptionError("listeners", listener, "must be callable with one event")
        subscription = Subscription(event_type, listener)
        self._on_the_run(partial(self._add, subscription))

        def remove() -> None:
            # Any thread may call it. The flag takes effect at once, the rest soon, on the thread that delivers.
            subscription.removed = True
            self._on_the_run(partial(self._remove, subscription))

        return remove

    def _add(self, subscription: Subscription) -> None:
        self._subscriptions.append(subscription)
        self.is_heard = True
        if self._context is not None:
            self._start(subscription)

    def _remove(self, subscription: Subscription) -> None:
        with suppress(ValueError):  # It is removed already, perhaps in another thread.
            self._subscriptions.remove(subscription)
            subscription.remove()

    def _on_the_run(self, function: Callable[[], None]) -> None:
        """Post it to the trio run that delivers events, if there is one.

        Otherwise call it here: outside of `run`, subscriptions belong to no thread.
        """
        loop = self._loop  # Read once: for a caller on another loop, the run may end in between.
        if loop is None:
            function()
        else:
            loop.post(function)

    def add_all(self, listeners: Mapping[type[Event], Any]) -> None:
        """Add all listeners of a mapping: event class -> listener, or list of listeners."""
        if not isinstance(listeners, Mapping):
            raise InvalidOptionError("listeners", listeners, "must map event classes to listeners")
        for event_type, given in listeners.items():
            for listener in given if isinstance(given, list | tuple) else [given]:
                self.on(event_type, listener)

    @entered_by_async_with("stream")
    @asynccontextmanager
    async def events(self, *types: type[EventT]) -> AsyncIterator[EventStream[EventT]]:
        """Return a stream of the events of these types, from entering until leaving the block."""
        if not types:
            raise InvalidOptionError("types", types, "name the event classes; Event stands for all")
        for one in types:
            _check_event_class(one)
        stream: EventStream[EventT] = EventStream(*types)
        self._streams.append(stream)
        self.is_heard = True
        if self._ended:
            stream.end()
        try:
            yield stream
        finally:
            self._streams.remove(stream)
            stream.close()

    # --- In a scheduler ---

    def has_listener(self, event_type: type[Event]) -> bool:
        """Return whether there is a listener for events of this type: without one, the event need not be made."""
        # Copies: listeners and streams come and go in other threads, and one that moves up in the list would be passed
        # over.
        for subscription in tuple(self._subscriptions):
            if issubclass(event_type, subscription.listens_to):
                return True
        return any(stream.takes(event_type) for stream in tuple(self._streams)) if self._streams else False

    def emit(self, event: Event) -> None:
        """Hand the event to all its listeners; return at once. On the run's own thread, while `run` runs."""
        for subscription in self._subscriptions:
            if isinstance(event, subscription.listens_to):
                subscription.offer(event)
        # A copy: readers on other event loops may leave their blocks at any moment.
        for stream in list(self._streams):
            stream.offer(event)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled. Then end within `STOP_TIMEOUT`, whatever the listeners do.

        A listener that does not obey its cancellation in that time is left behind. That is logged, with the number of
        events that it did not get. A plain listener cannot be cancelled: its call goes on in its thread.
        """
        self._context = copy_context()
        self._loop = TrioLoop()
        try:
            for subscription in self._subscriptions:
                self._start(subscription)
            task_status.started()
            await trio.sleep_forever()
        finally:
            self._context = self._loop = None
            self._ended = True  # A stream that is opened from now on ends at once.
            for stream in list(self._streams):
                stream.end()
            await self._stop_all()

    def _start(self, subscription: Subscription) -> None:
        assert self._context is not None
        subscription.start(self._context.copy(), self._grace, self._call_listener)

    async def _stop_all(self) -> None:
        for subscription in self._subscriptions:
            subscription.stop()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIMEOUT):
            for subscription in tuple(self._subscriptions):  # A listener that ends may remove another one.
                await subscription.ended.wait()
        for subscription in self._subscriptions:
            subscription.report_left()

    @property
    def undelivered(self) -> int:
        """How many events the listeners did not get."""
        return sum(subscription.undelivered for subscription in self._subscriptions)

    def end_grace(self) -> None:
        """Let cancelled listeners no longer wait for answers of the database."""
        self._grace.end()

    async def wait_caught_up(self) -> None:
        """Return when every listener has got all events that were emitted before."""
        for subscription in list(self._subscriptions):
            await subscription.caught_up.wait()

    # --- For what a call did ---

    async def deliver(self, event: Event) -> None:
        """Report what an async call did; in a client that runs no jobs, return when all listeners have been called."""
        if (loop := self._loop) is not None:
            loop.post(partial(self.emit, event))
            return
        self._offer_to_streams(event)
        for subscription in self._listening_to(event):
            if is_async(subscription.listener):
                await call_async(subscription, event)
            else:
                await _call_in_thread(subscription, event)

    async def deliver_all(self, events: Iterable[Event], *, has_failed: bool = False) -> None:
        """Report all that an async call did, also if it is cancelled or `has_failed`: then within `LAST_WORDS`."""
        # A call waits for its thread although it was cancelled, and then returns normally. Only the deadline shows
        # that, and the first wait here would end at once.
        are_last = has_failed or anyio.current_effective_deadline() == -math.inf
        with anyio.move_on_after(LAST_WORDS, shield=True) if are_last else nullcontext():
            for event in events:
                await self.deliver(event)

    def deliver_blocking(self, event: Event) -> None:
        """Report what a blocking call did. In a client that runs no jobs there is no loop for async listeners."""
        if (loop := self._loop) is not None:
            loop.post(partial(self.emit, event))
            return
        self._offer_to_streams(event)
        for subscription in self._listening_to(event):
            if is_async(subscription.listener):
                logger.warning(
                    "async listener %s did not receive %s: events of blocking calls reach plain listeners only",
                    subscription.listener,
                    type(event).__name__,
                )
            else:
                call_plain(subscription, event)

    def _listening_to(self, event: Event) -> list[Subscription]:
        # A copy, as above: outside of `run`, any thread may remove a listener.
        return [one for one in tuple(self._subscriptions) if isinstance(event, one.listens_to)]

    def _offer_to_streams(self, event: Event) -> None:
        for stream in list(self._streams):
            stream.offer(event)


async def _call_in_thread(subscription: Subscription, event: Event) -> None:
    call = partial(call_plain, subscription, event)
    try:
        if trio.lowlevel.in_trio_task():
            # With a limiter of its own: the threads of a shared one may all be busy with listeners that block.
            await call_in_thread(call, limiter=FreezingLimiter(1))
        else:
            with starting_thread(call) as started:
                await anyio.to_thread.run_sync(started)
    except ShortageError as error:
        # Not raised: the event is about a change that was made, and the error would deny that.
        log_failure(subscription.listener, event, error)


def _check_event_class(given: object) -> None:
    if not (isinstance(given, type) and issubclass(given, Event)):
        raise InvalidOptionError("listeners", given, "must be an event class, for example JobFailed")
