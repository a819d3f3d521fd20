"""What is asked of the jobs: one function a query, each served by an index of `indexes.py`."""

from __future__ import annotations

from collections.abc import Sequence

from bson import ObjectId
from pymongo import ASCENDING

from ..jobs.job import Job
from ..jobs.selection import JobQuery
from ..jobs.transition import OneOf
from .codec import FIELD, filter_of
from .connection import JobCollection
from .outcomes import command

_EARLIEST = [(FIELD["next_run_at"], ASCENDING), ("_id", ASCENDING)]


@command("read the job", writes=False)
def get_job(jobs: JobCollection, job_id: ObjectId) -> Job | None:
    """The job; None where there is none. Raises BrokenDocumentError where the document is none."""
    document = jobs.raw.find_one({"_id": job_id})
    return None if document is None else jobs.codec.decode(document)


@command("read jobs", writes=False)
def get_jobs(jobs: JobCollection, query: JobQuery) -> Sequence[Job]:
    """A page of jobs, earliest first; documents that are no jobs are left out, and told once."""
    guard: dict[str, object] = {}
    if query.name is not None:
        guard["name"] = query.name
    if query.statuses is not None:
        guard["status"] = OneOf(query.statuses)
    return jobs.decoded(
        lambda collection: collection.find(filter_of(guard), sort=_EARLIEST, limit=query.limit, skip=query.skip)
    )
