"""Notices documents that were finished and match the filter all the same: they would be claimed without end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NoReturn

import trio

from ..engine.progress import Progress
from ..errors import MonqueConnectionError
from ..store import documents
from ..store.database_threads import DatabaseThreads
from ..store.documents.locked_collection import LockedCollection
from .locked_document import HeldDocument

MOST_REMEMBERED: Final = 100_000
"""Documents that still match; the first of them that is claimed again ends the claims."""

MOST_AT_ONCE: Final = 1000


class ReclaimGuard:
    """Looks at what was finished, right after, and beside everything else: what came to match later is new work.

    Attributes:
        progress: How its loop gets on.
    """

    def __init__(self, locked: LockedCollection, door: DatabaseThreads, by: str) -> None:
        """`by` is the instance."""
        self.progress = Progress("filter watcher")
        self._locked = locked
        self._door = door
        self._by = by
        self._unseen: dict[bytes, Any] = {}
        self._still_matching: set[bytes] = set()
        self._arrived = trio.Event()

    def finished(self, documents: Iterable[HeldDocument]) -> None:
        """They have come to their end, and the lock is gone."""
        for one in documents:
            self._unseen[one.key] = one.id
            self._arrived.set()

    def is_repeat(self, key: bytes) -> bool:
        """Whether a document that is claimed now was finished here before, and has matched ever since."""
        return key in self._still_matching or key in self._unseen

    async def run(self) -> NoReturn:
        while True:
            self.progress.plan(math.inf)
            await self._arrived.wait()
            keys = list(self._unseen)[:MOST_AT_ONCE]
            ids = [self._unseen[key] for key in keys]
            self.progress.ask()
            try:
                # What this instance has claimed again meanwhile was there to be claimed.
                look = partial(documents.due.still_matching, self._locked, ids, self._by)
                found = await self._door.call(look, abandon_on_cancel=True)
            except MonqueConnectionError as error:
                self.progress.fail(error)
                found = frozenset()  # It is for a mistake of the program's, which it makes again.
            else:
                self.progress.answered()
            for key in keys:
                self._unseen.pop(key, None)
            if not self._unseen:
                self._arrived = trio.Event()
            if len(self._still_matching) < MOST_REMEMBERED:
                self._still_matching.update(found)
