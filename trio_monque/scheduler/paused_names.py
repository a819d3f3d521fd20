"""PausedNames: the names whose jobs must not be claimed, with a short-lived cache.

The thread that sends a claim looks the pauses up first, so a pause holds for every claim that begins KNOWN_FOR seconds
after it, on all instances. A question for each claim would double its cost, so an answer is reused for that time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from ..engine.progress import Progress
from ..error_types import MonqueConnectionError
from ..loop_time import LoopTime, loop_time
from ..store.driver.database_threads import Channel, DatabaseThreads
from ..store.job_collection import JobCollection
from ..store.jobs import instances

KNOWN_FOR: Final = 0.5
"""Seconds for which an answer is reused: a pause holds for every claim that begins this much later."""

LOOK_FOR_RESUMES: Final = 0.9
"""Seconds between two questions while a name is paused, so that an idle scheduler notices that it is resumed."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The last answer.

    Attributes:
        names: The paused names.
        announced: How many changes had been announced before the question.
        asked_at: The moment of the question, on the clock of `time.monotonic`.
    """

    names: frozenset[str]
    announced: int
    asked_at: float


class PausedNames:
    """The paused names, as far as this scheduler knows. Called from any thread.

    In virtual time the answer is reused until a change is announced.

    Attributes:
        is_announced: A change stream announces every change (by `forget`), so `run` need not ask.
    """

    def __init__(self, db_threads: DatabaseThreads, *, time_of_loops: LoopTime | None = None) -> None:
        self.progress = Progress("look for resumes")
        self._db_threads = db_threads
        self._time = time_of_loops or loop_time()
        self._lock = threading.Lock()
        self._announced = 0
        self._known = _Known(frozenset(), -1, 0.0)
        self._were_paused: frozenset[str] = frozenset()
        self.is_announced = False

    @property
    def names(self) -> frozenset[str]:
        """The last answer, which may be outdated."""
        return self._known.names

    def forget(self) -> None:
        """A name was paused or resumed: the next claim asks the database again."""
        with self._lock:
            self._announced += 1

    def look_up(self, jobs: JobCollection) -> frozenset[str]:
        """Return the names that are paused now, or were at most KNOWN_FOR seconds ago.

        Runs in a database thread.

        Raises:
            MonqueConnectionError: The database did not answer. The caller must not claim then.
        """
        known, announced, now = self._known, self._announced, time.monotonic()
        if known.announced == announced and (self._time.is_event_driven or now - known.asked_at < KNOWN_FOR):
            return known.names
        # The counter and the time from before the question: a change that is announced while the question is on its way
        # may be missing in the answer, which must then not be used again.
        fresh = _Known(instances.paused(jobs), announced, now)
        with self._lock:
            # Two questions may overlap, and the older answer arrive last: it must not replace the newer one.
            if (fresh.announced, fresh.asked_at) > (self._known.announced, self._known.asked_at):
                self._known = fresh
            self._were_paused |= fresh.names
        return fresh.names

    async def run(self, jobs: JobCollection, look: Callable[[], None]) -> None:
        """While a name is paused and no change stream is open, ask for resumed names, and call `look` for these.

        Returns at once in virtual time, where local wakeups announce each resume.
        """
        while not self._time.is_event_driven:
            # While all jobs that are due have paused names, no claim asks, and a resume would go unnoticed.
            await trio.sleep(LOOK_FOR_RESUMES)
            # All names that any answer since the last comparison had. The cached answer is not enough: a claim may have
            # asked after the resume, and the cache has its answer. That claim set no timer for jobs of the resumed name
            # that are due later; the look below does.
            before = self._were_paused
            if not before or self.is_announced:
                continue
            self.progress.ask()
            try:
                now = await self._db_threads.call(
                    partial(self.look_up, jobs), channel=Channel.CLAIMS, abandon_on_cancel=True
                )
            except MonqueConnectionError as error:
                self.progress.fail(error)
                continue  # The claims meet the same fault, and report it.
            self.progress.answered()
            with self._lock:
                self._were_paused = (self._were_paused - before) | now
            if before - now:
                look()
