"""Reads a page along one scan of an index, up to a cap: `index_scans.py` says which scans a page has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from ...jobs.cursors import Anchor, anchor_of
from ...jobs.job_query import JobQuery
from ...jobs.views import Found
from ..codec import OWN_OPTIONS
from ..driver.bounded_counts import first_of
from ..driver.raw_batches import RawBatches, aggregated_in_batches, found_in_batches
from ..driver.types import ClientSession
from ..fields import BUT_HEAVY, FIELD
from ..job_collection import JobCollection
from ..jobs import indexes
from ..jobs.index_scans import IndexScan
from .bounded_bytes import ReadJobs, read_jobs

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
        most_bytes: After this many bytes of jobs, read no further ones; None for any number.
        session: A session with a snapshot, or None.
    """

    jobs: JobCollection
    scan: IndexScan
    query: JobQuery
    cap: int | None
    light: bool
    most_bytes: int | None
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
            part = self._decoded(size, window, stopped)
            found = part.jobs
            if len(found) >= wanted:
                found = found[:wanted]
                return Found(jobs=found, frontier=anchor_of(found[-1], self.scan.by))
            if part.is_cut:
                # How many the server looked through is known only if it compares nothing but the bounds of the scan.
                examined = None if self.scan.residual else part.number
                return Found(jobs=found, frontier=anchor_of(found[-1], self.scan.by), is_capped=True, examined=examined)
            if part.number < size and window is None:
                is_capped = stopped is not None
                return Found(
                    jobs=found, frontier=stopped, is_capped=is_capped, examined=self.cap if is_capped else None
                )
            if part.number == size:
                size *= _GROWTH  # Some documents are not jobs: read them again, and more.
            window = window and window * _GROWTH

    @property
    def _is_filtered(self) -> bool:
        """Whether the server filters documents, up to a cap."""
        return bool(self.scan.residual) and self.cap is not None

    def _ranges(self, until: Anchor | None = None, *, with_residual: bool) -> dict[str, Any]:
        descending = self.query.descending
        return self.scan.ranges(self.query.anchor, until, descending=descending, with_residual=with_residual)

    def _decoded(self, size: int, window: int | None, until: Anchor | None) -> ReadJobs:
        """Return the jobs among the first `size` matching documents up to that place."""

        def read(hint: str | None) -> ReadJobs:
            return read_jobs(self.jobs, self._batches(size, window, until, hint), self.most_bytes)

        return self._hinted(read)

    def _hinted(self, read: Callable[[str | None], T]) -> T:
        return indexes.hinted(self.scan.index, read, is_needed=self.scan.is_index_needed)

    def _batches(self, size: int, window: int | None, until: Anchor | None, hint: str | None) -> RawBatches:
        collection, order = self.jobs.collection, self.scan.order(descending=self.query.descending)
        if window is None:
            projection = BUT_HEAVY if self.light else None
            wanted = self._ranges(until, with_residual=True)
            return found_in_batches(
                collection, wanted, projection, sort=order, limit=size, hint=hint, session=self.session
            )
        steps = [
            *first_of(self._ranges(with_residual=False), window, dict(order)),
            *first_of(self.scan.residual, size),
        ]
        return aggregated_in_batches(collection, steps, session=self.session, **indexes.hinting(hint))

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
