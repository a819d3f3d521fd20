"""New jobs that a scheduler has heard of: each is told twice, by its client in this run and by the change stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ..store.types import ObjectId

MOST_REMEMBERED: Final = 10_000
"""One that is forgotten costs a look. The second word comes milliseconds after the first."""


@dataclass(frozen=True, slots=True)
class JobKey:
    """By what one job is asked for.

    Attributes:
        id: Its id.
        due: When it was said to be due.
        attempts: How often it had been claimed then.
    """

    id: ObjectId
    due: datetime
    attempts: int = 0


class Told:
    """The ids of the last new jobs that were told. Written on the run's thread, read in others, too.

    A job is inserted once, and whoever tells of that does so afterwards. The first word has caused a look
    after the insertion, or set a timer; the second one can tell nothing more. Of what is changed later
    nothing is remembered: it may be changed back and forth.
    """

    def __init__(self) -> None:
        self._ids: set[ObjectId] = set()
        self._order: deque[ObjectId] = deque()

    def __contains__(self, job_id: ObjectId) -> bool:
        return job_id in self._ids

    def add(self, ids: Iterable[ObjectId]) -> None:
        for job_id in ids:
            if job_id not in self._ids:
                self._ids.add(job_id)
                self._order.append(job_id)
        while len(self._order) > MOST_REMEMBERED:
            self._ids.discard(self._order.popleft())
