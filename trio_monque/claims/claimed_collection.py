"""ClaimedCollection: what an operator asks of the documents of one collection that are claimed, at bounded cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ..client.server_time import ServerTime
from ..client.stats_cache import StatsCache
from ..error_types import MissingIndexError
from ..store.documents import counting, indexes, listing_and_readmitting
from ..store.documents.counting import LockCounts
from ..store.documents.listing_and_readmitting import DeadLetterPage
from ..store.documents.locked_collection import LockedCollection
from ..store.driver.connection import check_collection
from ..store.driver.database_threads import DatabaseThreads
from .claim_options import check_filter, check_lock_field

MOST_COUNTED: Final = 10_001
"""One more than is shown, so that a count which stopped at the limit is seen."""

KEPT: Final = 5.0
"""Seconds for which counts are shown again: each reads up to ten thousand documents for each state."""


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """Which documents of a collection are claimed: what the program passes to `open_claims` or `run_claims`.

    Attributes:
        filter: Their filter; {} for all documents.
        lock_field: The field that holds the lock.

    Raises:
        InvalidOptionError: One of them is invalid.
    """

    filter: Mapping[str, Any] = field(default_factory=dict)
    lock_field: str = "lock"

    def __post_init__(self) -> None:
        check_lock_field(self.lock_field)
        check_filter(self.filter, self.lock_field)


class ClaimedCollection:
    """The documents of one collection under these rules. Works on any anyio backend.

    All calls raise MissingIndexError if the collection is large and no index serves the claims, and
    MonqueConnectionError if the database cannot be reached or used.

    Raises:
        InvalidDatabaseError, InvalidOptionError: An argument is invalid.
    """

    def __init__(self, collection: object, rules: ClaimRules) -> None:
        self._locked = LockedCollection.of(check_collection(collection), rules.filter, lock_field=rules.lock_field)
        self._time = ServerTime(self._locked)
        self._db_threads = DatabaseThreads()
        self._counts: StatsCache[LockCounts] = StatsCache(KEPT)

    @property
    def namespace(self) -> str:
        """The collection with its database."""
        return str(self._locked.collection.full_name)

    async def counts(self) -> LockCounts:
        """Return how many documents are in each state, each up to MOST_COUNTED; at most one query at a time."""
        known = self._counts.known(None)
        if known is not None:
            return known
        ask = partial(self._counts.get, None, self._counted)
        return await self._db_threads.call(ask, abandon_on_cancel=True)

    async def dead_letters(self, after: Mapping[str, Any] | None, limit: int) -> DeadLetterPage:
        """Return a page of dead letters, in the order of their ids.

        Args:
            after: The `next` of the page before; None for the first page.
            limit: How many letters it has at most.
        """
        return await self._db_threads.call(partial(self._page, after, limit), abandon_on_cancel=True)

    async def readmit(self, ids: Sequence[Any] | None) -> int:
        """Make the dead letters among these claimable again, or all of them for None; return how many."""
        return await self._db_threads.call(partial(self._readmitted, ids))

    def _counted(self) -> LockCounts:
        self._check_index()
        return counting.count(self._locked, self._time.now(), MOST_COUNTED)

    def _page(self, after: Mapping[str, Any] | None, limit: int) -> DeadLetterPage:
        self._check_index()
        return listing_and_readmitting.page(self._locked, after, limit)

    def _readmitted(self, ids: Sequence[Any] | None) -> int:
        if ids is None:
            self._check_index()
        return listing_and_readmitting.readmit(self._locked, ids)

    def _check_index(self) -> None:
        """Not once for all: the collection grows, and an index may be dropped."""
        if indexes.is_large(self._locked) and not indexes.is_served(self._locked, self._time.now()):
            raise MissingIndexError(
                f"no index of {self.namespace} serves the claims, and this would read all of its documents: call "
                "create_claim_index(collection, filter) once"
            )
