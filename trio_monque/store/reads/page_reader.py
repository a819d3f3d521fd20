"""Reads a page along one scan of an index, up to a cap: `index_scans.py` says which scans a page has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from ...jobs.cursors import Anchor, anchor_of
from ...jobs.job import Job
from ...jobs.job_query import JobQuery
from ...jobs.views import Found
from ..codec import OWN_OPTIONS
from ..driver.bounded_counts import first_of
from ..driver.types import ClientSession, Collection
from ..fields import BUT_HEAVY, FIELD
from ..job_collection import JobCollection
from ..jobs import indexes
from ..jobs.index_scans import IndexScan

T = TypeVar("T")

_GROWTH: Final = 8


@dataclass(frozen=True)
class PageReader:
    """Reads a page along one scan.

    Attributes:
        jobs: The jobs collection.
        scan: The scan.
        query: What the page asks for.
        cap: The number of documents to read at most; None for any number.
        light: Leave out large fields.
        session: A session with a snapshot, or None.
    """

    jobs: JobCollection
    scan: IndexScan
    query: JobQuery
    cap: int | None
    light: bool
    session: ClientSession | None

    def read(self, wanted: int) -> Found:
        """Read that many jobs, or all there are up to the frontier."""
        size = wanted
        # How many documents the server filters by the residual. It reads all of them, even if the first few are enough:
        # a pipeline reads megabytes at once. So this begins with few.
        window = _GROWTH * wanted if self._is_filtered else None
        stopped: Anchor | None = None
        is_bounded = False
        while True:
            if self.cap is not None and not is_bounded and max(size, window or 0) >= self.cap:
                # First read the place of the cap, and then up to that place. A number instead of a place might lead
                # further than what was filtered, as other programs delete jobs meanwhile; and the next page would miss
                # some.
                stopped, window, is_bounded = self.capped_at(), None, True
            found, number = self._decoded(size, window, stopped)
            if len(found) >= wanted:
                found = found[:wanted]
                return Found(jobs=found, frontier=anchor_of(found[-1], self.scan.by))
            if number < size and window is None:
                return Found(jobs=found, frontier=stopped, is_capped=stopped is not None)
            if number == size:
                size *= _GROWTH  # Some documents are not jobs: read them again, and more.
            window = window and window * _GROWTH

    @property
    def _is_filtered(self) -> bool:
        """Whether the server filters documents, up to a cap."""
        return bool(self.scan.residual) and self.cap is not None

    def _ranges(self, until: Anchor | None = None, *, with_residual: bool) -> dict[str, Any]:
        descending = self.query.descending
        return self.scan.ranges(self.query.anchor, until, descending=descending, with_residual=with_residual)

    def _decoded(self, size: int, window: int | None, until: Anchor | None) -> tuple[list[Job], int]:
        """Return the jobs among the first `size` matching documents up to that place, and the number of documents."""
        number = 0

        def counted(collection: Collection) -> Iterable[Any]:
            nonlocal number
            documents = list(self._hinted(partial(self._documents, collection, size, window, until)))
            number = len(documents)
            return documents

        return self.jobs.decoded(counted), number

    def _hinted(self, read: Callable[[str | None], T]) -> T:
        return indexes.hinted(self.scan.index, read, is_needed=self.scan.is_index_needed)

    def _documents(
        self, collection: Collection, size: int, window: int | None, until: Anchor | None, hint: str | None
    ) -> list[Any]:
        order = self.scan.order(descending=self.query.descending)
        if window is None:
            projection = BUT_HEAVY if self.light else None
            wanted = self._ranges(until, with_residual=True)
            found = collection.find(wanted, projection, sort=order, limit=size, hint=hint, session=self.session)
            return list(found)
        return list(
            collection.aggregate(
                [
                    *first_of(self._ranges(with_residual=False), window, dict(order)),
                    *first_of(self.scan.residual, size),
                ],
                session=self.session,
                **indexes.hinting(hint),
            )
        )

    def capped_at(self) -> Anchor | None:
        """Return the place of the cap; None if there are fewer documents. Reads the index alone."""
        if self.cap is None:
            return None
        ranges = self._ranges(with_residual=False)
        order = self.scan.order(descending=self.query.descending)
        places = self.jobs.collection.with_options(codec_options=OWN_OPTIONS)
        keys = {FIELD["id"]: self.scan.by == "id", **{name: True for name, _ in order}}
        read = partial(places.find, ranges, keys, sort=order, skip=self.cap - 1, limit=1, session=self.session)
        documents = self._hinted(lambda hint: list(read(hint=hint)))
        if not documents:
            return None
        value = documents[0].get(FIELD[self.scan.by]) if self.scan.by != "id" else None
        assert value is None or isinstance(value, datetime)
        return Anchor(documents[0][FIELD["id"]], value)
