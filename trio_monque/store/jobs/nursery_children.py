"""The children of job nurseries: one command for each function, or a few in one causal session.

`jobs/nursery_scopes.py` decides. Here is what the commands ask, and each condition closes a race with another run of
the parent, with a sweeper, or with an operator:

- Pending children are cancelled before running ones are asked to end, and both again until nothing lives: a child that
  is released or rescued between the two statements is pending once more.
- A sweeper reads live children first, and then their parents, in one causal session of majority reads. In the other
  order, it would take the children of a nursery that was opened in between for orphans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from bson import ObjectId
from pymongo import UpdateOne
from pymongo import errors as driver

from ...error_types import BrokenDocumentError, MonqueError
from ...jobs import transitions
from ...jobs.claim_stamps_and_fences import fence
from ...jobs.job import Job, JobStatus
from ...jobs.nursery_scopes import OF_A_DELETED_PARENT, PROGRAM, Asking, is_program_given_back, scope_of
from ...log import logger_of
from ..codec import LENIENT, filter_of, update_of
from ..driver.commands import BY_ID, bulk_write, by_majority, causal_session, command, in_chunks, of_ids
from ..driver.commands import update_unless_refused as update_all
from ..driver.types import ClientSession
from ..fields import BUT_HEAVY, FIELD
from ..job_collection import JobCollection
from . import indexes, inserting
from .inserting import Parcel

logger = logger_of("store")

MOST_IN_A_QUERY: Final = 1000

MOST_SCOPES: Final = 1000
"""Scopes of one look of a sweeper. The next one goes on behind them."""

LIVE: Final = (JobStatus.PENDING, JobStatus.PROCESSING)
_LIVE: Final = {FIELD["status"]: {"$in": [status.value for status in LIVE]}}
_SCOPE, _PARENT, _BLOCK, _RUN = (FIELD[f"child.{name}"] for name in ("scope", "parent", "block", "run"))
_CANCELLED_BY: Final = FIELD["child.cancelled_by"]
_INDEX: Final = indexes.SCOPES
_BEFORE_ALL: Final = ObjectId(bytes(12))

Found = Mapping[ObjectId, Job | BrokenDocumentError]


# --- Starting ---


@command("start children")
def start(jobs: JobCollection, parcels: Sequence[Parcel]) -> tuple[set[ObjectId], Mapping[ObjectId, MonqueError]]:
    """Insert children; return the ids that were there already, and why others were refused."""
    there, refused = inserting.insert_new(jobs, parcels)
    return (
        {parcels[place].job.id for place in there},
        {parcels[place].job.id: error for place, error in refused.items()},
    )


@command("look for children", writes=False)
def look(jobs: JobCollection, ids: Collection[ObjectId]) -> Found:
    """Return those of these children that a majority holds, by id."""
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
    """Let this try take over live children of an earlier one."""
    for chunk in in_chunks(ids, MOST_IN_A_QUERY):
        older = {**of_ids(chunk), _SCOPE: asking.scope, **_LIVE, _RUN: {"$lt": asking.since}}
        jobs.collection.update_many(older, {"$set": {_RUN: asking.epoch}}, hint=BY_ID)


@command("run children again")
def run_again(jobs: JobCollection, children: Sequence[Job], now: datetime, epoch: int) -> None:
    """Make ended children pending again, as far as they are still as they were found."""
    written = [transitions.run_child_again(child, now, epoch) for child in children]
    each = [UpdateOne(filter_of(one.guard), update_of(one), hint=BY_ID) for one in written]
    for place, refusal in bulk_write(jobs.collection, each, "run children again").refused.items():
        raise MonqueError(f"the server refuses to run child {children[place]} again: {refusal.message}")


@command("make sure that children are not started any more")
def prevent(jobs: JobCollection, parcels: Sequence[Parcel], now: datetime, epoch: int | None) -> None:
    """Insert cancelled children with the ids of these, unless they are there.

    Args:
        jobs: The jobs collection.
        parcels: Those whose start was not answered, and may be applied later; or that were deleted.
        now: By the server's time.
        epoch: Of the run whose block cancels them; None if another run of this try must not start them either.
    """
    cancelled = {FIELD["status"]: JobStatus.CANCELLED.value, FIELD["updated_at"]: now}
    if epoch is not None:
        cancelled[_CANCELLED_BY] = epoch
    stones = [Parcel(one.job, {**one.document, **cancelled}) for one in parcels]
    inserting.insert_new(jobs, stones)


# --- Ending ---


@dataclass(frozen=True, slots=True)
class Pass:
    """Which children a pass ends.

    Attributes:
        scope: The id of the scope.
        epoch: Of the run that passes, or of the parent as a sweeper has found it.
        block: Only of this block; None for all.
        ids: Only these; None for all.
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
    """Cancel pending children, then ask running ones to end; return how many of each. Repeat it until nothing lives."""
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
    # By ids, that index is better.
    hint = None if "_id" in wanted else _INDEX
    result = _hinted(hint, lambda name: update_all(jobs.collection, wanted, update, name))
    if not isinstance(result, driver.WriteError):
        return int(result.modified_count)
    # The server refuses one of them, and did not reach those behind it: each goes alone.
    ids = [one["_id"] for one in jobs.collection.with_options(codec_options=LENIENT).find(wanted, {"_id": True})]
    each = [UpdateOne({**wanted, "_id": job_id}, update, hint=BY_ID) for job_id in ids]
    answer = bulk_write(jobs.collection, each, "cancel children")
    for job_id, refusal in answer.refused_among(ids):
        if jobs.report_refused(job_id):
            logger.error("the server refuses to cancel child %s: %s", job_id, refusal.message)
    return answer.modified


def _hinted(index: Any, call: Any) -> Any:
    return call(BY_ID) if index is None else indexes.hinted(index, call)


@dataclass(frozen=True, slots=True)
class LiveChild:
    """A child that is pending or runs, as a look shows it."""

    id: ObjectId
    name: str
    status: JobStatus


@command("look for live children", writes=False)
def live(
    jobs: JobCollection, scope: ObjectId, block: str | None = None, most: int = MOST_IN_A_QUERY
) -> Sequence[LiveChild]:
    """Return live children of a scope, or of one block of it, as a majority holds them; `most` at most."""
    wanted = {_SCOPE: scope, **({} if block is None else {_BLOCK: block}), **_LIVE}
    shown = [FIELD["name"], FIELD["status"]]

    def read(hint: str | None) -> list[Any]:
        with causal_session(jobs.collection) as session:
            reader = by_majority(jobs.collection, LENIENT)
            return list(reader.find(wanted, shown, limit=most, hint=hint, session=session))

    return [
        LiveChild(one["_id"], str(one.get(FIELD["name"])), JobStatus(one[FIELD["status"]]))
        for one in indexes.hinted(_INDEX, read)
    ]


# --- Sweeping, and what retention spares ---


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A scope with live children whose parent is over, or has another scope by now.

    Attributes:
        scope, parent: Their ids.
        epoch: The parent's `attempts`: a later run starts again what the pass has cancelled.
        why: What has become of the parent.
    """

    scope: ObjectId
    parent: ObjectId | None
    epoch: int
    why: str


@command("look for children without a parent", writes=False)
def abandoned(jobs: JobCollection, after: ObjectId | None = None) -> tuple[Sequence[Abandoned], ObjectId | None]:
    """Return the scopes behind `after` that have live children and no parent that waits for them.

    Also where the next look begins, if there may be more; otherwise None.
    """
    with causal_session(jobs.collection) as session:
        try:
            scopes, last = _live_scopes(jobs, after, session)
        except indexes.NoSuchIndexError:
            return (), None  # Then there are no children: see `indexes.in_use`.
        parents = _parents(jobs, scopes.values(), session)
    found = []
    for scope, parent_id in scopes.items():
        parent = None if parent_id is None else parents.get(parent_id)
        if isinstance(parent, BrokenDocumentError):
            continue  # Nothing says what became of it.
        if parent is None:
            found.append(Abandoned(scope, parent_id, OF_A_DELETED_PARENT, "was deleted"))
        elif parent.status not in LIVE or is_program_given_back(parent):
            found.append(Abandoned(scope, parent_id, parent.attempts, f"is {parent.status}"))
        elif (own := scope_of(parent)) is None or own.id != scope:
            found.append(Abandoned(scope, parent_id, parent.attempts, "has gone on to other work"))
    return found, last


def _live_scopes(
    jobs: JobCollection, after: ObjectId | None, session: ClientSession
) -> tuple[Mapping[ObjectId, ObjectId | None], ObjectId | None]:
    # A batch of children along the index, and the next one behind the last scope of it: a thousand scopes of one child
    # are one command, and so is one scope of ten thousand children.
    scopes: dict[ObjectId, ObjectId | None] = {}
    last = after
    while len(scopes) < MOST_SCOPES:
        # From the first id on: what another program has in that field may be anything, and comes before the ids.
        wanted = {_SCOPE: {"$gt": last or _BEFORE_ALL}, **_LIVE}
        found = indexes.hinted(_INDEX, partial(_batch, jobs, wanted, session), is_needed=True)
        for one in found:
            scope, parent = one[_SCOPE], one.get(_PARENT)
            scopes.setdefault(scope, parent if isinstance(parent, ObjectId) else None)
            last = scope
        if len(found) < MOST_IN_A_QUERY:
            return scopes, None
    return scopes, last


def _batch(jobs: JobCollection, wanted: Mapping[str, Any], session: ClientSession, hint: str | None) -> list[Any]:
    reader = by_majority(jobs.collection, LENIENT)
    order = [(_SCOPE, 1), (_PARENT, 1), ("_id", 1)]
    limit = MOST_IN_A_QUERY
    return list(
        reader.find(wanted, [_SCOPE, _PARENT], sort=order, limit=limit, batch_size=limit, hint=hint, session=session)
    )


def _parents(jobs: JobCollection, ids: Iterable[ObjectId | None], session: ClientSession | None) -> Found:
    found: dict[ObjectId, Job | BrokenDocumentError] = {}
    for chunk in in_chunks(dict.fromkeys(one for one in ids if one is not None), MOST_IN_A_QUERY):
        for document in by_majority(jobs.raw).find(of_ids(chunk), BUT_HEAVY, hint=BY_ID, session=session):
            try:
                found[document["_id"]] = jobs.codec.decode(document)
            except BrokenDocumentError as error:
                found[document["_id"]] = error
    return found


@command("look which ended children their parents still need", writes=False)
def needed(jobs: JobCollection, ids: Sequence[ObjectId]) -> set[ObjectId]:
    """Return those of these ended jobs that are children of a parent that has their scope, in any status.

    A parent that is retried by hand would otherwise do finished work again. The job of a program that is gone is no
    longer such a parent: otherwise its children could neither be retried nor deleted while it is kept.
    """
    with causal_session(jobs.collection) as session:
        reader = by_majority(jobs.collection, LENIENT)
        theirs = {**of_ids(ids), _SCOPE: {"$exists": True}}
        children = {
            one["_id"]: (one[_SCOPE], one.get(_PARENT))
            for one in reader.find(theirs, [_SCOPE, _PARENT], hint=BY_ID, session=session)
        }
        parents = _parents(jobs, [parent for _, parent in children.values()], session)
    return {child for child, (scope, parent) in children.items() if _has_scope(parents.get(parent), scope)}


def _has_scope(parent: Job | BrokenDocumentError | None, scope: ObjectId) -> bool:
    if parent is None or isinstance(parent, BrokenDocumentError):
        return parent is not None
    if parent.name == PROGRAM and (parent.status not in LIVE or is_program_given_back(parent)):
        return False  # The program is gone, and nothing runs its job again.
    # Also a scope that does not count any more: the next run of the parent clears it.
    return parent.nursery is not None and parent.nursery.id == scope


@command("end the nursery of the program")
def end_program(jobs: JobCollection, job: Job) -> bool:
    """Delete the job that stands for a program, under its fence; return whether the program still had it."""
    is_held = bool(jobs.collection.delete_one(filter_of(fence(job)), hint=BY_ID).deleted_count)
    if not is_held:
        # Monque for Node gives back what it takes for dead, and has no worker for it.
        pending = {"_id": job.id, FIELD["name"]: PROGRAM, FIELD["status"]: JobStatus.PENDING.value}
        jobs.collection.delete_one(pending, hint=BY_ID)
    return is_held


@command("detach children")
def detach(jobs: JobCollection, children: Sequence[Job]) -> None:
    """Make ended children jobs of their own: their parents do not have their scopes any more, and never will again.

    Nothing else of them changes: a selector that selected them still does.
    """
    fields = dict.fromkeys((field for attribute, field in FIELD.items() if attribute.startswith("child.")), "")
    ended = {FIELD["status"]: {"$in": [JobStatus.FAILED.value, JobStatus.CANCELLED.value]}}
    each = [
        UpdateOne({"_id": one.id, **ended, _SCOPE: one.child.scope}, {"$unset": fields}, hint=BY_ID)
        for one in children
        if one.child is not None
    ]
    bulk_write(jobs.collection, each, "detach children")
