"""Cancels, retries and deletes many jobs, in batches: a query chooses the jobs, and a write repeats its whole filter.

A chosen job may be claimed, end or change before the write. Then it no longer matches, and stays as it is. Batches
follow the `_id`, so that an action meets each job once, in any status that it leaves the job in. Changes leave a
receipt in each job, which shows after a lost answer which jobs were changed (`find_out`). Each function is one round
trip, or two in one session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from bson import ObjectId
from pymongo import IndexModel, UpdateMany, UpdateOne
from pymongo.client_session import ClientSession

from ...error_types import BrokenDocumentError
from ...jobs.bulk_changes import Change
from ...jobs.job import Job
from ...log import logger_of
from ..codec import LENIENT, filter_of, update_of
from ..driver.commands import BY_ID, Refusal, bulk_write, by_majority, causal_session, command, of_ids
from ..driver.types import Collection
from ..fields import BUT_HEAVY, FIELD
from ..job_collection import JobCollection
from . import indexes

logger = logger_of("store")

_DUPLICATE_KEY: Final = 11000

# Fields that may be large, and that are not needed here.
_UNREAD: Final = {**BUT_HEAVY, FIELD["fail_reason"]: False, FIELD["claim.token"]: False}


@dataclass(frozen=True, slots=True)
class Chosen:
    """One batch.

    Attributes:
        jobs: The jobs, without large fields.
        broken: Selected documents that are not jobs, and what is wrong with them.
        last: The last id of this batch: the next one begins behind it. None if there are no others.
    """

    jobs: Sequence[Job]
    broken: Sequence[BrokenDocumentError]
    last: ObjectId | None


@dataclass(slots=True)
class Written:
    """What became of a batch.

    Attributes:
        count: The number of jobs that were changed or deleted.
        done: The ids of these jobs; empty if they are not known.
        refused: The jobs that the server refused to change, and why.
        unknown: The number of jobs that may or may not have been changed or deleted.
    """

    count: int = 0
    done: set[ObjectId] = field(default_factory=set)
    refused: Mapping[ObjectId, str] = field(default_factory=dict)
    unknown: int = 0


@command("find the end of the jobs", writes=False)
def last_id(jobs: JobCollection) -> ObjectId | None:
    """Return the largest `_id`. An action ends there: it leaves out jobs that are enqueued while it works."""
    found = jobs.collection.find_one({"_id": {"$type": "objectId"}}, {"_id": True}, sort=[("_id", -1)])
    return None if found is None else found["_id"]


@command("find the end of a window of jobs", writes=False)
def window_end(jobs: JobCollection, after: ObjectId | None, until: ObjectId, size: int) -> ObjectId:
    """Return the last id of a window: the next `size` documents, whether selected or not.

    `choose` reads one window at a time: even if it selects none of the documents, one call has the time to read them.
    """
    ids = {"_id": _between(after, until)}
    found = list(jobs.collection.find(ids, {"_id": True}, sort=[("_id", 1)], skip=size - 1, limit=1, hint=BY_ID))
    return found[0]["_id"] if found else until


def _between(after: ObjectId | None, until: ObjectId) -> dict[str, ObjectId]:
    return {"$lte": until} if after is None else {"$gt": after, "$lte": until}


@command("choose jobs", writes=False)
def choose(
    jobs: JobCollection,
    guard: Mapping[str, Any],
    after: ObjectId | None,
    until: ObjectId,
    limit: int,
    index: IndexModel | None = None,
) -> Chosen:
    """Return the next selected jobs, in the order of their ids, with ids after `after` and up to `until`.

    Args:
        index: Read all selected jobs along this index, and sort them; by default, the server chooses.
    """
    wanted = {**filter_of(guard), "_id": _between(after, until)}

    def read(collection: Collection, hint: str | None) -> Iterable[Any]:
        found = collection.find(wanted, _UNREAD, sort=[("_id", 1)], limit=limit, batch_size=limit + 1, hint=hint)
        return found if index is None else list(found)

    found, broken = jobs.sorted_out(
        lambda collection: read(collection, None) if index is None else indexes.hinted(index, partial(read, collection))
    )
    ids = [job.id for job in found]
    ids += [error.document_id for error in broken if isinstance(error.document_id, ObjectId)]
    return Chosen(found, broken, max(ids) if ids and len(found) + len(broken) == limit else None)


# --- Cancel and retry ---


def _change(
    jobs: JobCollection, changes: Sequence[Change], receipt: str, session: ClientSession, *, again: bool = False
) -> Written:
    """Make the changes, with the receipt. `done` stays empty where only a further read would show which were made."""
    matched, refused = _write(jobs, changes, receipt, session, again=again)
    everything = {job.id for change in changes for job in change.jobs}
    is_each_alone = len(changes) == len(everything)
    if not refused or is_each_alone:
        return Written(matched, everything if matched == len(everything) else set(), refused)
    return _change_alone(jobs, changes, receipt, session, again=again)


# In parts: if this fails, the statements before it may have changed jobs, and the caller must find out which.
@command("change jobs one by one", in_parts=True)
def _change_alone(
    jobs: JobCollection, changes: Sequence[Change], receipt: str, session: ClientSession, *, again: bool
) -> Written:
    # A statement stops at the first document that the server refuses: so each job goes again, alone. Jobs that the
    # statement has changed before no longer match the filter, but they bear the receipt.
    alone = [Change(change.transition, (job,)) for change in changes for job in change.jobs]
    _, refused = _write(jobs, alone, receipt, session, again=again)
    done = {job_id for job_id, found in _receipts(jobs, changes, session).items() if found == receipt}
    return Written(len(done), done, refused)


def _write(
    jobs: JobCollection, changes: Sequence[Change], receipt: str, session: ClientSession, *, again: bool
) -> tuple[int, Mapping[ObjectId, str]]:
    """Return how many jobs were changed, and the first job of each refused statement, with the reason."""
    requests: list[UpdateMany | UpdateOne] = []
    for change in changes:
        guard, update = filter_of(change.transition.guard), update_of(change.transition, receipt)
        if len(change.jobs) == 1:
            job = change.jobs[0]
            # A repetition must not change a job twice: after the first retry, it may have run, and failed again.
            # Several jobs share a change only if it cancels them: a cancelled job does not match the filter again.
            pinned = {FIELD["updated_at"]: job.updated_at} if again else {}
            requests.append(UpdateOne({**guard, **pinned, "_id": job.id}, update, hint=BY_ID))
        else:
            requests.append(UpdateMany({**guard, **of_ids(job.id for job in change.jobs)}, update, hint=BY_ID))
    result = bulk_write(jobs.collection, requests, "change the jobs", session)
    return result.matched, {one.jobs[0].id: _reason(refusal) for one, refusal in result.refused_among(changes)}


def _reason(refusal: Refusal) -> str:
    if refusal.code == _DUPLICATE_KEY:
        return "another pending or processing job has its unique key"
    return f"the server refuses to change it: {refusal.message[:500]}"


def _change_now(jobs: JobCollection, changes: Sequence[Change], receipt: str) -> Written:
    with causal_session(jobs.collection) as session:
        return _change(jobs, changes, receipt, session)


Sending = Callable[[JobCollection, Sequence[Change], str], Written]

cancel: Final[Sending] = command("cancel jobs")(_change_now)
retry: Final[Sending] = command("retry jobs")(_change_now)


@command("read which jobs were changed", writes=False)
def signed(jobs: JobCollection, changes: Sequence[Change], receipt: str) -> set[ObjectId]:
    """Return which of the jobs bear the receipt."""
    return {job_id for job_id, found in _receipts(jobs, changes, None).items() if found == receipt}


@command("check the outcome of a bulk change")
def find_out(jobs: JobCollection, changes: Sequence[Change], receipt: str) -> Written:
    """Send changes again after a lost answer; return what became of them, by the receipts that a majority holds.

    If a job is gone, or bears neither this receipt nor the one from before, a run has ended it since: nothing shows
    whether this change was made.
    """
    with causal_session(jobs.collection) as session:
        again = _change(jobs, changes, receipt, session, again=True)
        found = _receipts(jobs, changes, session)
    before = {job.id: job.internals.receipt for change in changes for job in change.jobs}
    done = {job_id for job_id in before if found.get(job_id) == receipt}
    lost = {job_id for job_id in before if job_id not in found or found[job_id] not in (receipt, before[job_id])}
    refused = {job_id: reason for job_id, reason in again.refused.items() if job_id not in lost}
    return Written(len(done), done, refused, len(lost))


def _receipts(
    jobs: JobCollection, changes: Sequence[Change], session: ClientSession | None
) -> dict[ObjectId, str | None]:
    ids = of_ids(job.id for change in changes for job in change.jobs)
    found = by_majority(jobs.collection, LENIENT).find(ids, [FIELD["internals.receipt"]], hint=BY_ID, session=session)
    return {document["_id"]: document.get(FIELD["internals.receipt"]) for document in found}


# --- Delete ---


@command("delete jobs")
def delete(jobs: JobCollection, chosen: Sequence[Job], guard: Mapping[str, Any]) -> Written:
    """Delete the chosen jobs that still match the filter."""
    ids = {job.id for job in chosen}
    count = _delete(jobs, chosen, guard, None)
    return Written(count, ids if count == len(ids) else set())


@command("check the outcome of a bulk deletion")
def find_out_deleted(jobs: JobCollection, chosen: Sequence[Job], guard: Mapping[str, Any]) -> Written:
    """Delete again after a lost answer. Jobs that were gone count as unknown: another client may have deleted them."""
    with causal_session(jobs.collection) as session:
        count = _delete(jobs, chosen, guard, session)
        gone = _gone(jobs, chosen, session)
    return Written(count, gone if count == len(gone) else set(), unknown=len(gone) - count)


@command("read which jobs were deleted", writes=False)
def gone(jobs: JobCollection, chosen: Sequence[Job]) -> set[ObjectId]:
    """Return which of the jobs are gone."""
    return _gone(jobs, chosen)


def _gone(jobs: JobCollection, chosen: Sequence[Job], session: ClientSession | None = None) -> set[ObjectId]:
    ids = {job.id for job in chosen}
    found = by_majority(jobs.collection).find(of_ids(ids), {"_id": True}, hint=BY_ID, session=session)
    return ids - {document["_id"] for document in found}


def _delete(jobs: JobCollection, chosen: Sequence[Job], guard: Mapping[str, Any], session: ClientSession | None) -> int:
    theirs = {**filter_of(guard), **of_ids(job.id for job in chosen)}
    return jobs.collection.delete_many(theirs, hint=BY_ID, session=session).deleted_count
