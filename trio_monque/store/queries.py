"""Reads of jobs: one by its id, lists, pages, and the names that have jobs. `index_scans.py` chooses the index.

A page is capped: it looks at `MOST_EXAMINED` jobs at most, where a filter lets few of them pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from bson import ObjectId
from pymongo import ASCENDING

from ..jobs.cursors import Anchor, anchor_of
from ..jobs.job import Job, JobStatus
from ..jobs.job_query import JobQuery
from ..jobs.views import Found
from . import indexes
from .codec import LENIENT, OWN_OPTIONS
from .commands import at_one_moment, command
from .fields import BUT_HEAVY, FIELD
from .index_scans import IndexScan, ScansByName, scans_of
from .job_collection import JobCollection
from .types import ClientSession, Collection

T = TypeVar("T")

MOST_EXAMINED: Final = 10_000
"""How many jobs a page looks at, where a filter lets few pass, before it is capped; or as many as it shows."""

_GROWTH: Final = 8


@command("read the job", writes=False)
def get_job(jobs: JobCollection, job_id: ObjectId) -> Job | None:
    """The job; None where there is none. Raises BrokenDocumentError where the document is none."""
    document = jobs.raw.find_one({"_id": job_id})
    return None if document is None else jobs.codec.decode(document)


@command("read jobs", writes=False)
def get_jobs(jobs: JobCollection, query: JobQuery) -> Sequence[Job]:
    """Return up to `limit` jobs; documents that are not jobs are left out, and logged once."""

    def read(session: ClientSession | None) -> Sequence[Job]:
        behind = query
        if query.skip:
            # What is passed over are jobs, and not documents: otherwise a broken one would show a job on two pages.
            passed = _found(jobs, query, query.skip, None, session, light=True).jobs
            if len(passed) < query.skip:
                return []
            behind = replace(query, anchor=anchor_of(passed[-1], query.sort.by))
        return _found(jobs, behind, query.limit, None, session).jobs

    return _at_one_moment(jobs, query, read)


@command("read a page of jobs", writes=False)
def get_page(jobs: JobCollection, query: JobQuery, most_examined: int | None = None) -> Found:
    """Return one job more than the limit, if there is one; what is not a job is left out, and logged once."""
    wanted = query.limit + 1
    # More than what is wanted: what needs no looking through is read at once, and not asked for where it ends.
    cap = max(MOST_EXAMINED, wanted + 1) if most_examined is None else most_examined
    return _at_one_moment(jobs, query, lambda session: _found(jobs, query, wanted, cap, session))


def _at_one_moment(jobs: JobCollection, query: JobQuery, read: Callable[[ClientSession | None], T]) -> T:
    """Reads what takes two reads as it was at one moment, in a session of its own; or without one.

    What is claimed or settled changes from one index to the other, and a name has jobs at rest or has none. Between
    two reads a job may do that twice, and be seen by neither. A snapshot is what a majority holds: who writes with
    less would not see what was just written.
    """
    paths = scans_of(query)
    can_be_missed = len(paths) > 1 or any(isinstance(path, ScansByName) for path in paths)
    if can_be_missed and jobs.collection.write_concern.document.get("w") == "majority":
        return at_one_moment(jobs.collection, read)
    return read(None)


def _in_turn(jobs: JobCollection, query: JobQuery, session: ClientSession | None) -> Iterator[IndexScan]:
    """What is read, in this order; in a snapshot each is read once.

    Without one, what runs and what rests are read twice in turn, and the names anew each time, between the two. The
    first sight of a job counts. Only one that is claimed, ends and is claimed once more while they are read may be
    missed.
    """
    paths = scans_of(query)
    for path in paths if session is not None or len(paths) < 2 else [*paths, *paths]:
        if isinstance(path, IndexScan):
            yield path
        else:
            names = names_at_rest(jobs, path.names_of, path.most_names + 1, session)
            if (of_these := path.path(names)) is not None:
                yield of_these


def _found(
    jobs: JobCollection,
    query: JobQuery,
    wanted: int,
    cap: int | None,
    session: ClientSession | None,
    *,
    light: bool = False,
) -> Found:
    seen: dict[ObjectId, Job] = {}
    frontiers = []
    is_capped = False
    for path in _in_turn(jobs, query, session):
        reader = PageReader(jobs, path, query, cap if path.is_sorted else None, light, session)
        found = reader.read(wanted)
        for job in found.jobs:
            seen.setdefault(job.id, job)
        if found.frontier is not None:
            frontiers.append(found.frontier)
        is_capped = is_capped or found.is_capped
    ordered = sorted(seen.values(), key=lambda job: anchor_of(job, query.sort.by).key, reverse=query.descending)
    if not frontiers:
        return Found(jobs=ordered[:wanted], frontier=None if len(ordered) <= wanted else _end(ordered, wanted, query))
    frontier = (max if query.descending else min)(frontiers, key=lambda anchor: anchor.key)
    known = [job for job in ordered if not _is_behind(anchor_of(job, query.sort.by), frontier, query)]
    return Found(jobs=known[:wanted], frontier=frontier, is_capped=is_capped)


def _end(ordered: Sequence[Job], wanted: int, query: JobQuery) -> Anchor:
    return anchor_of(ordered[wanted - 1], query.sort.by)


def _is_behind(anchor: Anchor, frontier: Anchor, query: JobQuery) -> bool:
    return anchor.key < frontier.key if query.descending else anchor.key > frontier.key


@dataclass(frozen=True)
class PageReader:
    """Reads along one path.

    Attributes:
        cap: How many documents are looked at, at most; None for as many as it takes.
        light: Without what handlers gave and stored.
        session: One with a snapshot, where there is one.
    """

    jobs: JobCollection
    path: IndexScan
    query: JobQuery
    cap: int | None
    light: bool
    session: ClientSession | None

    def read(self, wanted: int) -> Found:
        """Read that many jobs, or all there are up to the frontier."""
        size = wanted
        # How many are looked through for what passes the residual. The server reads them all, also where the first
        # few would do: what a pipeline reads of an index comes in batches of megabytes. So it begins with few.
        window = _GROWTH * wanted if self._is_filtered else None
        stopped: Anchor | None = None
        is_bounded = False
        while True:
            if self.cap is not None and not is_bounded and max(size, window or 0) >= self.cap:
                # Where it stops is read first, and is the end of what is read then. By number alone it might lie
                # behind what was looked at: others delete meanwhile.
                stopped, window, is_bounded = self.capped_at(), None, True
            found, number = self._decoded(size, window, stopped)
            if len(found) >= wanted:
                found = found[:wanted]
                return Found(jobs=found, frontier=anchor_of(found[-1], self.path.by))
            if number < size and window is None:
                return Found(jobs=found, frontier=stopped, is_capped=stopped is not None)
            if number == size:
                size *= _GROWTH  # Some are not jobs: it is read again, and beyond.
            window = window and window * _GROWTH

    @property
    def _is_filtered(self) -> bool:
        """Whether what is looked for must be looked for, and not for ever."""
        return bool(self.path.residual) and self.cap is not None

    def _ranges(self, until: Anchor | None = None, *, with_residual: bool) -> dict[str, Any]:
        descending = self.query.descending
        return self.path.ranges(self.query.anchor, until, descending=descending, with_residual=with_residual)

    def _decoded(self, size: int, window: int | None, until: Anchor | None) -> tuple[list[Job], int]:
        """Return the jobs among the first `size` matching documents up to that place, and the number of documents."""
        number = 0

        def counted(collection: Collection) -> Iterable[Any]:
            nonlocal number
            documents = list(indexes.hinted(self.path.index, partial(self._documents, collection, size, window, until)))
            number = len(documents)
            return documents

        return self.jobs.decoded(counted), number

    def _documents(
        self, collection: Collection, size: int, window: int | None, until: Anchor | None, hint: str | None
    ) -> list[Any]:
        order = self.path.order(descending=self.query.descending)
        if window is None:
            projection = BUT_HEAVY if self.light else None
            wanted = self._ranges(until, with_residual=True)
            found = collection.find(wanted, projection, sort=order, limit=size, hint=hint, session=self.session)
            return list(found)
        return list(
            collection.aggregate(
                [
                    {"$match": self._ranges(with_residual=False)},
                    {"$sort": dict(order)},
                    {"$limit": window},
                    {"$match": self.path.residual},
                    {"$limit": size},
                ],
                session=self.session,
                **indexes.hinting(hint),
            )
        )

    def capped_at(self) -> Anchor | None:
        """The last place that was looked at; None where that was the last there is. Read from the index alone."""
        if self.cap is None:
            return None
        ranges = self._ranges(with_residual=False)
        order = self.path.order(descending=self.query.descending)
        places = self.jobs.collection.with_options(codec_options=OWN_OPTIONS)
        keys = {FIELD["id"]: self.path.by == "id", **{name: True for name, _ in order}}
        read = partial(places.find, ranges, keys, sort=order, skip=self.cap - 1, limit=1, session=self.session)
        documents = indexes.hinted(self.path.index, lambda hint: list(read(hint=hint)))
        if not documents:
            return None
        value = documents[0].get(FIELD[self.path.by]) if self.path.by != "id" else None
        assert value is None or isinstance(value, datetime)
        return Anchor(documents[0][FIELD["id"]], value)


# --- Names ---

_STATUS, _NAME = FIELD["status"], FIELD["name"]


@command("look for the names of jobs", writes=False, aggregates=True)
def names(jobs: JobCollection) -> set[str]:
    """The names that there are jobs of: one key of an index for each, and all claims."""
    collection = jobs.collection.with_options(codec_options=LENIENT)
    running = {_STATUS: JobStatus.PROCESSING.value}
    only_name = {"_id": False, _NAME: True}
    held = indexes.hinted(indexes.HELD, lambda hint: list(collection.find(running, only_name, hint=hint)))
    found = {document[_NAME] for document in held if type(document.get(_NAME)) is str}
    return (found | set(names_at_rest(jobs, indexes.AT_REST))) - {""}


def names_at_rest(
    jobs: JobCollection, statuses: Sequence[JobStatus], most: int | None = None, session: ClientSession | None = None
) -> Sequence[str]:
    """Return the names, at most `most`, that have jobs of these statuses: one status, or all at rest.

    Part of a command. In one answer, and one key for each name: the server skips through the index (DISTINCT_SCAN). It
    does so with a partial index only where the statuses are just those, and the name has a bound. The bound leaves out
    names that are not text.
    """
    values = [status.value for status in statuses]
    steps: list[dict[str, Any]] = [
        {"$match": {_NAME: {"$gte": ""}, _STATUS: values[0] if len(values) == 1 else {"$in": values}}},
        {"$sort": {_NAME: ASCENDING, _STATUS: ASCENDING}},
        {"$group": {"_id": "$" + _NAME}},
    ]
    if most is not None:
        steps.append({"$limit": most})
    collection = jobs.collection.with_options(codec_options=LENIENT)
    found = indexes.hinted(
        indexes.CLAIM,
        lambda hint: list(collection.aggregate(steps, session=session, **indexes.hinting(hint))),
    )
    return [one["_id"] for one in found if type(one["_id"]) is str]
