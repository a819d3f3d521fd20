"""Which jobs to claim next: seen by a look or read ahead, in turn by name, from elsewhere where others are as fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import trio

from ..client.ground import Ground
from ..engine.contention import Contention
from ..engine.fairness import Turns, suspect_alone
from ..engine.source import Demand
from ..engine.window import Window
from ..jobs.claimable import is_suspect
from ..jobs.job import Job
from ..store import looking
from ..store.connection import JobCollection
from ..store.looking import Seen
from ..store.offload import Channel, Door
from .paused_names import PausedNames
from .workers import Workers


@dataclass(slots=True)
class Answer:
    """How a claim went: how many were asked for, and how many of them were had."""

    tried: int = 0
    won: int = 0


class Candidates:
    """Used on the run's own thread; the looks go through the door.

    Attributes:
        contention: How much other instances take of what is seen here.
        looked_at: The moment of the last look, by the server's time: what is due later it has not seen.
    """

    looked_at: datetime

    def __init__(
        self, ground: Ground, door: Door, workers: Workers, paused: PausedNames, leased: JobCollection
    ) -> None:
        self.contention = Contention()
        self._ground = ground
        self._door = door
        self._workers = workers
        self._paused = paused
        self._leased = leased
        self._turns = Turns()
        self._window: Window[Job] = Window(lambda job: job.id, lambda job: job.name)
        # Two claims at a time are enough to have to wait for one look.
        self._looking = trio.Lock()
        self._was_told = False

    async def choose(self, demand: Demand, now: datetime) -> Sequence[Job]:
        """As many as can start, in the order in which they would; without those that are asked for already."""
        if not self._are_known(demand):
            async with self._looking:
                # Another claim may have looked meanwhile; but perhaps before what this one was told of.
                if demand.afresh or not self._are_known(demand):
                    await self._look(demand, now)
        lanes = self._unpaused(demand)
        window = self._window
        found = window.candidates(lanes, _accepted(demand))
        fair = self._turns.share(found, demand.total, lambda job: job.name, self._priority_of)
        if demand.suspects:
            # Of those that are due at one moment, the one that was made first.
            return suspect_alone(fair, found, is_suspect, lambda job: (job.next_run_at, job.id))
        return fair

    def may_be_more(self, demand: Demand) -> bool:
        """Whether there may be others than those that were chosen for it."""
        return self._window.has_more(self._unpaused(demand).keys())

    @contextmanager
    def asking_for(self, chosen: Sequence[Job]) -> Iterator[Answer]:
        """Around the claim of these, which says how it went."""
        window, answer = self._window, Answer()
        is_all = not window.full
        window.ask_for(chosen)
        try:
            yield answer
        finally:
            window.answered(chosen)
        self.contention.took(answer.tried, answer.won, is_all=is_all)
        if answer.won < answer.tried:
            # Others have been there: what else was read ahead may be theirs, too.
            window.forget()

    def _are_known(self, demand: Demand) -> bool:
        if demand.afresh:
            return False
        return self._window.serves(self._unpaused(demand), demand.total, trio.current_time(), _accepted(demand))

    def _unpaused(self, demand: Demand) -> Mapping[str, int]:
        """As far as is known: whoever claims must look that up."""
        paused = self._paused.names
        return {name: count for name, count in demand.lanes.items() if name not in paused} if paused else demand.lanes

    async def _look(self, demand: Demand, now: datetime) -> None:
        window = self._window
        # What is read ahead would be thrown away at the next word.
        is_quiet, self._was_told = not (demand.afresh or self._was_told), demand.afresh
        read_at = trio.current_time()
        passed_over = self.contention.passed_over(demand.lanes)
        wanted = window.reach(demand.lanes, demand.capacity, read_at) if is_quiet else demand.lanes
        wanted = window.beside_those_in_flight(wanted)
        window.look()

        def look() -> tuple[Mapping[str, int], Seen]:
            paused = self._paused.look_up(self._leased)
            lanes = {name: count for name, count in wanted.items() if name not in paused}
            # Drawn before it was known what is paused.
            behind = {name: count for name, count in passed_over.items() if name in lanes}
            survey = partial(looking.survey, self._leased, lanes, now, suspects=demand.suspects > 0, passed_over=behind)
            return lanes, self._ground.with_indexes(survey) if lanes else Seen([])

        asked, seen = await self._door.call(look, channel=Channel.CLAIMS, abandon_on_cancel=True)
        self.looked_at = now
        window.fill(seen.jobs, asked, seen.exhausted, read_at, is_whole=demand.suspects > 0)
        self.contention.looked(full=window.full, short=seen.short)

    def _priority_of(self, lane: str) -> int:
        worker = self._workers.get(lane)
        return 0 if worker is None else worker.settings.priority


def _accepted(demand: Demand) -> Callable[[Job], bool] | None:
    return None if demand.suspects else _is_no_suspect


def _is_no_suspect(job: Job) -> bool:
    return not is_suspect(job)
