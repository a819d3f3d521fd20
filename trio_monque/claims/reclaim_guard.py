"""Detects finished documents that still match the filter: the instance would claim them again without end.

A document that matches later, because another program opened it again, is new work and must not count. So the guard
looks right after the result was written, and decides by what this look finds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NoReturn

import trio

from ..engine.progress import Progress
from ..error_types import MonqueConnectionError
from ..store import documents
from ..store.documents.locked_collection import LockedCollection
from ..store.driver.database_threads import DatabaseThreads
from .locked_document import HeldDocument

MOST_REMEMBERED: Final = 100_000
"""A bound on memory: how many documents that still match are kept. The first that is claimed again ends the claims."""

MOST_AT_ONCE: Final = 1000


class ReclaimGuard:
    """Looks at finished documents, in a loop of its own, so that no settlement waits for it.

    Attributes:
        progress: The health of that loop.
    """

    def __init__(self, locked: LockedCollection, db_threads: DatabaseThreads, by: str) -> None:
        """`by` is the name of this instance in locks."""
        self.progress = Progress("filter watcher")
        self._locked = locked
        self._db_threads = db_threads
        self._by = by
        self._unseen: dict[bytes, Any] = {}
        self._still_matching: set[bytes] = set()
        self._arrived = trio.Event()

    def finished(self, documents: Iterable[HeldDocument]) -> None:
        """The results of these documents are written, and their locks are gone."""
        for one in documents:
            # It counts from now on, before the look: this instance may claim it again in between.
            self._unseen[one.key] = one.id
            self._arrived.set()

    def is_repeat(self, key: bytes) -> bool:
        """Whether a document that is claimed now was finished here before, and has matched the filter ever since."""
        return key in self._still_matching or key in self._unseen

    async def run(self) -> NoReturn:
        while True:
            self.progress.plan(math.inf)
            await self._arrived.wait()
            keys = list(self._unseen)[:MOST_AT_ONCE]
            ids = [self._unseen[key] for key in keys]
            self.progress.ask()
            try:
                # `by`: a lock of this instance does not hide the document from this look. The document was claimed
                # again because it still matched.
                look = partial(documents.due.still_matching, self._locked, ids, self._by)
                found = await self._db_threads.call(look, abandon_on_cancel=True)
            except MonqueConnectionError as error:
                self.progress.fail(error)
                found = frozenset()  # No retry: a program with a wrong filter makes the same mistake again soon.
            else:
                self.progress.answered()
            # A document that the look did not find stops counting: if it matches again, it is new work.
            for key in keys:
                self._unseen.pop(key, None)
            if not self._unseen:
                self._arrived = trio.Event()
            if len(self._still_matching) < MOST_REMEMBERED:
                self._still_matching.update(found)
