"""Claims: the guarded write, and what was really taken. One function a round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, ReturnDocument, UpdateOne
from pymongo import errors as driver
from pymongo.client_session import ClientSession

from ..errors import BrokenDocumentError
from ..jobs import transitions
from ..jobs.claimable import UNSUSPECTED, past, pins
from ..jobs.conditional_write import OneOf, Transition, applied
from ..jobs.fences import ClaimStamp, cycle_fence, stamp_fence
from ..jobs.job import Job
from ..log import logger_of
from .codec import filter_of, update_of
from .commands import BY_ID, bulk_write, by_majority, causal_session, command, of_ids, update_unless_refused
from .doubled_fields import report_doubled
from .driver_errors import REFUSAL_CODES
from .fields import FIELD
from .job_collection import JobCollection
from .leases import signs_of_life
from .refused_claims import RefusedClaim

logger = logger_of("store")

CLAIM_ORDER: Final = [(FIELD["next_run_at"], ASCENDING)]
"""Earliest first, without a tie-break: with one, the claim index would not give the order, and the server sorts."""

# Each is a condition of its own in the write, with the ids that it is for.
MOST_PASTS: Final = 8

# More are lost to other instances only where these take most of what is seen here.
MOST_MISSED: Final = 1000


@dataclass(frozen=True, slots=True)
class Taken:
    """What one claim took.

    Attributes:
        jobs: The claimed jobs, exactly as the database holds them.
        more: Whether there may be more to take at once: others were faster with some of what was seen.
        refused: The server refuses every claim on these. They are still pending.
    """

    jobs: Sequence[Job]
    more: bool = False
    refused: Sequence[RefusedClaim] = ()


@command("claim jobs", in_parts=True)
def take(jobs: JobCollection, candidates: Sequence[Job], now: datetime, stamp: ClaimStamp) -> Taken:
    """Claims those of the candidates that are still claimable, in one guarded write.

    The write repeats the whole claim condition. It also pins each candidate as it was read: if then all
    of them matched, the copies are exact. Otherwise what was taken is read back by the whole fence.

    The server may refuse the change of one document: it has no room for a claim, or a validator refuses it. The write
    stops there, and has claimed what stands before it. Then each candidate is claimed alone, in one further round trip.
    """
    transition = transitions.claim(sorted({job.name for job in candidates}), now, stamp)
    ids = [job.id for job in candidates]
    as_read = _as_read(candidates)
    # What has become a suspect since the look must not be claimed beside others: where it is not pinned, it is said.
    pinned = filter_of(UNSUSPECTED) if as_read is None else as_read
    # One session for the write and the read behind it: a read elsewhere, on a primary that has been replaced and
    # does not know it yet, would not find what was taken, and nobody would run it.
    with causal_session(jobs.collection) as session:
        guard = {**of_ids(ids), **filter_of(transition.guard), **pinned}
        written = update_unless_refused(jobs.collection, guard, update_of(transition), BY_ID, session)
        if isinstance(written, driver.WriteError):
            refused = _refused_alone(jobs, candidates, transition, session)
            return Taken(read_back(jobs, ids, stamp, session), more=True, refused=refused)
        matched = written.matched_count
        if as_read is not None and matched == len(candidates):
            return Taken([applied(job, transition) for job in candidates])
        taken = read_back(jobs, ids, stamp, session) if matched else []
    if matched == len(candidates):
        return Taken(taken)
    _look_into_misses(jobs, candidates, {job.id for job in taken})
    return Taken(taken, more=True)


def _look_into_misses(jobs: JobCollection, candidates: Sequence[Job], taken: Set[ObjectId]) -> None:
    """Finds out why a claim misses the same candidate again and again.

    What another instance has taken comes back with another past, or not at all. One that was missed, is seen again and
    has the same past was not taken. Left alone, it would be tried at once, for ever; and a suspect, which is claimed
    alone, would keep all others from being claimed.
    """
    missed = {job.id: past(job) for job in candidates if job.id not in taken}
    again = [job_id for job_id, before in missed.items() if jobs.missed.pop(job_id, None) == before]
    if again:
        report_doubled(jobs, again)
    if len(jobs.missed) > MOST_MISSED:
        jobs.missed.clear()
    jobs.missed.update({job_id: before for job_id, before in missed.items() if job_id not in again})


def _refused_alone(
    jobs: JobCollection, candidates: Sequence[Job], claim: Transition, session: ClientSession
) -> list[RefusedClaim]:
    """Claims each candidate by a statement of its own. One that is claimed already matches none of them."""
    guard, update = filter_of(claim.guard), update_of(claim)
    each = [UpdateOne({"_id": job.id, **guard, **filter_of(pins(job))}, update, hint=BY_ID) for job in candidates]
    refused = bulk_write(jobs.collection, each, "claim jobs", session).refused
    return [RefusedClaim(candidates[place], one.code, one.message) for place, one in refused.items()]


def _as_read(candidates: Sequence[Job]) -> Mapping[str, Any] | None:
    """The condition that all of them are as they were read; None where they have too many different pasts."""
    by_past: dict[object, list[Job]] = {}
    for job in candidates:
        by_past.setdefault(past(job), []).append(job)
    if len(by_past) > MOST_PASTS:
        return None
    if len(by_past) == 1:
        return filter_of(pins(candidates[0]))
    return {"$or": [{**of_ids(job.id for job in same), **filter_of(pins(same[0]))} for same in by_past.values()]}


def read_back(jobs: JobCollection, ids: Sequence[ObjectId], stamp: ClaimStamp, session: ClientSession) -> Sequence[Job]:
    """Which of the ids bear this claim, as a majority holds it, after the writes of the session."""
    held = {**of_ids(ids), **filter_of(stamp_fence(stamp))}
    found = jobs.decoded(
        lambda collection: by_majority(collection).find(held, sort=CLAIM_ORDER, hint=BY_ID, session=session)
    )
    return _whole(jobs, found, stamp)


def _whole(jobs: JobCollection, found: Sequence[Job], stamp: ClaimStamp) -> list[Job]:
    """Those that bear the claim as they were read, too; the others are given back.

    The server has compared each with the stamp. What reads otherwise has a field of its claim twice, and no write under
    the fence that was read would ever match. The release removes the first of the two, and so mends the document.
    """
    whole = [job for job in found if cycle_fence(job) == stamp_fence(stamp)]
    if len(whole) < len(found):
        held = {job.id for job in whole}
        others = [job.id for job in found if job.id not in held]
        given_back = transitions.release_all(stamp, stamp.locked_at)
        jobs.collection.update_many({**of_ids(others), **filter_of(given_back.guard)}, update_of(given_back))
    return whole


@command("claim jobs")
def take_one(
    jobs: JobCollection, job_id: ObjectId, name: str, attempts: int, now: datetime, stamp: ClaimStamp
) -> Taken:
    """Claims one job by its id, if it still is claimable and was claimed so often before. One round trip.

    Not for suspects. Nothing was looked at, so what is not a job shows only now: it is released, and a look must tell.
    """
    known = {**UNSUSPECTED, "attempts": attempts or OneOf((None, 0))}
    transition = transitions.claim([name], now, stamp, known)
    # Raw: where it cannot be decoded, it is claimed all the same, and must be known.
    try:
        found = jobs.raw.find_one_and_update(
            {"_id": job_id, **filter_of(transition.guard)},
            update_of(transition),
            hint=BY_ID,
            return_document=ReturnDocument.AFTER,
        )
    except driver.OperationFailure as error:
        if error.code not in REFUSAL_CODES:
            raise
        return Taken([], more=True)  # A look brings the copy by which it is set aside.
    if found is None:
        return Taken([])
    try:
        taken = _whole(jobs, [jobs.codec.decode(found)], stamp)
        return Taken(taken, more=not taken)
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
    with causal_session(jobs.collection) as session:
        jobs.collection.update_many(held, {"$max": signs_of_life(beat)}, session=session)
        found = jobs.decoded(lambda collection: by_majority(collection).find(held, session=session))
        return _whole(jobs, found, stamp)


@command("give claims back")
def release_all(jobs: JobCollection, stamp: ClaimStamp, now: datetime, *, but: Sequence[ObjectId] = ()) -> int:
    """Gives back, uncounted, whatever a claim cycle holds or will turn out to have held; returns how many.

    A job that a validator does not let go keeps its claim, and keeps no other from its release.
    """
    transition = transitions.release_all(stamp, now)
    theirs, update = filter_of(transition.guard), update_of(transition)
    if but:
        theirs["_id"] = {"$nin": list(but)}
    written = update_unless_refused(jobs.collection, theirs, update)
    return _release_each(jobs, theirs, update) if isinstance(written, driver.WriteError) else written.modified_count


def _release_each(jobs: JobCollection, theirs: dict[str, Any], update: dict[str, Any]) -> int:
    ids = [document["_id"] for document in jobs.collection.find(theirs, {"_id": True})]
    each = [UpdateOne({**theirs, "_id": job_id}, update, hint=BY_ID) for job_id in ids]
    result = bulk_write(jobs.collection, each, "give claims back")
    for place, refusal in result.refused.items():
        if jobs.report_refused(ids[place]):
            logger.error(
                "the server refuses the release of job %s, whose claim expires: %s", ids[place], refusal.message
            )
    return result.modified
