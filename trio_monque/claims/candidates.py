"""Finds the documents to claim next: they match the filter and are free, in the order of `sort`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from ..engine.demand import Demand, Found
from ..store import documents
from ..store.database_threads import Channel, DatabaseThreads
from ..store.documents.locked_collection import LockedCollection
from ..store.types import ObjectId

GROUP: Final = "documents"
"""All documents of a filter share one concurrency limit."""


class DocumentFinder:
    """Finds ids. Used on the thread of the trio run; queries run in database threads."""

    def __init__(self, locked: LockedCollection, db_threads: DatabaseThreads) -> None:
        self._locked = locked
        self._db_threads = db_threads

    def key_of(self, document_id: Any) -> Hashable:
        # Most ids are ObjectIds. For these the key costs nothing; `key_of` encodes the id as BSON.
        return document_id if type(document_id) is ObjectId else self._locked.key_of(document_id)

    @staticmethod
    def group_of(_id: Any) -> str:
        return GROUP

    def groups(self, demand: Demand) -> Mapping[str, int]:
        return demand.groups

    def accepts(self, demand: Demand) -> Callable[[Any], bool] | None:
        return None

    def choose(self, found: Sequence[Any], demand: Demand) -> Sequence[Any]:
        return found

    async def look(
        self, wanted: Mapping[str, int], passed_over: Mapping[str, int], demand: Demand, now: datetime
    ) -> Found[Any]:
        look: Callable[[], documents.due.SeenIds] = partial(
            documents.due.survey, self._locked, wanted[GROUP], now, passed_over=passed_over.get(GROUP, 0)
        )
        seen = await self._db_threads.call(look, channel=Channel.CLAIMS, abandon_on_cancel=True)
        return Found(seen.ids, wanted, (GROUP,) if seen.is_all else (), (GROUP,) if seen.is_short else ())
