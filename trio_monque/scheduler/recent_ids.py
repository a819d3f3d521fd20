"""RecentIds: drops the second announcement of a new job.

A job that a client of the same trio run inserts is announced twice: by the client, and by the change stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from ..store.types import ObjectId

MOST_REMEMBERED: Final = 10_000
"""Ids that are remembered. A forgotten one costs a look; the second announcement comes milliseconds after the first."""


class RecentIds:
    """The ids of the last new jobs that were announced. Written on the thread of the run, read in others too.

    A job is inserted once, and both announcements follow the insert. The first one caused a look after the insert, or
    set a timer, so the second one has no news. Only inserts are remembered: a later change may be undone and made
    again, so each announcement of a change counts.
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
