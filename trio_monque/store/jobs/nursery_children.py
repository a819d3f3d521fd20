"""The children of job nurseries: the commands that start them, read them, and end them.

`jobs/nursery_scopes.py` decides what to do with a child. The conditions of these commands close races with another run
of the parent, with a sweeper, and with an operator. One of them is between the two statements of `cancel`: they cancel
pending children before they ask running ones to end, and the caller repeats both until no child is live. So a child
that is released or rescued in between is pending again, and the next pass cancels it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson import ObjectId
from pymongo import UpdateOne
from pymongo import errors as driver

from ...error_types import BrokenDocumentError, MonqueError
from ...jobs import transitions
from ...jobs.claim_stamps_and_fences import fence
from ...jobs.job import Job, JobStatus
from ...jobs.nursery_scopes import PROGRAM, Asking
from ...log import logger_of
from ..codec import LENIENT, filter_of, update_of
from ..driver.commands import BY_ID, bulk_write, by_majority, causal_session, command, in_chunks, of_ids
from ..driver.commands import update_unless_refused as update_all
from ..fields import FIELD
from ..job_collection import JobCollection
from . import indexes, inserting
from .inserting import Parcel

logger = logger_of("store")

MOST_IN_A_QUERY: Final = 1000

LIVE: Final = (JobStatus.PENDING, JobStatus.PROCESSING)
IS_LIVE: Final = {FIELD["status"]: {"$in": [status.value for status in LIVE]}}
_SCOPE, _BLOCK, _RUN = (FIELD[f"child.{name}"] for name in ("scope", "block", "run"))
_CANCELLED_BY: Final = FIELD["child.cancelled_by"]
_INDEX: Final = indexes.SCOPES

Found = Mapping[ObjectId, Job | BrokenDocumentError]


# --- Starting ---


@command("start children")
def start(jobs: JobCollection, parcels: Sequence[Parcel]) -> tuple[set[ObjectId], Mapping[ObjectId, MonqueError]]:
    """Insert children; return the ids that existed already, and why the server refused others."""
    there, refused = inserting.insert_new(jobs, parcels)
    return (
        {parcels[place].job.id for place in there},
        {parcels[place].job.id: error for place, error in refused.items()},
    )


@command("look for children", writes=False)
def look(jobs: JobCollection, ids: Collection[ObjectId]) -> Found:
    """Return the children with these ids, as a majority holds them, by id."""
    found: dict[ObjectId, Job | BrokenDocumentError] = {}
    with causal_session(jobs.collection) as session:
        for chunk in in_chunks(ids, MOST_IN_A_QUERY):
            for document in by_majority(jobs.raw).find(of_ids(chunk), hint=BY_ID, session=session):
                try:
                    found[document["_id"]] = jobs.codec.decode(document)
                except BrokenDocumentError as error:
                    found[document["_id"]] = error
    return found


@command("adopt children")
def adopt(jobs: JobCollection, asking: Asking, ids: Sequence[ObjectId]) -> None:
    """Take live children of an earlier try over into this one."""
    for chunk in in_chunks(ids, MOST_IN_A_QUERY):
        older = {**of_ids(chunk), _SCOPE: asking.scope, **IS_LIVE, _RUN: {"$lt": asking.since}}
        jobs.collection.update_many(older, {"$set": {_RUN: asking.epoch}}, hint=BY_ID)


@command("run children again")
def run_again(jobs: JobCollection, children: Sequence[Job], now: datetime, epoch: int) -> None:
    """Make ended children pending again, unless they have changed since they were read."""
    written = [transitions.run_child_again(child, now, epoch) for child in children]
    each = [UpdateOne(filter_of(one.guard), update_of(one), hint=BY_ID) for one in written]
    for place, refusal in bulk_write(jobs.collection, each, "run children again").refused.items():
        raise MonqueError(f"the server refuses to run child {children[place]} again: {refusal.message}")


@command("make sure that children are not started any more")
def prevent(jobs: JobCollection, parcels: Sequence[Parcel], now: datetime, epoch: int | None) -> None:
    """Insert cancelled children with the ids of these, unless those ids exist.

    Args:
        jobs: The jobs collection.
        parcels: Children whose start was not answered, so that the server may still apply it; or deleted ones.
        now: The server's time.
        epoch: The epoch of the run whose block cancels them, so that the next run starts them again; None if no other
            run of this try may start them.
    """
    cancelled = {FIELD["status"]: JobStatus.CANCELLED.value, FIELD["updated_at"]: now}
    if epoch is not None:
        cancelled[_CANCELLED_BY] = epoch
    stones = [Parcel(one.job, {**one.document, **cancelled}) for one in parcels]
    inserting.insert_new(jobs, stones)


# --- Ending ---


@dataclass(frozen=True, slots=True)
class Pass:
    """The children that a pass ends.

    Attributes:
        scope: The id of the scope.
        epoch: The epoch of the run that cancels; for a sweeper, that of the parent as the sweeper has read it.
        block: Only children of this block; None for all.
        ids: Only these children; None for all.
    """

    scope: ObjectId
    epoch: int
    block: str | None = None
    ids: tuple[ObjectId, ...] | None = None

    def filter(self) -> dict[str, Any]:
        block = {} if self.block is None else {_BLOCK: self.block}
        return {_SCOPE: self.scope, **block, **({} if self.ids is None else of_ids(self.ids))}


@command("cancel children", in_parts=True)
def cancel(jobs: JobCollection, one: Pass, now: datetime) -> tuple[int, int]:
    """Cancel pending children, then ask running ones to end; return both numbers. Repeat it until no child is live."""
    pending = {**one.filter(), FIELD["status"]: JobStatus.PENDING.value}
    ended = {"$set": {FIELD["status"]: JobStatus.CANCELLED.value, FIELD["updated_at"]: now, _CANCELLED_BY: one.epoch}}
    running = {
        **one.filter(),
        FIELD["status"]: JobStatus.PROCESSING.value,
        FIELD["claim.cancel_requested_at"]: None,
    }
    asked = {"$set": {FIELD["claim.cancel_requested_at"]: now, FIELD["updated_at"]: now, _CANCELLED_BY: one.epoch}}
    return _update(jobs, pending, ended), _update(jobs, running, asked)


def _update(jobs: JobCollection, wanted: dict[str, Any], update: dict[str, Any]) -> int:
    # The index of ids is better for a few ids.
    hint = None if "_id" in wanted else _INDEX
    result = _hinted(hint, lambda name: update_all(jobs.collection, wanted, update, name))
    if not isinstance(result, driver.WriteError):
        return int(result.modified_count)
    # The server refuses one of them, and has stopped there: update each one by itself.
    ids = [one["_id"] for one in jobs.collection.with_options(codec_options=LENIENT).find(wanted, {"_id": True})]
    each = [UpdateOne({**wanted, "_id": job_id}, update, hint=BY_ID) for job_id in ids]
    answer = bulk_write(jobs.collection, each, "cancel children")
    for job_id, refusal in answer.refused_among(ids):
        if jobs.report_refused(job_id):
            logger.error("the server refused to cancel child %s: %s", job_id, refusal.message)
    return answer.modified


def _hinted(index: Any, call: Any) -> Any:
    return call(BY_ID) if index is None else indexes.hinted(index, call)


@dataclass(frozen=True, slots=True)
class LiveChild:
    """A child that was pending or running when it was read."""

    id: ObjectId
    name: str
    status: JobStatus


@command("look for live children", writes=False)
def live(
    jobs: JobCollection, scope: ObjectId, block: str | None = None, most: int = MOST_IN_A_QUERY
) -> Sequence[LiveChild]:
    """Return live children of a scope, or of one block of it, as a majority holds them; at most `most`."""
    wanted = {_SCOPE: scope, **({} if block is None else {_BLOCK: block}), **IS_LIVE}
    shown = [FIELD["name"], FIELD["status"]]

    def read(hint: str | None) -> list[Any]:
        with causal_session(jobs.collection) as session:
            reader = by_majority(jobs.collection, LENIENT)
            return list(reader.find(wanted, shown, limit=most, hint=hint, session=session))

    return [
        LiveChild(one["_id"], str(one.get(FIELD["name"])), JobStatus(one[FIELD["status"]]))
        for one in indexes.hinted(_INDEX, read)
    ]


@command("end the nursery of the program")
def end_program(jobs: JobCollection, job: Job) -> bool:
    """Delete the job that stands for a program, under its fence; return whether the program still held its claim."""
    is_held = bool(jobs.collection.delete_one(filter_of(fence(job)), hint=BY_ID).deleted_count)
    if not is_held:
        # Monque for Node has taken the program for dead, and released its job; no worker runs that.
        pending = {"_id": job.id, FIELD["name"]: PROGRAM, FIELD["status"]: JobStatus.PENDING.value}
        jobs.collection.delete_one(pending, hint=BY_ID)
    return is_held
