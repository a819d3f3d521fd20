"""The parents of children: which scopes they have abandoned, and which ended children they still need.

A sweeper ends the children of abandoned scopes. Retention spares an ended child that its parent needs, and a retry by
hand of such a child is refused.

`abandoned` and `needed` read children first, and then their parents, in one causal session of majority reads. In the
other order, a sweeper would take the children of a nursery for orphans if it was opened between the two reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bson import ObjectId
from pymongo import UpdateOne

from ...error_types import BrokenDocumentError
from ...jobs.job import Job, JobStatus
from ...jobs.nursery_scopes import OF_A_DELETED_PARENT, PROGRAM, is_program_given_back, scope_of
from ..codec import LENIENT
from ..driver.commands import BY_ID, bulk_write, by_majority, causal_session, command, in_chunks, of_ids
from ..driver.types import ClientSession
from ..fields import BUT_HEAVY, FIELD
from ..job_collection import JobCollection
from . import indexes
from .nursery_children import IS_LIVE, LIVE, Found

MOST_IN_A_QUERY: Final = 1000

MOST_SCOPES: Final = 1000
"""Scopes of one look of a sweeper. The next look begins after them."""

_SCOPE, _PARENT = FIELD["child.scope"], FIELD["child.parent"]
_INDEX: Final = indexes.SCOPES
_BEFORE_ALL: Final = ObjectId(bytes(12))


# --- Sweeping ---


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A scope with live children whose parent has ended, or has another scope by now.

    Attributes:
        scope, parent: Their ids.
        epoch: The parent's `attempts`: a later run of it starts again the children that a sweeper has cancelled.
        why: What has happened to the parent, for the log.
    """

    scope: ObjectId
    parent: ObjectId | None
    epoch: int
    why: str


@command("look for abandoned children", writes=False)
def abandoned(jobs: JobCollection, after: ObjectId | None = None) -> tuple[Sequence[Abandoned], ObjectId | None]:
    """Return the scopes after `after` that have live children, but no parent that waits for them.

    The second value is the scope after which the next look begins; None if there are no more.
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
            continue  # Its document does not show whether it has ended.
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
    # Each command reads a batch of children along the index, and the next one begins after the last scope of it. So a
    # thousand scopes of one child take one command, and so does one scope of ten thousand children.
    scopes: dict[ObjectId, ObjectId | None] = {}
    last = after
    while len(scopes) < MOST_SCOPES:
        # From the first id on: another program may store anything in that field, and other types sort before ids.
        wanted = {_SCOPE: {"$gt": last or _BEFORE_ALL}, **IS_LIVE}
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


# --- Retention, and retries by hand ---


@command("find ended children that their parents still need", writes=False)
def needed(jobs: JobCollection, ids: Sequence[ObjectId]) -> set[ObjectId]:
    """Return which of these ended jobs are children of a parent that still has their scope, in any status.

    Without its ended children, a parent that is retried by hand would repeat finished work. The job of a
    program that is gone is not such a parent: it is kept as a trace, and its children can be retried and deleted.
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
    # Also if the scope has lost its effect: the next run of the parent clears it.
    return parent.nursery is not None and parent.nursery.id == scope


@command("detach children")
def detach(jobs: JobCollection, children: Sequence[Job]) -> None:
    """Make ended children independent jobs: their parents do not have their scopes any more, and never will again.

    No other field changes, so that a selector that has selected them still does.
    """
    fields = dict.fromkeys((field for attribute, field in FIELD.items() if attribute.startswith("child.")), "")
    ended = {FIELD["status"]: {"$in": [JobStatus.FAILED.value, JobStatus.CANCELLED.value]}}
    each = [
        UpdateOne({"_id": one.id, **ended, _SCOPE: one.child.scope}, {"$unset": fields}, hint=BY_ID)
        for one in children
        if one.child is not None
    ]
    bulk_write(jobs.collection, each, "detach children")
