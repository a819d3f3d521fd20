"""Reads of jobs: one by its id, lists, pages, and the names that have jobs. `index_scans.py` chooses the index.

A page is capped: if its filter matches few jobs, the page reads `MOST_EXAMINED` jobs at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from bson import ObjectId
from pymongo import ASCENDING

from ...jobs.conditional_write import OneOf, Within
from ...jobs.cursors import Anchor, anchor_of
from ...jobs.job import Job, JobStatus
from ...jobs.job_query import JobQuery
from ...jobs.views import Found
from ..codec import LENIENT, filter_of
from ..driver.commands import BY_ID, at_one_moment, command
from ..driver.types import ClientSession
from ..fields import FIELD
from ..job_collection import JobCollection
from ..jobs import indexes
from ..jobs.index_scans import IndexScan, ScansByName, scans_of, scans_of_fields
from .bounded_bytes import MOST_BYTES
from .page_reader import PageReader

T = TypeVar("T")

MOST_EXAMINED: Final = 10_000
"""The number of jobs that a page reads at most if its filter matches few of them."""


@command("read the job", writes=False)
def get_job(jobs: JobCollection, job_id: ObjectId) -> Job | None:
    """Return the job; None if there is none. Raises BrokenDocumentError if the document is not a job."""
    document = jobs.raw.find_one({"_id": job_id})
    return None if document is None else jobs.codec.decode(document)


@command("read the scope of the job", writes=False)
def scope_of_children(jobs: JobCollection, parent_id: ObjectId) -> ObjectId | None:
    """Return the scope that the children of this job have, or had when its work ended; None if it never had one."""
    own, last = FIELD["nursery.id"], FIELD["internals.last_scope"]
    collection = jobs.collection.with_options(codec_options=LENIENT)
    document = collection.find_one({"_id": parent_id}, [own, last], hint=BY_ID) or {}
    # The job of a program has only the first.
    scope = document.get(own) or document.get(last)
    return scope if isinstance(scope, ObjectId) else None


@command("read the document", writes=False)
def raw_documents(jobs: JobCollection, ids: Sequence[object]) -> Sequence[dict[str, Any]]:
    """Return the documents with these ids, whether or not they are jobs."""
    collection = jobs.collection.with_options(codec_options=LENIENT)
    return list(collection.find({"_id": {"$in": [*ids]}}, hint=BY_ID))


@command("read the job of the key", writes=False)
def get_job_by_key(jobs: JobCollection, name: str, unique_key: str) -> Job | None:
    """Return the pending or processing job that has the key. Raises BrokenDocumentError if that is not a job."""
    live = OneOf((JobStatus.PENDING, JobStatus.PROCESSING))
    of_key = filter_of({"name": name, "unique_key": unique_key, "status": live})
    document = indexes.hinted(indexes.UNIQUE_KEY, lambda hint: jobs.raw.find_one(of_key, **indexes.hinting(hint)))
    return None if document is None else jobs.codec.decode(document)


@command("count the jobs that are due before it", writes=False)
def count_due_before(jobs: JobCollection, job: Job, limit: int) -> int:
    """Return how many jobs of the name of this pending job are due before it, counted up to `limit`."""
    earlier = filter_of({"name": job.name, "status": JobStatus.PENDING, "next_run_at": Within(below=job.next_run_at)})
    return indexes.hinted(
        indexes.CLAIM,
        lambda hint: jobs.collection.count_documents(earlier, limit=limit, **indexes.hinting(hint)),
    )


@command("read jobs", writes=False)
def get_jobs(jobs: JobCollection, query: JobQuery) -> Sequence[Job]:
    """Return up to `limit` jobs; documents that are not jobs are left out, and logged once."""

    def read(session: ClientSession | None) -> Sequence[Job]:
        behind = query
        if query.skip:
            # Skip jobs, not documents: with a broken document among them, a job would be on two pages.
            in_turn = _in_turn(jobs, query, session)
            passed = _found(jobs, query, in_turn, query.skip, None, session, light=True).jobs
            if len(passed) < query.skip:
                return []
            behind = replace(query, anchor=anchor_of(passed[-1], query.sort.by))
        return _found(jobs, behind, _in_turn(jobs, behind, session), query.limit, None, session).jobs

    return _at_one_moment(jobs, query, read)


@command("read a page of jobs", writes=False)
def get_page(jobs: JobCollection, query: JobQuery, most_examined: int | None = None) -> Found:
    """Return one job more than the limit, if there is one; what is not a job is left out, and logged once.

    It ends early behind large jobs: see `bounded_bytes.py`.
    """
    wanted = query.limit + 1
    # More than wanted: a page without a filter then never reaches its cap, and needs no query for the place of the cap.
    cap = max(MOST_EXAMINED, wanted + 1) if most_examined is None else most_examined
    for scan in scans_of_fields(query):
        with suppress(indexes.NoSuchIndexError):
            return _found(jobs, query, [scan], wanted, cap, None)
    return _at_one_moment(
        jobs, query, lambda session: _found(jobs, query, _in_turn(jobs, query, session), wanted, cap, session)
    )


def _at_one_moment(jobs: JobCollection, query: JobQuery, read: Callable[[ClientSession | None], T]) -> T:
    """Call `read` with a snapshot session if the query takes several reads, otherwise without one."""
    # A claim moves a job from one index to another, and its end moves the job back. Between two reads it may do both,
    # and neither read finds it. With a weaker write concern than majority there is no snapshot: a snapshot is what a
    # majority holds, so a client would not find what it has just written.
    scans = scans_of(query)
    can_be_missed = len(scans) > 1 or any(isinstance(scan, ScansByName) for scan in scans)
    if can_be_missed and jobs.collection.write_concern.document.get("w") == "majority":
        return at_one_moment(jobs.collection, read)
    return read(None)


def _in_turn(jobs: JobCollection, query: JobQuery, session: ClientSession | None) -> Iterator[IndexScan]:
    """Yield the scans to read, in order. With a snapshot, each is read once."""
    # Without a snapshot, all scans are read twice in turn, and the names each time. The first copy of a job counts.
    # Then a page misses only a job that is claimed, ends and is claimed again during these reads.
    scans = scans_of(query)
    for scan in scans if session is not None or len(scans) < 2 else [*scans, *scans]:
        if isinstance(scan, IndexScan):
            yield scan
        else:
            names = names_at_rest(jobs, scan.names_of, scan.most_names + 1, session)
            if (of_these := scan.of_names(names)) is not None:
                yield of_these


def _found(
    jobs: JobCollection,
    query: JobQuery,
    scans: Iterable[IndexScan],
    wanted: int,
    cap: int | None,
    session: ClientSession | None,
    *,
    light: bool = False,
) -> Found:
    seen: dict[ObjectId, Job] = {}
    frontiers = []
    examined = dict[str, int | None]()  # Of those that stopped. Without a snapshot, a scan is read twice.
    most_bytes = None if cap is None else MOST_BYTES  # A page has both limits, and a list has none.
    for scan in scans:
        reader = PageReader(jobs, scan, query, cap if scan.is_sorted else None, light, most_bytes, session)
        found = reader.read(wanted)
        for job in found.jobs:
            seen.setdefault(job.id, job)
        if found.frontier is not None:
            frontiers.append(found.frontier)
        if found.is_capped:
            examined[scan.index] = found.examined
    ordered = sorted(seen.values(), key=lambda job: anchor_of(job, query.sort.by).key, reverse=query.descending)
    if not frontiers:
        end = anchor_of(ordered[wanted - 1], query.sort.by) if len(ordered) > wanted else None
        return Found(jobs=ordered[:wanted], frontier=end)
    # The scan that stopped first decides: behind its frontier it may have further jobs, which would be missing between
    # those of the other scans.
    frontier = (max if query.descending else min)(frontiers, key=lambda anchor: anchor.key)
    known = [job for job in ordered if not _is_behind(anchor_of(job, query.sort.by), frontier, query)]
    numbers = [one for one in examined.values() if one is not None]
    in_all = sum(numbers) if numbers and len(numbers) == len(examined) else None
    return Found(jobs=known[:wanted], frontier=frontier, is_capped=bool(examined), examined=in_all)


def _is_behind(anchor: Anchor, frontier: Anchor, query: JobQuery) -> bool:
    return anchor.key < frontier.key if query.descending else anchor.key > frontier.key


# --- Names ---

_STATUS, _NAME = FIELD["status"], FIELD["name"]


def names_at_rest(
    jobs: JobCollection, statuses: Sequence[JobStatus], most: int | None = None, session: ClientSession | None = None
) -> Sequence[str]:
    """Return the names, at most `most`, that have jobs of these statuses: one status, or all at rest.

    A part of a command.
    """
    steps = stages_of_names(statuses)
    if most is not None:
        steps.append({"$limit": most})
    collection = jobs.collection.with_options(codec_options=LENIENT)
    found = indexes.hinted(
        indexes.CLAIM,
        lambda hint: list(collection.aggregate(steps, session=session, **indexes.hinting(hint))),
    )
    return [one["_id"] for one in found if type(one["_id"]) is str]


def stages_of_names(statuses: Sequence[JobStatus]) -> list[dict[str, Any]]:
    """Return the stages that find the names of jobs of these statuses: one status, or all at rest.

    One answer, and one key for each name: the server skips through `CLAIM` (DISTINCT_SCAN). With a partial index, it
    does so only if the statuses are exactly those of the index, and if the name has a bound. The bound leaves out names
    that are not text.
    """
    values = [status.value for status in statuses]
    return [
        {"$match": {_NAME: {"$gte": ""}, _STATUS: values[0] if len(values) == 1 else {"$in": values}}},
        {"$sort": {_NAME: ASCENDING, _STATUS: ASCENDING}},
        {"$group": {"_id": "$" + _NAME}},
    ]
