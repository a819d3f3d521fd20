"""Claims: the guarded write, and the proof of what it took. Usually one round trip.

Two instances, A and B, look at the same due job and both try to claim it. What each condition closes:

- The guard repeats the whole claim condition (pending, due, no owner). B's write comes after A's and matches nothing.
  Without it, both would run the job.
- The ids go with the guard. Without them, a claim would take more jobs than the instance can start.
- The pins repeat each candidate as A read it. Between A's look and A's write, B may claim the job, fail, and release
  it. The guard holds again, but A's copy is old: A would count attempts from it and run with old data. With the pins,
  "all candidates matched" proves that the copies are exact, and saves a read.
- The fence (owner, token, moment) tells this claim from any earlier one under the same name. Where not all matched,
  A reads back by the fence what it holds, in the session of the write and as a majority has it. Without the majority,
  A on a primary that is cut off would run a job whose claim is rolled back, while B claims it on the new primary.
- A job that was rescued several times in a row is suspected of killing its process, and is claimed alone. B's death
  may make a candidate a suspect after A's look. The pins have the number of rescues, so that candidate does not match;
  a write without pins repeats `UNSUSPECTED`. Otherwise the suspect would be claimed beside other jobs, and kill their
  runs as well.

Where the answer to a claim is lost, A does not know whether it holds the jobs. `resolve` finds out, and `release_all`
gives back what A does not want. Otherwise these jobs would wait until the lease expires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson import ObjectId
from pymongo import ReturnDocument, UpdateOne
from pymongo import errors as driver
from pymongo.client_session import ClientSession

from ...error_types import BrokenDocumentError
from ...jobs import transitions
from ...jobs.claim_stamps_and_fences import ClaimStamp, cycle_fence, stamp_fence
from ...jobs.claimable import in_time, is_too_late, past, pins
from ...jobs.conditional_write import OneOf, Transition, applied
from ...jobs.job import Job
from ...jobs.rescue_policy import UNSUSPECTED
from ...log import logger_of
from ..broken.doubled_fields import report_doubled
from ..codec import filter_of, update_of
from ..driver.commands import BY_ID, bulk_write, by_majority, causal_session, command, of_ids, update_unless_refused
from ..driver.driver_errors import REFUSAL_CODES
from ..job_collection import JobCollection
from .due import CLAIM_ORDER
from .leases import signs_of_life
from .refused_claims import RefusedClaim

logger = logger_of("store")

# The past of a job is what its pins compare. Each different past is a condition of its own in the write, with the ids
# of its jobs. If the candidates have more pasts than this, the write has no pins, and a read shows what was taken.
MOST_PASTS: Final = 8

# Missed candidates that are remembered; with more, all are forgotten. A claim misses that many only while other
# instances take most of what is seen here.
MOST_MISSED: Final = 1000


@dataclass(frozen=True, slots=True)
class TakenJobs:
    """What one claim took.

    Attributes:
        jobs: The claimed jobs, exactly as the database holds them.
        more: Another claim is worthwhile now: other instances were faster with some of the candidates, or the server
            refused some.
        refused: The server refuses every claim on these. They are still pending.
    """

    jobs: Sequence[Job]
    more: bool = False
    refused: Sequence[RefusedClaim] = ()


@command("claim jobs", in_parts=True)
def take(
    jobs: JobCollection,
    candidates: Sequence[Job],
    now: datetime,
    stamp: ClaimStamp,
    followed: Set[str] = frozenset(),
) -> TakenJobs:
    """Claim those of the candidates that are still claimable, in one guarded write.

    If not all candidates matched, or if they have too many different pasts, one further round trip reads back what was
    taken. If the server refused to change one of them (the document has no room for a claim, or a validator refuses
    it), each is claimed alone before that.

    Args:
        followed: The names whose workers have a `then`. A claim marks their jobs, in a write of its own if there are
            others.
    """
    if not followed:
        return _take(jobs, candidates, now, stamp)
    marked = [job for job in candidates if job.name in followed]
    plain = [job for job in candidates if job.name not in followed]
    parts = [_take(jobs, part, now, stamp, followed=part is marked) for part in (marked, plain) if part]
    return TakenJobs(
        [job for part in parts for job in part.jobs],
        more=any(part.more for part in parts),
        refused=[one for part in parts for one in part.refused],
    )


def _take(
    jobs: JobCollection, candidates: Sequence[Job], now: datetime, stamp: ClaimStamp, *, followed: bool = False
) -> TakenJobs:
    names = sorted({job.name for job in candidates})
    transition = transitions.claim(names, now, stamp, in_time(candidates, now), followed=followed)
    ids = [job.id for job in candidates]
    as_read = None if _has_moving_candidate(jobs, candidates) else _as_read(candidates)
    # A job that has become a suspect since the look must not be claimed beside others. The pins exclude that; without
    # pins, `UNSUSPECTED` does.
    pinned = filter_of(UNSUSPECTED) if as_read is None else as_read
    with causal_session(jobs.collection) as session:
        # The whole claim condition once more: another instance may have claimed a candidate since the look. Without
        # the ids, the write would take more jobs than the instance can start.
        guard = {**of_ids(ids), **filter_of(transition.guard), **pinned}
        written = update_unless_refused(jobs.collection, guard, update_of(transition), BY_ID, session)
        if isinstance(written, driver.WriteError):
            # The write stopped at the refused document, and has claimed those before it. The server does not report
            # which: so all are read back, and not only what the second write matches.
            refused = _refused_alone(jobs, candidates, transition, session)
            return TakenJobs(read_back(jobs, ids, stamp, session), more=True, refused=refused)
        matched = written.matched_count
        # Only with pins: without them, a candidate that was claimed, failed and released since the look matches as
        # well, and its copy has the attempts and the data from before.
        if as_read is not None and matched == len(candidates):
            return TakenJobs([applied(job, transition) for job in candidates])
        # The server reports how many matched, and not which.
        taken = read_back(jobs, ids, stamp, session) if matched else []
    if matched == len(candidates):
        return TakenJobs(taken)
    _look_into_misses(jobs, candidates, {job.id for job in taken})
    return TakenJobs(taken, more=True)


def _has_moving_candidate(jobs: JobCollection, candidates: Sequence[Job]) -> bool:
    """Return whether a candidate that we failed to claim before has changed meanwhile.

    Callers may replace a job many times in a second, and each time it gets another `rev`: claims with pins may miss it
    again and again. So a claim on it has no pins. It takes what is claimable, and reads what it took.
    """
    # A candidate with the same past has not changed: a claim without pins would miss it as well.
    changed = [job.id for job in candidates if jobs.missed.get(job.id, past(job)) != past(job)]
    for job_id in changed:
        jobs.missed.pop(job_id, None)  # Another claim in flight, in its own thread, may have removed it just now.
    return bool(changed)


def _look_into_misses(jobs: JobCollection, candidates: Sequence[Job], taken: Set[ObjectId]) -> None:
    """Find out why a claim misses the same candidate again and again."""
    missed = {job.id: past(job) for job in candidates if job.id not in taken}
    # A job that another instance has taken comes back with another past, or not at all. A job that is missed twice with
    # the same past may have a field twice: then no claim ever matches it. Without this check, it would be tried again
    # at once, for ever. A suspect of that kind would be the only candidate each time, because suspects are claimed
    # alone: all other jobs would wait.
    again = [job_id for job_id, before in missed.items() if jobs.missed.pop(job_id, None) == before]
    if again:
        report_doubled(jobs, again)
    if len(jobs.missed) > MOST_MISSED:
        jobs.missed.clear()
    jobs.missed.update({job_id: before for job_id, before in missed.items() if job_id not in again})


def _refused_alone(
    jobs: JobCollection, candidates: Sequence[Job], claim: Transition, session: ClientSession
) -> list[RefusedClaim]:
    """Claim each candidate by a statement of its own; return the candidates that the server refuses to change."""
    # A candidate that the first write has claimed is no longer pending: it does not match, and is not claimed twice.
    guard, update = filter_of(claim.guard), update_of(claim)
    each = [UpdateOne({"_id": job.id, **guard, **filter_of(pins(job))}, update, hint=BY_ID) for job in candidates]
    refused = bulk_write(jobs.collection, each, "claim jobs", session).refused_among(candidates)
    return [RefusedClaim(job, refusal.code, refusal.message) for job, refusal in refused]


def _as_read(candidates: Sequence[Job]) -> Mapping[str, Any] | None:
    """Return the condition that all candidates are as they were read; None if they have too many different pasts."""
    by_past: dict[object, list[Job]] = {}
    for job in candidates:
        by_past.setdefault(past(job), []).append(job)
    if len(by_past) > MOST_PASTS:
        return None
    if len(by_past) == 1:
        return filter_of(pins(candidates[0]))
    return {"$or": [{**of_ids(job.id for job in same), **filter_of(pins(same[0]))} for same in by_past.values()]}


def read_back(jobs: JobCollection, ids: Sequence[ObjectId], stamp: ClaimStamp, session: ClientSession) -> Sequence[Job]:
    """Read which of the jobs bear this claim, as a majority holds them, after the writes of the session."""
    # The whole fence and not only the ids: another instance may have claimed some of them.
    held = {**of_ids(ids), **filter_of(stamp_fence(stamp))}
    found = jobs.decoded(
        lambda collection: by_majority(collection).find(held, sort=CLAIM_ORDER, hint=BY_ID, session=session)
    )
    return _without_doubled(jobs, found, stamp)


def _without_doubled(jobs: JobCollection, found: Sequence[Job], stamp: ClaimStamp) -> list[Job]:
    """Return the jobs that can run; release those whose documents have a field of the claim twice.

    The server has compared each document with the stamp, and it matched. If the copy of it does not match, too, the
    document has a field twice: the server compares the first of the two, and the driver reads the last.
    """
    whole = [job for job in found if cycle_fence(job) == stamp_fence(stamp)]
    # The end of such a run would never match: its fence is made of the copy. So the job must not run. The release
    # removes the first of the two fields, and so repairs the document.
    if len(whole) < len(found):
        held = {job.id for job in whole}
        _release_unrunnable(jobs, [job.id for job in found if job.id not in held], stamp, stamp.locked_at)
    return whole


# `in_parts`: the claim is already written here, so any error leaves an unknown outcome, and the caller must release the
# claim. `take_one`, which calls this, has no `in_parts`: its claim may fail with nothing written.
@command("release claims", in_parts=True)
def _release_unrunnable(jobs: JobCollection, ids: Sequence[ObjectId], stamp: ClaimStamp, now: datetime) -> None:
    given_back = transitions.release_all(stamp, now)
    jobs.collection.update_many({**of_ids(ids), **filter_of(given_back.guard)}, update_of(given_back))


@command("claim jobs")
def take_one(
    jobs: JobCollection,
    job_id: ObjectId,
    name: str,
    attempts: int,
    now: datetime,
    stamp: ClaimStamp,
    followed: Set[str] = frozenset(),
) -> TakenJobs:
    """Claim one job by its id, if it is claimable and still has that number of attempts. One round trip, no look.

    It does not take suspects. A document that is not a job is released, and the next look reports it.
    """
    if jobs.elsewhere.entries and job_id in jobs.elsewhere:
        return TakenJobs([])  # This instance released it a moment ago, because it cannot run it. Another one may.
    # Without a look there are no pins. The attempts stand in for them: if another instance has claimed the job
    # meanwhile, it has one attempt more.
    known = {**UNSUSPECTED, "attempts": attempts or OneOf((None, 0))}
    transition = transitions.claim([name], now, stamp, known, followed=name in followed)
    # Raw: a document that cannot be decoded is claimed all the same, and must be released.
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
        return TakenJobs([], more=True)  # The next look reads the copy that is needed to set it aside.
    if found is None:
        return TakenJobs([])  # Another instance took it. `more` is False: the caller expected no other job.
    # The answer is the document after this very write, which is acknowledged: nothing needs to be read back.
    try:
        taken = _without_doubled(jobs, [jobs.codec.decode(found)], stamp)
        if taken and taken[0].schedule is not None and not jobs.can_run_here(taken[0]):
            _release_unrunnable(jobs, [job_id], stamp, now)
            return TakenJobs([], more=True)
        if taken and is_too_late(taken[0], now):
            # The job should have started by now (`start_by`). Without a look, only the claimed document shows that.
            # The job does not start: the look that follows ends it. A condition in the write would make every claim by
            # an id longer.
            _release_unrunnable(jobs, [job_id], stamp, now)
            return TakenJobs([], more=True)
        # A job that was released here is due as before: the next look meets it.
        return TakenJobs(taken, more=not taken)
    except BrokenDocumentError:
        _release_unrunnable(jobs, [job_id], stamp, now)
        return TakenJobs([], more=True)


@command("check the outcome of a claim")
def resolve(jobs: JobCollection, stamp: ClaimStamp, beat: datetime) -> Sequence[Job]:
    """Return the jobs that a claim holds whose answer was lost.

    `beat` is the moment of the renewal, and must be later than the claim: otherwise `$max` would write nothing.
    """
    held = filter_of(stamp_fence(stamp))
    with causal_session(jobs.collection) as session:
        # A read alone proves nothing: on a primary that is cut off, it finds a claim that is rolled back afterwards.
        # The renewal is a write, acknowledged by a majority: what the majority read behind it finds is held.
        jobs.collection.update_many(held, {"$max": signs_of_life(beat)}, session=session)
        found = jobs.decoded(lambda collection: by_majority(collection).find(held, session=session))
        return _without_doubled(jobs, found, stamp)


@command("release claims")
def release_all(jobs: JobCollection, stamp: ClaimStamp, now: datetime, *, but: Sequence[ObjectId] = ()) -> int:
    """Release, without counting an attempt, all jobs that a claim cycle holds except `but`; return how many.

    A job whose release a validator refuses keeps its claim until the lease expires. The others are released.
    """
    # By the stamp and not by ids: where the answer to a claim was lost, the caller does not know what it took.
    transition = transitions.release_all(stamp, now)
    theirs, update = filter_of(transition.guard), update_of(transition)
    if but:
        theirs["_id"] = {"$nin": list(but)}
    written = update_unless_refused(jobs.collection, theirs, update)
    return _release_each(jobs, theirs, update) if isinstance(written, driver.WriteError) else written.modified_count


def _release_each(jobs: JobCollection, theirs: dict[str, Any], update: dict[str, Any]) -> int:
    # One release for all stops at the refused document, and would leave those behind it to their leases.
    ids = [document["_id"] for document in jobs.collection.find(theirs, {"_id": True})]
    each = [UpdateOne({**theirs, "_id": job_id}, update, hint=BY_ID) for job_id in ids]
    result = bulk_write(jobs.collection, each, "release claims")
    for job_id, refusal in result.refused_among(ids):
        if jobs.report_refused(job_id):
            logger.error("the server refused to release job %s, so its claim expires: %s", job_id, refusal.message)
    return result.modified
