"""The wake signal: "there may be work". Coalescing, and re-armed before the look."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from .source import Tip


@dataclass(frozen=True, slots=True)
class Wake:
    """Why the claimer was woken; without `look` and `tip`, because there is room again.

    Attributes:
        look: There may be something; nobody knows what.
        tip: There is this one item, and where `look` is false nobody knew of another.
    """

    look: bool = False
    tip: Tip | None = None


class WakeSignal:
    """Level-triggered: set any number of times before it is waited for, it wakes once."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._wake = Wake()

    def set(self) -> None:
        """There may be something."""
        self._wake = Wake(look=True)
        self._event.set()

    def tip(self, tip: Tip) -> None:
        """There is this one. Two of them in one wake are worth a look."""
        if self._wake.tip not in (None, tip):
            self.set()
        elif not self._wake.look:
            self._wake = Wake(tip=tip)
            self._event.set()

    def make_room(self) -> None:
        """A slot is free: what was left before for lack of one may be taken."""
        self._event.set()

    async def wait(self) -> Wake:
        """Returns when set; re-armed then.

        Before the caller looks, that is: a wake that arrives during the look must survive it.
        """
        await self._event.wait()
        return self.take()

    def take(self) -> Wake:
        """What has been set until now, without a wait; re-armed."""
        self._event = trio.Event()
        wake, self._wake = self._wake, Wake()
        return wake
