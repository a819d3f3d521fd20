"""Renewals: of what is held, by the whole fence, and of nothing else that may bear our name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pymongo import UpdateMany, UpdateOne
from pymongo.client_session import ClientSession

from ..jobs.fences import ClaimId, claim_id, fence
from ..jobs.job import Job
from ..log import logger_of
from .codec import filter_of
from .commands import BY_ID, bulk_write, by_majority, causal_session, command, in_chunks, of_ids
from .fields import FIELD
from .job_collection import JobCollection

logger = logger_of("store")

# Ten thousand claims in one statement keep the server busy for a quarter of a second, and all else waits.
MOST_IN_ONE_STATEMENT = 1000


@dataclass(slots=True)
class Renewed:
    """What a beat found of the claims that are not simply held.

    Attributes:
        lost: They are no longer held.
        unwanted: Held, and somebody wants the run cancelled.
        refused: The server refuses to renew these; they may be held.
    """

    lost: set[ClaimId] = field(default_factory=set)
    unwanted: set[ClaimId] = field(default_factory=set)
    refused: set[ClaimId] = field(default_factory=set)


def signs_of_life(beat: datetime) -> dict[str, datetime]:
    """The fields that a renewal makes grow. Node writes the first one too, and the second is the holder's alone."""
    return {FIELD["last_heartbeat"]: beat, FIELD["renewed_at"]: beat}


@command("renew claims")
def renew(jobs: JobCollection, held: Sequence[Job], beat: datetime) -> Renewed:
    """Renews the claims, and looks for cancel requests among them: one statement where there is nothing to tell.

    `$max`, and a `beat` that the caller lets grow: an observer must see a change although the server's
    clock stepped back, or it would take a live run for dead.
    """
    renewal = {"$max": signs_of_life(beat), "$set": {FIELD["updated_at"]: beat}}
    found = Renewed()
    with causal_session(jobs.collection) as session:
        for group in in_chunks(held, MOST_IN_ONE_STATEMENT):
            cycles = _by_cycle(group)
            wanted = [{**one, FIELD["cancel_requested_at"]: None} for one in cycles]
            if _matched(jobs, wanted, renewal, session) == len(group):
                continue
            # Some are asked to end or gone. Those that are asked to end are renewed as well: they clean up.
            matched = _matched(jobs, cycles, renewal, session)
            if matched is None:
                found.refused |= _refused_alone(jobs, group, renewal, session)
            if matched is None or matched < len(group):
                found.lost.update({claim_id(job) for job in group} - _found(jobs, cycles, session))
            asked = [{**one, FIELD["cancel_requested_at"]: {"$ne": None}} for one in cycles]
            found.unwanted.update(_found(jobs, asked, session))
    return found


def _matched(
    jobs: JobCollection, filters: Sequence[dict[str, Any]], renewal: dict[str, Any], session: ClientSession
) -> int | None:
    """How many were renewed; None where the server refused one of them, and with it those behind it."""
    requests = [UpdateMany(one, renewal, hint=BY_ID) for one in filters]
    result = bulk_write(jobs.collection, requests, "renew claims", session)
    return None if result.refused else result.matched


def _refused_alone(
    jobs: JobCollection, group: Sequence[Job], renewal: dict[str, Any], session: ClientSession
) -> set[ClaimId]:
    """Renews each claim by a statement of its own; the claims whose documents the server refuses to change.

    A validator that came while they ran, for example. Their leases run out, and their runs end with them.
    """
    each = [UpdateOne(filter_of(fence(job)), renewal, hint=BY_ID) for job in group]
    refused = bulk_write(jobs.collection, each, "renew claims", session).refused
    for place, refusal in refused.items():
        if jobs.report_refused(group[place].id):
            logger.error("the server refuses to renew the claim on job %s: %s", group[place], refusal.message)
    return {claim_id(group[place]) for place in refused}


def _found(jobs: JobCollection, filters: Sequence[dict[str, Any]], session: ClientSession) -> set[ClaimId]:
    """By a majority read, after the writes of the session: on a primary that is cut off, another proves nothing."""
    token = FIELD["claim_token"]
    reader = by_majority(jobs.collection)
    return {
        (document["_id"], document[token])
        for one in filters
        for document in reader.find(one, [token], hint=BY_ID, session=session)
    }


def _by_cycle(group: Sequence[Job]) -> list[dict[str, Any]]:
    """One filter for each claim cycle: the ids that it took, and its fence."""
    cycles: dict[str | None, list[Job]] = defaultdict(list)
    for job in group:
        cycles[job.claim_token].append(job)
    return [{**filter_of(fence(members[0])), **of_ids(job.id for job in members)} for members in cycles.values()]
