"""Which documents to claim next: seen by a look or read ahead, from elsewhere where others are as fast."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import trio

from ..engine.contention import Contention
from ..engine.source import Demand
from ..engine.window import Window
from ..store import document_looks
from ..store.locked_collection import LockedCollection
from ..store.offload import Channel, Door
from ..store.types import ObjectId

LANE: Final = "documents"
"""All documents of a filter share one concurrency limit."""


@dataclass(slots=True)
class Answer:
    """How a claim went: how many were had of those that were asked for."""

    won: int = 0


class Candidates:
    """Used on the run's own thread; the looks go through the door.

    Attributes:
        looked_at: The moment of the last look, by the server's time: what is free later it has not seen.
    """

    looked_at: datetime

    def __init__(self, locked: LockedCollection, door: Door) -> None:
        self._locked = locked
        self._door = door
        self._window: Window[Any] = Window(self._key_of, lambda _id: LANE)
        self._contention = Contention()
        # Two claims at a time are enough to have to wait for one look.
        self._looking = trio.Lock()
        self._was_told = False

    async def choose(self, demand: Demand, now: datetime) -> Sequence[Any]:
        """The ids of as many as can start; without those that are asked for already."""
        if not self._are_known(demand):
            async with self._looking:
                # Another claim may have looked meanwhile; but perhaps before what this one was told of.
                if demand.afresh or not self._are_known(demand):
                    await self._look(demand, now)
        return self._window.candidates(demand.lanes, None)

    def may_be_more(self) -> bool:
        """Whether there may be others than those that were chosen."""
        return self._window.has_more((LANE,))

    @contextmanager
    def asking_for(self, chosen: Sequence[Any]) -> Iterator[Answer]:
        """Around the claim of these, which says how it went."""
        window, answer = self._window, Answer()
        is_all = not window.full
        window.ask_for(chosen)
        try:
            yield answer
        finally:
            window.answered(chosen)
        self._contention.took(len(chosen), answer.won, is_all=is_all)
        if answer.won < len(chosen):
            # Others have been there: what else was read ahead may be theirs, too.
            window.forget()

    def _key_of(self, document_id: Any) -> Hashable:
        # Nearly always, and the encoding would be asked for several times for each.
        return document_id if type(document_id) is ObjectId else self._locked.key_of(document_id)

    def _are_known(self, demand: Demand) -> bool:
        return not demand.afresh and self._window.serves(demand.lanes, demand.total, trio.current_time(), None)

    async def _look(self, demand: Demand, now: datetime) -> None:
        window = self._window
        # What is read ahead would be thrown away at the next word.
        is_quiet, self._was_told = not (demand.afresh or self._was_told), demand.afresh
        read_at = trio.current_time()
        passed_over = self._contention.passed_over(demand.lanes).get(LANE, 0)
        wanted = window.reach(demand.lanes, demand.capacity, read_at) if is_quiet else demand.lanes
        wanted = window.beside_those_in_flight(wanted)
        window.look()
        look: Callable[[], document_looks.SeenIds] = partial(
            document_looks.survey, self._locked, wanted[LANE], now, passed_over=passed_over
        )
        seen = await self._door.call(look, channel=Channel.CLAIMS, abandon_on_cancel=True)
        self.looked_at = now
        window.fill(seen.ids, wanted, (LANE,) if seen.is_all else (), read_at)
        self._contention.looked(full=window.full, short=(LANE,) if seen.is_short else ())
