"""What the transaction of a job writes to its document, and how it finds out what became of that.

`driver/transaction_attempts.py` says in which order. A receipt is written with the end: if the answer to the commit is
lost, it shows whose end the document has.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pymongo import WriteConcern

from ...jobs.claim_stamps_and_fences import claim_id, fence
from ...jobs.conditional_write import Transition
from ...jobs.job import Job
from ..codec import LENIENT, filter_of, update_of
from ..driver.commands import BY_ID, by_majority, causal_session, command
from ..driver.transaction_terms import FoundCommit
from ..driver.types import ClientSession
from ..fields import FIELD
from ..job_collection import JobCollection
from .leases import signs_of_life
from .settling import Fate, fate_of
from .settling_statements import Statement


def hold(jobs: JobCollection, job: Job, beat: datetime, session: ClientSession) -> None:
    """Lock the job in the transaction; see `ClaimSettlement.hold`."""
    # If the renewal matches nothing (a cancellation was requested, the claim is lost), the write of the end finds that
    # out: one read of the cause for both. Not in `find_out`, where a request must not pass for a claim that is lost.
    condition = filter_of({**fence(job), "claim.cancel_requested_at": None})
    jobs.collection.update_one(condition, _renewal(beat), hint=BY_ID, session=session)


def write_end(jobs: JobCollection, transition: Transition, receipt: str, session: ClientSession) -> bool:
    """Write the end in the transaction; return whether it matched. See `ClaimSettlement.write`."""
    guard, update = filter_of(transition.guard), update_of(transition, receipt)
    return bool(jobs.collection.update_one(guard, update, hint=BY_ID, session=session).matched_count)


@command("read the outcome of a claim", writes=False)
def read_fate(jobs: JobCollection, job: Job, transition: Transition, receipt: str) -> Fate:
    """Return why the end matched nothing. After the transaction was aborted."""
    document = by_majority(jobs.collection, LENIENT).find_one({"_id": job.id}, hint=BY_ID)
    statement = Statement(transition, receipt, [claim_id(job)])
    return Fate.LOST if document is None else fate_of(statement, document)


@command("check the outcome of a transaction")
def find_out(jobs: JobCollection, job: Job, receipt: str, beat: datetime) -> FoundCommit:
    """Find out what became of a commit that was not acknowledged; see `ClaimSettlement.find_out`."""
    # By a majority, whatever the writes of this collection ask for: an election must not undo this one.
    writer = jobs.collection.with_options(write_concern=WriteConcern("majority"))
    with causal_session(jobs.collection) as session:
        if writer.update_one(filter_of(fence(job)), _renewal(beat), hint=BY_ID, session=session).matched_count:
            return FoundCommit.NOT_COMMITTED
        # In the session: a primary that was replaced meanwhile cannot answer this one.
        reader = by_majority(jobs.collection, LENIENT)
        document = reader.find_one({"_id": job.id}, [FIELD["internals.receipt"]], hint=BY_ID, session=session)
    is_ours = document is not None and document.get(FIELD["internals.receipt"]) == receipt
    return FoundCommit.COMMITTED if is_ours else FoundCommit.UNKNOWN


def _renewal(beat: datetime) -> dict[str, Any]:
    # `$max`: a renewal with a later date may have come first. `updatedAt` may go back by a moment.
    return {"$max": signs_of_life(beat), "$set": {FIELD["updated_at"]: beat}}
