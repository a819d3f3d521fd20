"""What is asked of the jobs: one function a query, each served by an index of `indexes.py`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bson import ObjectId
from pymongo import ASCENDING

from ..errors import BrokenDocumentError
from ..jobs.job import Job
from ..jobs.selection import JobQuery
from ..jobs.transition import OneOf
from .codec import FIELD, filter_of
from .connection import JobCollection
from .outcomes import command

logger = logging.getLogger("trio_monque.store")

_EARLIEST = [(FIELD["next_run_at"], ASCENDING), ("_id", ASCENDING)]


@command("read the job", writes=False)
def get_job(jobs: JobCollection, job_id: ObjectId) -> Job | None:
    """The job; None where there is none. Raises BrokenDocumentError where the document is none."""
    document = jobs.collection.find_one({"_id": job_id})
    return None if document is None else jobs.codec.decode(document)


@command("read jobs", writes=False)
def get_jobs(jobs: JobCollection, query: JobQuery) -> Sequence[Job]:
    """A page of jobs, earliest first; documents that are no jobs are left out, and told once."""
    guard: dict[str, object] = {}
    if query.name is not None:
        guard["name"] = query.name
    if query.statuses is not None:
        guard["status"] = OneOf(query.statuses)
    found = []
    for document in jobs.collection.find(filter_of(guard), sort=_EARLIEST, limit=query.limit, skip=query.skip):
        try:
            found.append(jobs.codec.decode(document))
        except BrokenDocumentError as error:
            if jobs.report_broken(error.document_id):
                logger.warning("%s", error)
    return found
