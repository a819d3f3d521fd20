"""New jobs: one function a round trip."""

from __future__ import annotations

from pymongo import ReturnDocument
from pymongo import errors as driver

from ..jobs.job import Job, JobStatus
from ..jobs.transition import OneOf
from .codec import document_of, filter_of
from .connection import JobCollection
from .outcomes import command


@command("enqueue the job")
def insert(jobs: JobCollection, job: Job) -> None:
    """Inserts a job. Sent again after a lost answer it inserts nothing: its `_id` was made beforehand."""
    try:
        jobs.collection.insert_one(document_of(job))
    except driver.DuplicateKeyError as error:
        # The driver repeats an insert once by itself; where ours had arrived, this is the echo.
        if (error.details or {}).get("keyPattern") != {"_id": 1}:
            raise


@command("enqueue the job")
def insert_unless_key_is_in_use(jobs: JobCollection, job: Job) -> Job:
    """Inserts a job with a unique key, or returns the pending or processing one that has it."""
    in_use = filter_of(
        {
            "name": job.name,
            "unique_key": job.unique_key,
            "status": OneOf((JobStatus.PENDING, JobStatus.PROCESSING)),
        }
    )
    document = document_of(job)
    # A lost race ends in a duplicate key, and the next look finds the winner. Unless it ended meanwhile,
    # and so on: a bound, for a race that is lost for ever is none.
    for remaining in reversed(range(10)):
        try:
            found = jobs.collection.find_one_and_update(
                in_use, {"$setOnInsert": document}, upsert=True, return_document=ReturnDocument.AFTER
            )
        except driver.DuplicateKeyError:
            if not remaining:
                raise
        else:
            return jobs.codec.decode(found)
    raise AssertionError("unreachable: the last round returns or raises")
