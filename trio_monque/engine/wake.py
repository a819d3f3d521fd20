"""The wake signal: "there may be work". Coalescing, and re-armed before the look."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import trio

from .demand import KnownItem


@dataclass(frozen=True, slots=True)
class Wake:
    """Why the claimer was woken; without any of these, it wakes itself.

    Attributes:
        look: There may be something; a look must find out what.
        item: There is this one item, and no other if `look` is false.
        room: A slot is free again.
    """

    look: bool = False
    item: KnownItem | None = None
    room: bool = False


LOOK: Final = Wake(look=True)
ROOM: Final = Wake(room=True)
GO_ON: Final = Wake()


class WakeSignal:
    """Level-triggered: set any number of times before it is waited for, it wakes once, and one of those who wait."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._wake = GO_ON

    def set(self) -> None:
        """There may be something."""
        self._wake = LOOK
        self._event.set()

    def set_item(self, item: KnownItem) -> None:
        """There is this one. Two of them in one wake are worth a look."""
        if self._wake.item not in (None, item):
            self.set()
        elif not self._wake.look:
            self._wake = Wake(item=item, room=self._wake.room)
            self._event.set()

    def make_room(self) -> None:
        """A slot is free: what was left before for lack of one may be taken."""
        if self._wake == GO_ON:
            self._wake = ROOM
        elif self._wake.item is not None and not self._wake.room:
            self._wake = replace(self._wake, room=True)
        self._event.set()

    def go_on(self) -> None:
        """An announcement is not answered yet."""
        self._event.set()

    async def wait(self) -> Wake:
        """Returns when set; re-armed then.

        Before the caller looks, that is: a wake that arrives during the look must survive it.
        """
        while True:
            event = self._event
            await event.wait()
            if event is self._event:
                return self.take()  # Otherwise another one has been woken by it.

    def take(self) -> Wake:
        """What has been set until now, without a wait; re-armed."""
        if self._event.is_set():  # Else others wait for it.
            self._event = trio.Event()
        wake, self._wake = self._wake, GO_ON
        return wake
