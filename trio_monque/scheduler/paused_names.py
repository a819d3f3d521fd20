"""Which names nobody is to claim: looked up before a claim, where what is known is too old."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from ..engine.progress import Progress
from ..errors import MonqueConnectionError
from ..loop_time import LoopTime, loop_time
from ..store import instances
from ..store.database_threads import Channel, DatabaseThreads
from ..store.job_collection import JobCollection

KNOWN_FOR: Final = 0.5
"""Seconds for which an answer is good: a pause holds for every claim that begins so much later."""

LOOK_FOR_RESUMES: Final = 0.9
"""Seconds between two looks while something is paused: who claims nothing must hear of a resume, too."""


@dataclass(frozen=True, slots=True)
class _Known:
    names: frozenset[str]
    told: int
    asked_at: float


class PausedNames:
    """What is known of the pauses. Asked and told from any thread; in virtual time, known until told otherwise.

    Attributes:
        is_told: A change stream tells of every change (`forget`), so that nothing need be looked up for that.
    """

    def __init__(self, door: DatabaseThreads, *, time_of_loops: LoopTime | None = None) -> None:
        self.progress = Progress("look for resumes")
        self._door = door
        self._time = time_of_loops or loop_time()
        self._lock = threading.Lock()
        self._told = 0
        self._known = _Known(frozenset(), -1, 0.0)
        self._were_paused: frozenset[str] = frozenset()
        self.is_told = False

    @property
    def names(self) -> frozenset[str]:
        """As they were looked up last."""
        return self._known.names

    def forget(self) -> None:
        """Somebody has paused or resumed something: the next claim looks again."""
        with self._lock:
            self._told += 1

    def look_up(self, jobs: JobCollection) -> frozenset[str]:
        """In a thread: what is paused now, or was half a second ago.

        Raises:
            MonqueConnectionError: It cannot be known. Nothing must be claimed then.
        """
        known, told, now = self._known, self._told, time.monotonic()
        if known.told == told and (self._time.is_event_driven or now - known.asked_at < KNOWN_FOR):
            return known.names
        # As of before the question: what is told while it is under way may or may not be in the answer.
        fresh = _Known(instances.paused(jobs), told, now)
        with self._lock:
            if (fresh.told, fresh.asked_at) > (self._known.told, self._known.asked_at):
                self._known = fresh
            self._were_paused |= fresh.names
        return fresh.names

    async def run(self, jobs: JobCollection, look: Callable[[], None]) -> None:
        """While something is paused and no stream tells of changes: looks what was resumed, and then has `look` called.

        Not in virtual time: there, a resume is announced.
        """
        while not self._time.is_event_driven:
            await trio.sleep(LOOK_FOR_RESUMES)
            # Not what is known now: a claim that saw the resume first has not asked what is due later.
            before = self._were_paused
            if not before or self.is_told:
                continue
            self.progress.ask()
            try:
                now = await self._door.call(partial(self.look_up, jobs), channel=Channel.CLAIMS, abandon_on_cancel=True)
            except MonqueConnectionError as error:
                self.progress.fail(error)
                continue  # The claims meet the same, and tell of it.
            self.progress.answered()
            with self._lock:
                self._were_paused = (self._were_paused - before) | now
            if before - now:
                look()
