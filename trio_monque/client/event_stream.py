"""Events as an async iterator: a bounded buffer, so a slow reader never delays the sender."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import anyio

from ..events import Event
from ..log import logger_of
from ..loops import current_loop

logger = logger_of("events")

EventT = TypeVar("EventT", bound=Event)

MOST_WAITING: Final = 10_000
"""How many events may wait for a slow listener; beyond, the newest are dropped and counted."""


class EventStream(Generic[EventT]):
    """Iterate over it: `async for event in stream`. Ends when the scheduler has ended.

    Attributes:
        dropped: How many events were lost because the reader was too slow.
    """

    def __init__(self, *types: type[EventT]) -> None:
        self.dropped = 0
        self._types = types
        self._loop = current_loop()
        self._send, self._receive = anyio.create_memory_object_stream[EventT](MOST_WAITING)

    def __aiter__(self) -> EventStream[EventT]:
        return self

    async def __anext__(self) -> EventT:
        """Wait for the next event and return it. Cancelled, no event is lost."""
        try:
            return await self._receive.__anext__()
        except anyio.ClosedResourceError:  # The block of the stream was left while another task reads.
            raise StopAsyncIteration from None

    def takes(self, event_type: type[Event]) -> bool:
        """Return whether it takes events of this type."""
        return issubclass(event_type, self._types)

    def offer(self, event: Event) -> None:
        """Hand over an event, from any thread or loop; return at once."""
        if not isinstance(event, self._types):
            return
        self._loop.post(lambda: self._push(event))

    def end(self) -> None:
        """End the iteration after the events that were offered before."""
        self._loop.post(self._send.close)

    def close(self) -> None:
        """End the stream for its reader."""
        self._send.close()
        self._receive.close()

    def _push(self, event: EventT) -> None:
        try:
            self._send.send_nowait(event)
        except anyio.WouldBlock:
            self.dropped += 1
            if self.dropped == 1:
                logger.warning("dropped an event: the reader of its stream is %d events behind", MOST_WAITING)
        except anyio.ClosedResourceError:
            pass  # It was closed after the event was sent.
