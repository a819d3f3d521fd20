"""Who hears of what: listeners for events, and the wake board that joins enqueuers with schedulers nearby."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar, cast

import trio

from ..callables import is_async
from ..clock import HoldingLimiter, VirtualTime, in_time_of, virtual_time
from ..errors import InvalidOptionError
from ..jobs.events import Event

logger = logging.getLogger("trio_monque.events")

EventT = TypeVar("EventT", bound=Event)
Listener = Callable[[EventT], None] | Callable[[EventT], Awaitable[None]]

MOST_UNHEARD: Final = 10_000
"""How many events may wait for a slow listener; beyond, the newest are dropped and counted."""


@dataclass(eq=False)
class _Subscription:
    """One listener and what it has not heard yet. Only touched on the run's own thread."""

    listens_to: type[Event]
    listener: Callable[[Any], object]
    unheard: deque[Event] = field(default_factory=deque)
    arrived: trio.Event = field(default_factory=trio.Event)
    caught_up: trio.Event = field(default_factory=trio.Event)
    dropped: int = 0

    def offer(self, event: Event) -> None:
        if len(self.unheard) >= MOST_UNHEARD:
            self.dropped += 1
            if self.dropped == 1:
                logger.warning("%s is too slow: events are dropped for it", self.listener)
            return
        self.unheard.append(event)
        self.arrived.set()
        if self.caught_up.is_set():
            self.caught_up = trio.Event()

    def take(self) -> Sequence[Event]:
        self.arrived = trio.Event()
        events = tuple(self.unheard)
        self.unheard.clear()
        return events


class Bus:
    """Delivers events to listeners, and never in the way of the job that an event is about.

    Each subscription hears its events in order. Two subscriptions are independent of each other: to hear
    of several types in order, listen to what they have in common.

    An async listener runs as a task, a plain one in a thread (as handlers do): neither a slow nor a
    raising one touches a job, a slot or another listener.
    """

    def __init__(self) -> None:
        self._subscriptions: list[_Subscription] = []
        self._nursery: trio.Nursery | None = None

    def on(self, event_type: type[EventT], listener: Listener[EventT]) -> Callable[[], None]:
        """Calls `listener` with every event of the type, its subtypes included; returns what removes it again."""
        if not _is_event_class(event_type):
            raise InvalidOptionError("listeners", event_type, "must be an event class, for example JobFailed")
        if not callable(listener):
            raise InvalidOptionError("listeners", listener, "must be callable with one event")
        subscription = _Subscription(event_type, listener)
        subscription.caught_up.set()
        self._subscriptions.append(subscription)
        if self._nursery is not None:
            self._nursery.start_soon(self._pump, subscription)

        def remove() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                subscription.arrived.set()

        return remove

    def add_all(self, listeners: Mapping[type[Event], Any]) -> None:
        """Adds a mapping of event classes to a listener, or to several."""
        if not isinstance(listeners, Mapping):
            raise InvalidOptionError("listeners", listeners, "must map event classes to listeners")
        for event_type, given in listeners.items():
            for listener in given if isinstance(given, list | tuple) else [given]:
                self.on(event_type, listener)

    def emit(self, event: Event) -> None:
        """Hands the event to whoever listens; returns at once. On the run's own thread."""
        for subscription in self._subscriptions:
            if isinstance(event, subscription.listens_to):
                subscription.offer(event)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Delivers until cancelled; what a plain listener is doing then goes on in its thread."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for subscription in self._subscriptions:
                    nursery.start_soon(self._pump, subscription)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def wait_caught_up(self) -> None:
        """Returns when every listener has heard all that was emitted before."""
        for subscription in list(self._subscriptions):
            await subscription.caught_up.wait()

    async def _pump(self, subscription: _Subscription) -> None:
        limiter = HoldingLimiter(1)
        while subscription in self._subscriptions:
            await subscription.arrived.wait()
            events = subscription.take()
            if is_async(subscription.listener):
                for event in events:
                    await _tell(cast("Callable[[Event], Awaitable[object]]", subscription.listener), event)
            elif events:
                await trio.to_thread.run_sync(
                    partial(_tell_in_thread, virtual_time(), subscription.listener, events),
                    limiter=cast("trio.CapacityLimiter", limiter),
                    abandon_on_cancel=True,
                )
            if not subscription.unheard:
                subscription.caught_up.set()


def _is_event_class(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, Event)


async def _tell(listener: Callable[[Event], Awaitable[object]], event: Event) -> None:
    try:
        await listener(event)
    except Exception:
        logger.exception("listener %s failed for %s", listener, type(event).__name__)


def _tell_in_thread(virtual: VirtualTime | None, listener: Callable[[Event], object], events: Sequence[Event]) -> None:
    with in_time_of(virtual):
        for event in events:
            try:
                listener(event)
            except Exception:
                logger.exception("listener %s failed for %s", listener, type(event).__name__)


# --- The wake board ---

_Wakers = dict[str, list[Callable[[], None]]]
_board_of_run: trio.lowlevel.RunVar[_Wakers] = trio.lowlevel.RunVar("monque_wake_board")


def _board() -> _Wakers:
    try:
        return _board_of_run.get()
    except LookupError:
        board: _Wakers = defaultdict(list)
        _board_of_run.set(board)
        return board


@contextmanager
def woken_by(namespace: str, wake: Callable[[], None]) -> Iterator[None]:
    """While inside: `wake` is called whenever a client of the same run says that the collection has work."""
    board = _board()
    board[namespace].append(wake)
    try:
        yield
    finally:
        board[namespace].remove(wake)


def wake_neighbours(namespace: str) -> None:
    """Wakes the schedulers of this run that work on the collection; outside of trio there are none.

    Two servers may hold a collection of the same name: that costs the wrong scheduler one look.
    """
    if trio.lowlevel.in_trio_run():
        for wake in list(_board()[namespace]):
            wake()
