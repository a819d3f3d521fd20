"""Which jobs are due: candidates for claims, and the moment of the next one. Nothing is written here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from bson import Int64, ObjectId
from pymongo import ASCENDING

from ..jobs.claimable import UNSUSPECTED, claimable
from ..jobs.job import Job
from ..log import logger_of
from . import broken, indexes
from .codec import OWN_OPTIONS, filter_of
from .connection import JobCollection
from .fields import FIELD
from .outcomes import command
from .types import Collection

logger = logger_of("store")

# The server takes a pipeline of a thousand stages at most.
MOST_NAMES_IN_ONE_LOOK: Final = 200

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
# Without a tie-break: with one, the claim index could not give the order, and the server would sort.
_NEXT_RUN_AT = FIELD["next_run_at"]
_EARLIEST = [(_NEXT_RUN_AT, ASCENDING)]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found.

    Attributes:
        jobs: Candidates, not claims: earliest first within each name.
        exhausted: The names of which there are no others now.
        short: The names of which there was less than was asked for, behind what was to be passed over. These
            were looked at again, from their head.
    """

    jobs: Sequence[Job]
    exhausted: frozenset[str] = frozenset()
    short: frozenset[str] = frozenset()


def survey(
    jobs: JobCollection,
    wanted: Mapping[str, int],
    now: datetime,
    *,
    suspects: bool = True,
    passed_over: Mapping[str, int] = _NOTHING,
) -> Seen:
    """Looks, and again where that did not tell enough: see `look` and `Seen`. Usually one round trip."""
    if broken.are_old(jobs):
        broken.look_again(jobs)
    while True:
        known = len(jobs.broken) + len(jobs.left_over)
        found = look(jobs, wanted, now, suspects=suspects, passed_over=passed_over)
        short = _short(found, {name: wanted[name] for name in passed_over})
        if short:
            again = look(jobs, {name: wanted[name] for name in short}, now, suspects=suspects)
            found = [*(job for job in found if job.name not in short), *again]
        # What cannot be claimed was found, and is passed over from now on: behind it there may be something.
        has_hidden = len(jobs.broken) + len(jobs.left_over) > known
        if found or not has_hidden:
            return Seen(found, frozenset() if has_hidden else _short(found, wanted), short)


def _short(found: Sequence[Job], wanted: Mapping[str, int]) -> frozenset[str]:
    """The names of which there is less than was wanted."""
    counted = Counter(job.name for job in found)
    return frozenset(name for name, most in wanted.items() if counted[name] < most)


@command("look for due jobs", writes=False)
def look(
    jobs: JobCollection,
    wanted: Mapping[str, int],
    now: datetime,
    *,
    suspects: bool = True,
    passed_over: Mapping[str, int] = _NOTHING,
) -> Sequence[Job]:
    """Due jobs, earliest first within each name, at most as many of each name as wanted. Candidates, not claims.

    The first ones of a name are `passed_over`, where that says how many. Without `suspects` these are not
    seen: a row of them must not hide the innocents behind it.

    Raises:
        IndexesGoneError: The claim index is not there, although it should be.
    """
    also = {} if suspects else filter_of(UNSUSPECTED)
    names = iter([name for name, slots in wanted.items() if slots > 0])
    found: list[Job] = []
    while chunk := list(islice(names, MOST_NAMES_IN_ONE_LOOK)):
        with indexes.relied_on():
            found += jobs.decoded(partial(_look, jobs, {name: wanted[name] for name in chunk}, now, also, passed_over))
    return [job for job in found if job.claimed_by is None or _tell_leftover(jobs, job)]


def _tell_leftover(jobs: JobCollection, job: Job) -> bool:
    """A pending job that bears an owner is nobody's: no claim takes it, and it is looked at no more."""
    if jobs.report_left_over(job.id):
        logger.warning(
            "job %s is pending and still bears claimedBy=%r: it is not claimed until that is unset", job, job.claimed_by
        )
    return False


def _look(
    jobs: JobCollection,
    wanted: Mapping[str, int],
    now: datetime,
    also: Mapping[str, Any],
    passed_over: Mapping[str, int],
    collection: Collection,
) -> Iterable[Any]:
    first, *others = wanted
    due = {**_due(jobs, first, now), **also}
    index = indexes.hint(jobs, indexes.CLAIM)
    if not others:
        return collection.find(
            due,
            sort=_EARLIEST,
            skip=passed_over.get(first, 0),
            limit=wanted[first],
            batch_size=wanted[first] + 1,
            hint=index,
        )
    hinted: dict[str, Any] = {} if index is None else {"hint": index}
    # One query for all names together would be filled by a single one with a long backlog.
    return collection.aggregate(
        [
            *_earliest(due, wanted[first], passed_over.get(first, 0)),
            *(
                {
                    "$unionWith": {
                        "coll": collection.name,
                        "pipeline": _earliest(
                            {**_due(jobs, name, now), **also}, wanted[name], passed_over.get(name, 0)
                        ),
                    }
                }
                for name in others
            ),
        ],
        batchSize=sum(wanted.values()) + 1,
        **hinted,
    )


def _due(jobs: JobCollection, name: str, now: datetime) -> dict[str, Any]:
    due = filter_of(claimable([name], now))
    # One that bears an owner is not claimed; but it must be seen, to be told.
    unowned = {FIELD["claimed_by"]: due.pop(FIELD["claimed_by"])}
    if jobs.left_over:
        # And once told, it is passed over for as long as it bears one.
        due["$or"] = [unowned, {"_id": {"$nin": list(jobs.left_over)}}]
    return _but_broken(jobs, due)


def _but_broken(jobs: JobCollection, due: dict[str, Any]) -> dict[str, Any]:
    if jobs.broken:
        # A document that is no job stays pending for ever, and would fill the head of the queue.
        due["_id"] = {"$nin": list(jobs.broken)}
    return due


def _earliest(due: Mapping[str, Any], limit: int, skip: int) -> list[dict[str, Any]]:
    passing_over = [{"$skip": skip}] if skip else []
    return [{"$match": due}, {"$sort": dict(_EARLIEST)}, *passing_over, {"$limit": limit}]


@dataclass(frozen=True, slots=True)
class OneJob:
    """A pending job, as far as it takes to claim it by its id.

    Attributes:
        id: Its id.
        name: Its name.
        attempts: How often it has been claimed.
    """

    id: ObjectId
    name: str
    attempts: int


@dataclass(frozen=True, slots=True)
class NextDue:
    """When the next job is due.

    Attributes:
        moment: When.
        alone: Which one it is, where it is the only one of that moment and can be claimed by its id.
    """

    moment: datetime
    alone: OneJob | None


_OF_ONE: Final = {FIELD[field]: True for field in ("id", "name", "next_run_at", "attempts", "rescues")}


@command("look for the next due job", writes=False)
def next_due(jobs: JobCollection, names: Sequence[str], after: datetime) -> NextDue | None:
    """The earliest job of those that were not due at `after`; None where there is none."""
    remaining = iter(names)
    earliest: list[Mapping[str, Any]] = []
    collection = jobs.collection.with_options(codec_options=OWN_OPTIONS)
    while chunk := list(islice(remaining, MOST_NAMES_IN_ONE_LOOK)):
        later = _but_broken(jobs, filter_of(claimable(chunk, after)))
        later[_NEXT_RUN_AT] = {"$gt": after}
        # Two, to know whether the first one is alone; in one answer, without a cursor.
        found = collection.find(later, _OF_ONE, sort=_EARLIEST, limit=-2)
        # One beyond the year 9999 is read as no datetime: it, and all that is due later, is not due in our time.
        earliest += [document for document in found if isinstance(document[_NEXT_RUN_AT], datetime)]
    if not earliest:
        return None
    moment = min(document[_NEXT_RUN_AT] for document in earliest)
    first, *others = (document for document in earliest if document[_NEXT_RUN_AT] == moment)
    return NextDue(moment, None if others else _one(first))


def _one(found: Mapping[str, Any]) -> OneJob | None:
    job_id, attempts = found["_id"], found.get(FIELD["attempts"]) or 0
    is_whole = isinstance(job_id, ObjectId) and type(attempts) in (int, Int64)
    if not is_whole or found.get(FIELD["rescues"]) not in UNSUSPECTED["rescues"].values:
        return None
    return OneJob(job_id, found[FIELD["name"]], attempts)
