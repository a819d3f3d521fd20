"""Reads for the search for dead claims: all claims, and the jobs that dead ones hold. Nothing is written here.

Every instance observes all claims at its heartbeats. A claim is dead when its signs of life have not changed for a
whole lease by the observer's own steady clock; `jobs/rescue_policy.py` has that threshold. No date is compared with a
clock: clocks of two machines differ, and a claim of a slow clock would look dead from the first moment.

A rescue ends a dead claim as its holder would: by a settlement under the whole fence, with the signs of life that the
observer saw (`settling.py`). If the holder renews, or another instance rescues, between the look and the write, the
write does not match. Without these conditions, the rescue would take a live claim, or count the same death twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING

from ...jobs.claim_stamps_and_fences import ClaimId
from ...jobs.job import Job, JobStatus
from ..broken.doubled_fields import jobs_as_compared
from ..codec import filter_of
from ..driver.by_halves import TIME_OF_A_PART, sent_by_halves
from ..driver.commands import BY_ID, command, of_ids
from ..fields import BUT_HEAVY, CLAIM, FIELD
from ..job_collection import JobCollection
from .settling import Fate, Statement, settle

MOST_IN_A_BATCH: Final = 1000

# What an observer compares of a claim, and the fields without which a document is not a job.
CLAIM_VIEW: Final = [FIELD[name] for name in ("name", "status", "next_run_at", "created_at", "updated_at", *CLAIM)]

# The order of the index, so that the server reads that index although the query names no holder. It must not name one:
# a running job without a holder is a dead claim, too.
IN_ORDER: Final = [(FIELD["claim.by"], ASCENDING), (FIELD["claim.since"], ASCENDING)]

CLAIMED: Final = filter_of({"status": JobStatus.PROCESSING})


@command("read the claims", writes=False)
def look(jobs: JobCollection) -> Sequence[Job]:
    """Return the claimed jobs of all instances, without the fields that do not belong to a claim."""
    found = jobs.decoded(
        lambda collection: collection.find(CLAIMED, CLAIM_VIEW, sort=IN_ORDER, batch_size=MOST_IN_A_BATCH)
    )
    return _as_compared(jobs, found)


@command("read jobs whose claims are dead", writes=False)
def read(jobs: JobCollection, ids: Sequence[ObjectId]) -> Sequence[Job]:
    """Return those of the jobs that are claimed, without data, result and other large fields."""
    return _as_compared(jobs, jobs.decoded(lambda collection: collection.find(_claimed(ids), BUT_HEAVY, hint=BY_ID)))


@command("read a job whose claim is dead", writes=False)
def read_whole(jobs: JobCollection, job_id: ObjectId) -> Sequence[Job]:
    """Return the job if it is claimed."""
    return _as_compared(jobs, jobs.decoded(lambda collection: collection.find(_claimed([job_id]), hint=BY_ID)))


def _claimed(ids: Sequence[ObjectId]) -> dict[str, Any]:
    # The caller compares each claim with the observed one, and the write does. This keeps ended jobs from being read.
    return {**of_ids(ids), **CLAIMED}


def _as_compared(jobs: JobCollection, found: Sequence[Job]) -> Sequence[Job]:
    """Return the same jobs; those that are known to have a field twice are read as the server compares them."""
    # The driver reads the last of two fields, and the server compares the first. With what the driver reads, no rescue
    # of such a job would ever match, and an observer might not see its renewals.
    known = [job.id for job in found if job.id in jobs.broken] if jobs.broken else []
    if not known:
        return found
    seen = {job.id: job for job in jobs_as_compared(jobs.raw.find(_claimed(known), hint=BY_ID))}
    return [seen.get(job.id, job) for job in found]


def settle_in_parts(jobs: JobCollection, statements: Sequence[Statement]) -> Mapping[ClaimId, Fate]:
    """Settle what can be settled, after the statements together have failed: see `by_halves.py`.

    Return the fates that are known.
    """
    quick = replace(jobs, operation_timeout=TIME_OF_A_PART)
    # By their receipts, statements that were applied before are recognized, also one by one.
    apart = [one for statement in statements for one in statement.apart()]
    return {claim: fate for _, fates in sent_by_halves(apart, partial(settle, quick)) for claim, fate in fates.items()}
