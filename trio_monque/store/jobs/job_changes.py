"""Changes of one job, by an operator or by its run: one round trip for each function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from bson import ObjectId
from pymongo import ReturnDocument
from pymongo import errors as driver
from pymongo.client_session import ClientSession

from ...error_types import MonqueError
from ...jobs.conditional_write import LIGHTEST, Transition, applied, is_borne_by, lightened
from ...jobs.job import Job
from ..codec import filter_of, update_of
from ..driver.commands import by_majority, causal_session, command
from ..driver.driver_errors import TOO_LARGE_CODES
from ..job_collection import JobCollection

T = TypeVar("T")


class KeyInUseError(MonqueError):
    """The change would make the job pending again, and another pending or processing job has its unique key."""


@command("change the job")
def apply_if_allowed(jobs: JobCollection, transition: Transition) -> Job | None:
    """Make the change if its guard holds; return the job as it was *before*, or None if the guard did not hold.

    Raises:
        KeyInUseError: The job would be pending again, and another has its unique key.
    """
    return _apply(jobs, transition, filter_of(transition.guard))


@command("check the outcome of a change")
def apply_again(jobs: JobCollection, transition: Transition) -> Job | None:
    """Make the change after a lost answer, unless the first sending has made it; return the job as it is then.

    Return None if the job has changed since: then nothing shows whether the first sending made the change. The guard
    must be one that cannot hold again after the change: otherwise the change may be made twice.
    """
    with causal_session(jobs.collection) as session:
        before = _apply(jobs, transition, filter_of(transition.guard), session)
        if before is not None:
            return applied(before, transition)
        # The write changed nothing, but a majority has acknowledged it: what is read behind it is not rolled back.
        document = by_majority(jobs.raw).find_one({"_id": transition.guard["id"]}, session=session)
        found = None if document is None else jobs.codec.decode(document)
        return found if found is not None and is_borne_by(found, transition) else None


def _apply(
    jobs: JobCollection, transition: Transition, allowed: dict[str, Any], session: ClientSession | None = None
) -> Job | None:
    def write(written: Transition) -> Any:
        return jobs.raw.find_one_and_update(
            allowed, update_of(written), return_document=ReturnDocument.BEFORE, session=session
        )

    try:
        document = _in_the_room_there_is(transition, write)
    except driver.DuplicateKeyError as error:
        raise KeyInUseError("another pending or processing job has its unique key") from error
    return None if document is None else jobs.codec.decode(document)


def _in_the_room_there_is(transition: Transition, write: Callable[[Transition], T]) -> T:
    """Write the transition. If the document has no room for it, write it with less text."""
    for steps in range(LIGHTEST):
        try:
            return write(lightened(transition, steps) if steps else transition)
        except driver.OperationFailure as error:
            if error.code not in TOO_LARGE_CODES:
                raise
    return write(lightened(transition, LIGHTEST))


@command("report on the job")
def report_if_held(jobs: JobCollection, transition: Transition) -> bool:
    """Write the transition if the claim still holds; return whether it does."""
    held = filter_of(transition.guard)
    result = _in_the_room_there_is(transition, lambda written: jobs.collection.update_one(held, update_of(written)))
    return bool(result.matched_count)


@command("delete the job")
def delete(jobs: JobCollection, job_id: ObjectId) -> bool:
    """Delete the job; return whether there was one."""
    return bool(jobs.collection.delete_one({"_id": job_id}).deleted_count)
