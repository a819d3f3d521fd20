"""The claims that there are, for whoever looks for dead ones: one function a round trip.

A dead claim is ended as any other, by a settlement: see `settling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bson import ObjectId
from pymongo import ASCENDING

from ..jobs.fences import CLAIM_FIELDS
from ..jobs.job import Job, JobStatus
from .codec import FIELD, filter_of
from .connection import JobCollection
from .outcomes import command

MOST_IN_A_BATCH: Final = 1000

# What tells a claim, and what makes a document a job at all.
_SEEN: Final = [FIELD[name] for name in ("name", "status", "next_run_at", "created_at", "updated_at", *CLAIM_FIELDS)]

# The order of the index: it serves the query although this asks for no holder. One without is a claim as well.
IN_ORDER: Final = [(FIELD["claimed_by"], ASCENDING), (FIELD["locked_at"], ASCENDING)]

CLAIMED: Final = filter_of({"status": JobStatus.PROCESSING})


@command("look at the claims", writes=False)
def look(jobs: JobCollection) -> Sequence[Job]:
    """All jobs that are claimed, by whomever: their claims, and nothing else of them."""
    return jobs.decoded(lambda collection: collection.find(CLAIMED, _SEEN, sort=IN_ORDER, batch_size=MOST_IN_A_BATCH))


@command("read jobs whose claims are dead", writes=False)
def read(jobs: JobCollection, ids: Sequence[ObjectId]) -> Sequence[Job]:
    """Those of the jobs that are claimed, whole."""
    dead = {"_id": {"$in": list(ids)}, **CLAIMED}
    return jobs.decoded(lambda collection: collection.find(dead, hint={"_id": ASCENDING}))
