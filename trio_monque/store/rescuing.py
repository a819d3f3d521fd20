"""The claims that there are, for whoever looks for dead ones: one function a round trip.

A dead claim is ended as any other, by a settlement: see `settling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING

from ..jobs.fences import CLAIM_FIELDS
from ..jobs.job import Job, JobStatus
from .codec import filter_of
from .commands import BY_ID, command, of_ids
from .doubled_fields import jobs_as_compared
from .fields import BUT_HEAVY, FIELD
from .job_collection import JobCollection

MOST_IN_A_BATCH: Final = 1000

# What tells a claim, and what makes a document a job at all.
CLAIM_VIEW: Final = [
    FIELD[name] for name in ("name", "status", "next_run_at", "created_at", "updated_at", *CLAIM_FIELDS)
]

# The order of the index: it serves the query although this asks for no holder. One without is a claim as well.
IN_ORDER: Final = [(FIELD["claimed_by"], ASCENDING), (FIELD["locked_at"], ASCENDING)]

CLAIMED: Final = filter_of({"status": JobStatus.PROCESSING})


@command("look at the claims", writes=False)
def look(jobs: JobCollection) -> Sequence[Job]:
    """All jobs that are claimed, by whomever: their claims, and nothing else of them."""
    found = jobs.decoded(
        lambda collection: collection.find(CLAIMED, CLAIM_VIEW, sort=IN_ORDER, batch_size=MOST_IN_A_BATCH)
    )
    return _as_compared(jobs, found)


@command("read jobs whose claims are dead", writes=False)
def read(jobs: JobCollection, ids: Sequence[ObjectId]) -> Sequence[Job]:
    """Those of the jobs that are claimed, without what handlers gave and stored."""
    return _as_compared(jobs, jobs.decoded(lambda collection: collection.find(_claimed(ids), BUT_HEAVY, hint=BY_ID)))


@command("read a job whose claim is dead", writes=False)
def read_whole(jobs: JobCollection, job_id: ObjectId) -> Sequence[Job]:
    """The job, if it is claimed."""
    return _as_compared(jobs, jobs.decoded(lambda collection: collection.find(_claimed([job_id]), hint=BY_ID)))


def _claimed(ids: Sequence[ObjectId]) -> dict[str, Any]:
    return {**of_ids(ids), **CLAIMED}


def _as_compared(jobs: JobCollection, found: Sequence[Job]) -> Sequence[Job]:
    """The same; of those that are known to have a field twice, what the server compares.

    By what the driver reads, no rescue of such a job ever matches, and its renewals may not be seen.
    """
    known = [job.id for job in found if job.id in jobs.broken] if jobs.broken else []
    if not known:
        return found
    seen = {job.id: job for job in jobs_as_compared(jobs.raw.find(_claimed(known), hint=BY_ID))}
    return [seen.get(job.id, job) for job in found]
