"""Claims in batches: the look, the guarded write, and what was really taken. One function a round trip."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.read_concern import ReadConcern

from ..errors import BrokenDocumentError
from ..jobs import transitions
from ..jobs.fences import ClaimStamp, stamp_fence
from ..jobs.job import Job
from ..jobs.transition import OneOf, applied
from . import broken, indexes
from .codec import FIELD, OWN_OPTIONS, filter_of, update_of
from .connection import JobCollection
from .outcomes import command
from .types import Collection

logger = logging.getLogger("trio_monque.store")

# The server takes a pipeline of a thousand stages at most.
MOST_NAMES_IN_ONE_LOOK: Final = 200

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_BY_ID = {"_id": 1}
# Without a tie-break: with one, the claim index could not give the order, and the server would sort.
_NEXT_RUN_AT = FIELD["next_run_at"]
_EARLIEST = [(_NEXT_RUN_AT, ASCENDING)]


@dataclass(frozen=True, slots=True)
class Taken:
    """What one claim cycle took.

    Attributes:
        jobs: The claimed jobs, exactly as the database holds them.
        more: Whether there may be more to take at once: others were faster with some of what was seen.
        tried: How many candidates there were.
        full: The names of which there were as many candidates as were wanted.
        short: The names that had fewer, beyond those that were to be passed over.
    """

    jobs: Sequence[Job]
    more: bool = False
    tried: int = 0
    full: frozenset[str] = frozenset()
    short: frozenset[str] = frozenset()


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
    also = {} if suspects else filter_of(transitions.UNSUSPECTED)
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
    due = filter_of(transitions.claimable([name], now))
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


@command("look for the next due job", writes=False)
def next_due(jobs: JobCollection, names: Sequence[str], after: datetime) -> datetime | None:
    """When the earliest job is due of those that were not due at `after`; None where there is none."""
    remaining = iter(names)
    moments = []
    collection = jobs.collection.with_options(codec_options=OWN_OPTIONS)
    while chunk := list(islice(remaining, MOST_NAMES_IN_ONE_LOOK)):
        later = _but_broken(jobs, filter_of(transitions.claimable(chunk, after)))
        later[_NEXT_RUN_AT] = {"$gt": after}
        found = collection.find_one(later, {"_id": False, _NEXT_RUN_AT: True}, sort=_EARLIEST)
        # One beyond the year 9999 is read as no datetime: it, and all that is due later, is not due in our time.
        if found is not None and isinstance(found[_NEXT_RUN_AT], datetime):
            moments.append(found[_NEXT_RUN_AT])
    return min(moments, default=None)


@command("claim jobs", in_parts=True)
def take(jobs: JobCollection, candidates: Sequence[Job], now: datetime, stamp: ClaimStamp) -> Taken:
    """Claims those of the candidates that are still claimable, in one guarded write.

    The write repeats the whole claim condition. It also pins the candidates as they were read, where
    they all agree: if then all of them matched, the copies are exact. Otherwise what was taken is read
    back by the whole fence.
    """
    names = sorted({job.name for job in candidates})
    pinned = transitions.pins(candidates[0])
    agree = all(transitions.pins(job) == pinned for job in candidates[1:])
    if not agree:
        # What has become a suspect since the look must not be claimed beside others.
        pinned = {} if any(map(transitions.is_suspect, candidates)) else dict(transitions.UNSUSPECTED)
    transition = transitions.claim(names, now, stamp, pinned)
    ids = [job.id for job in candidates]
    # One session for the write and the read behind it: a read elsewhere, on a primary that has been replaced and
    # does not know it yet, would not find what was taken, and nobody would run it.
    with jobs.collection.database.client.start_session(causal_consistency=True) as session:
        matched = jobs.collection.update_many(
            {"_id": {"$in": ids}, **filter_of(transition.guard)}, update_of(transition), hint=_BY_ID, session=session
        ).matched_count
        if agree and matched == len(candidates):
            return Taken([applied(job, transition) for job in candidates])
        missed = matched < len(candidates)
        return Taken(read_back(jobs, ids, stamp, session) if matched else [], more=missed)


def read_back(jobs: JobCollection, ids: Sequence[ObjectId], stamp: ClaimStamp, session: ClientSession) -> Sequence[Job]:
    """Which of the ids bear this claim, as a majority holds it, after the writes of the session."""
    held = {"_id": {"$in": list(ids)}, **filter_of(stamp_fence(stamp))}
    return jobs.decoded(
        lambda collection: collection.with_options(read_concern=ReadConcern("majority")).find(
            held, sort=_EARLIEST, hint=_BY_ID, session=session
        )
    )


def claim_batch(
    jobs: JobCollection,
    wanted: Mapping[str, int],
    choose: Callable[[Sequence[Job]], Sequence[Job]],
    now: datetime,
    stamp: ClaimStamp,
    *,
    suspects: bool = True,
    passed_over: Mapping[str, int] = _NOTHING,
) -> Taken:
    """One claim cycle: look, choose, take.

    Two round trips; one more where the copies were not exact, and one more where the first candidates were
    passed over and there were too few behind them: these names are looked at again, from their head.
    """
    if broken.are_old(jobs):
        broken.look_again(jobs)
    while True:
        known = len(jobs.broken) + len(jobs.left_over)
        found = look(jobs, wanted, now, suspects=suspects, passed_over=passed_over)
        short = _short(found, {name: wanted[name] for name in passed_over})
        if short:
            again = look(jobs, {name: wanted[name] for name in short}, now, suspects=suspects)
            found = [*(job for job in found if job.name not in short), *again]
        candidates = choose(found)
        # What cannot be claimed was found, and is passed over from now on: behind it there may be something.
        has_hidden = len(jobs.broken) + len(jobs.left_over) > known
        if candidates:
            taken = take(jobs, candidates, now, stamp)
            full = frozenset(wanted) - _short(found, wanted)
            return Taken(taken.jobs, taken.more or has_hidden, len(candidates), full, short)
        if not has_hidden:
            return Taken([], short=short)


def _short(found: Sequence[Job], wanted: Mapping[str, int]) -> frozenset[str]:
    """The names of which there is less than was wanted."""
    counted = Counter(job.name for job in found)
    return frozenset(name for name, most in wanted.items() if counted[name] < most)


@command("claim jobs")
def take_one(jobs: JobCollection, job_id: ObjectId, name: str, now: datetime, stamp: ClaimStamp) -> Taken:
    """Claims one new job by its id, if it still is claimable and nobody ever claimed it. One round trip.

    Not for suspects: these have been claimed. Nothing was looked at, so what is no job shows only now: it is
    given back, and a look must tell.
    """
    transition = transitions.claim([name], now, stamp, {**transitions.UNSUSPECTED, "attempts": OneOf((None, 0))})
    # Raw: where it cannot be decoded, it is claimed all the same, and must be known.
    found = jobs.raw.find_one_and_update(
        {"_id": job_id, **filter_of(transition.guard)},
        update_of(transition),
        hint=_BY_ID,
        return_document=ReturnDocument.AFTER,
    )
    if found is None:
        return Taken([])
    try:
        return Taken([jobs.codec.decode(found)])
    except BrokenDocumentError:
        given_back = transitions.release_all(stamp, now)
        jobs.collection.update_one({"_id": job_id, **filter_of(given_back.guard)}, update_of(given_back))
        return Taken([], more=True)


@command("find out about a claim")
def resolve(jobs: JobCollection, stamp: ClaimStamp, beat: datetime) -> Sequence[Job]:
    """What a claim holds whose answer was lost.

    A read alone proves nothing: on a primary that is cut off it finds a claim that is then rolled back.
    So a renewal first, acknowledged by a majority; what a majority read then finds is held. `beat` must
    be later than the claim, as for any renewal.
    """
    held = filter_of(stamp_fence(stamp))
    with jobs.collection.database.client.start_session(causal_consistency=True) as session:
        jobs.collection.update_many(held, {"$max": {FIELD["last_heartbeat"]: beat}}, session=session)
        return jobs.decoded(
            lambda collection: collection.with_options(read_concern=ReadConcern("majority")).find(held, session=session)
        )


@command("give claims back")
def release_all(jobs: JobCollection, stamp: ClaimStamp, now: datetime, *, but: Sequence[ObjectId] = ()) -> int:
    """Gives back, uncounted, whatever a claim cycle holds or will turn out to have held; returns how many."""
    transition = transitions.release_all(stamp, now)
    theirs = filter_of(transition.guard)
    if but:
        theirs["_id"] = {"$nin": list(but)}
    return jobs.collection.update_many(theirs, update_of(transition)).modified_count
