"""Renewals: at every heartbeat, an instance writes a sign of life into the jobs that it holds.

Instance A runs a job. It stalls for longer than the lease; B takes the job for dead and claims it. Then A goes on and
renews. What each condition closes:

- A renews by the whole fence (see `jobs/claim_stamps_and_fences.py`), not by its name. Otherwise A would renew B's
  claim, or a later claim of its own, and go on running the job beside the other run. A claim that does not match is
  lost: A cancels its run.
- `$max`, with a beat that only grows. An observer judges by change: a claim whose signs of life do not change for a
  whole lease is dead. If the server's clock steps back and a renewal wrote an older date, or the same one, the observer
  would take a live run for dead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pymongo import UpdateMany, UpdateOne
from pymongo.client_session import ClientSession

from ...jobs.claim_stamps_and_fences import ClaimId, claim_id, fence
from ...jobs.job import Job
from ...log import logger_of
from ..codec import filter_of
from ..driver.commands import BY_ID, bulk_write, by_majority, causal_session, command, in_chunks, of_ids
from ..fields import FIELD
from ..job_collection import JobCollection

logger = logger_of("store")

# Ten thousand claims in one statement keep the server busy for a quarter of a second, and all other commands wait.
MOST_IN_ONE_STATEMENT = 1000


@dataclass(slots=True)
class Renewed:
    """The claims that need attention after a heartbeat. All others are held.

    Attributes:
        lost: Claims that this instance no longer holds: their runs must end.
        cancel_requested: Claims that this instance holds, on jobs whose cancellation was requested.
        refused: Claims that the server refuses to renew. They hold until their leases expire, unless they are lost.
    """

    lost: set[ClaimId] = field(default_factory=set)
    cancel_requested: set[ClaimId] = field(default_factory=set)
    refused: set[ClaimId] = field(default_factory=set)


def signs_of_life(beat: datetime) -> dict[str, datetime]:
    """Return the signs of life of a renewal, with its date. Monque for Node writes the first one, too."""
    return {FIELD["claim.last_heartbeat"]: beat, FIELD["claim.renewed_at"]: beat}


@command("renew claims")
def renew(jobs: JobCollection, held: Sequence[Job], beat: datetime) -> Renewed:
    """Renew the claims, and find lost ones and cancel requests among them. Usually one statement.

    `beat` must be later than that of the call before, also if the server's clock has stepped back.
    """
    # `$max`, with a beat that only grows: see the top of this file. `updatedAt` is for readers only.
    renewal = {"$max": signs_of_life(beat), "$set": {FIELD["updated_at"]: beat}}
    found = Renewed()
    with causal_session(jobs.collection) as session:
        for group in in_chunks(held, MOST_IN_ONE_STATEMENT):
            cycles = _by_cycle(group)
            # Only jobs without a cancel request: if all match, this one statement also shows that there is no request.
            without_request = [{**one, FIELD["claim.cancel_requested_at"]: None} for one in cycles]
            if _matched(jobs, without_request, renewal, session) == len(group):
                continue
            # Some claims are lost, or their jobs are to be cancelled. The second statement renews the latter, too:
            # their runs need the claims while they clean up.
            matched = _matched(jobs, cycles, renewal, session)
            if matched is None:
                found.refused |= _refused_alone(jobs, group, renewal, session)
            # A claim is lost if a majority read does not find it under its fence. That the renewal did not match it
            # proves nothing: a statement that stopped at a refused document did not reach the claims behind it.
            if matched is None or matched < len(group):
                found.lost.update({claim_id(job) for job in group} - _held_under(jobs, cycles, session))
            found.cancel_requested.update(_held_under(jobs, _with_request(cycles), session))
    return found


@command("look for cancel requests", writes=False)
def cancel_requested(jobs: JobCollection, held: Sequence[Job]) -> set[ClaimId]:
    """Return those of the claims that this instance holds, on jobs whose cancellation was requested. Writes nothing."""
    with causal_session(jobs.collection) as session:
        return _held_under(jobs, _with_request(_by_cycle(held)), session)


def _matched(
    jobs: JobCollection, filters: Sequence[dict[str, Any]], renewal: dict[str, Any], session: ClientSession
) -> int | None:
    """Return how many claims were renewed; None if the server refused one, and did not reach those behind it."""
    requests = [UpdateMany(one, renewal, hint=BY_ID) for one in filters]
    result = bulk_write(jobs.collection, requests, "renew claims", session)
    return None if result.refused else result.matched


def _refused_alone(
    jobs: JobCollection, group: Sequence[Job], renewal: dict[str, Any], session: ClientSession
) -> set[ClaimId]:
    """Renew each claim by a statement of its own; return the claims whose documents the server refuses to change."""
    # The server refuses a renewal if a validator was added while the job ran, for example. That claim expires, and its
    # run must end before. The claims that the statement did not reach are renewed here.
    each = [UpdateOne(filter_of(fence(job)), renewal, hint=BY_ID) for job in group]
    refused = bulk_write(jobs.collection, each, "renew claims", session).refused_among(group)
    for job, refusal in refused:
        if jobs.report_refused(job.id):
            logger.error("the server refused to renew the claim on job %s: %s", job, refusal.message)
    return {claim_id(job) for job, _ in refused}


def _held_under(jobs: JobCollection, filters: Sequence[dict[str, Any]], session: ClientSession) -> set[ClaimId]:
    """Read the claims that match these filters, as a majority has them after the writes of the session."""
    token = FIELD["claim.token"]
    # On a primary that is cut off, a local read would show claims that the other side has given to other instances.
    # With the session, a primary answers only once it has the renewals.
    reader = by_majority(jobs.collection)
    return {
        (document["_id"], document[token])
        for one in filters
        for document in reader.find(one, [token], hint=BY_ID, session=session)
    }


def _with_request(cycles: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, FIELD["claim.cancel_requested_at"]: {"$ne": None}} for one in cycles]


def _by_cycle(group: Sequence[Job]) -> list[dict[str, Any]]:
    """Return one filter for each claim cycle: the ids of the jobs that it took, and its fence."""
    cycles: dict[str | None, list[Job]] = defaultdict(list)
    for job in group:
        cycles[claim_id(job)[1]].append(job)
    return [{**filter_of(fence(members[0])), **of_ids(job.id for job in members)} for members in cycles.values()]
