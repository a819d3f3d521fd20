"""Transitions of one job, made by hand or reported by its run: one function a round trip."""

from __future__ import annotations

from bson import ObjectId
from pymongo import ReturnDocument
from pymongo import errors as driver

from ..errors import MonqueError
from ..jobs.job import Job
from ..jobs.transition import Transition
from .codec import filter_of, update_of
from .connection import JobCollection
from .outcomes import command


class KeyInUseError(MonqueError):
    """Another pending or processing job has the unique key that this one would have again."""


@command("change the job")
def apply_if_allowed(jobs: JobCollection, transition: Transition) -> Job | None:
    """The job as it was *before*, where the guard held; None where it did not.

    Raises:
        KeyInUseError: The job would be pending again, and another has its unique key.
    """
    try:
        document = jobs.raw.find_one_and_update(
            filter_of(transition.guard), update_of(transition), return_document=ReturnDocument.BEFORE
        )
    except driver.DuplicateKeyError as error:
        raise KeyInUseError("another pending or processing job has its unique key") from error
    return None if document is None else jobs.codec.decode(document)


@command("report on the job")
def report_if_held(jobs: JobCollection, transition: Transition) -> bool:
    """Whether it was written: whether the claim still holds."""
    return bool(jobs.collection.update_one(filter_of(transition.guard), update_of(transition)).matched_count)


@command("delete the job")
def delete(jobs: JobCollection, job_id: ObjectId) -> bool:
    """Whether there was one."""
    return bool(jobs.collection.delete_one({"_id": job_id}).deleted_count)
