"""Sets aside jobs on which the server refuses every claim, so that all other jobs run.

The document of such a job has no room for a claim, or a validator of the collection refuses the claim. The job would be
the first candidate of every look, for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.client_session import ClientSession

from ...jobs.conditional_write import LIGHTEST, Transition, applied, lightened
from ...jobs.job import Job, JobStatus
from ...jobs.transitions import set_aside
from ...log import logger_of
from ..codec import filter_of, update_of
from ..driver.commands import BY_ID, bulk_write, by_majority, causal_session, command, of_ids
from ..driver.driver_errors import TOO_LARGE_CODES
from ..fields import FIELD
from ..job_collection import JobCollection

logger = logger_of("store")

LONGEST_REASON: Final = 500
"""Characters of the server's reason that are kept. Some servers quote the document in it."""


@dataclass(frozen=True, slots=True)
class RefusedClaim:
    """A pending job on which the server has refused a claim.

    Attributes:
        job: The job as it was read before the claim.
        code: The server's code.
        message: The server's message.
    """

    job: Job
    code: int | None
    message: str

    @property
    def reason(self) -> str:
        """The reason for `failReason`, events and logs."""
        return f"the server refuses every claim on this job: {self.message[:LONGEST_REASON]}"


@dataclass(frozen=True, slots=True)
class SetAside:
    """A job that no scheduler can claim.

    Attributes:
        job: The job as it is now: failed if the server accepted that, otherwise pending and skipped.
        reason: Why no scheduler can claim it.
    """

    job: Job
    reason: str


@command("set jobs aside")
def set_jobs_aside(
    jobs: JobCollection, refused: Sequence[RefusedClaim], now: datetime, *, others_were_claimed: bool
) -> Sequence[SetAside]:
    """Fail each of the jobs if the server accepts that, and otherwise skip it; return those that are new.

    A skipped job is tried again a minute later.
    """
    # A full document is itself at fault. Any other refusal may be a fault of the collection: a wrong validator refuses
    # every claim, and must not fail a whole queue. So such a job fails only if other jobs were claimed beside it.
    at_fault = [one for one in refused if others_were_claimed or one.code in TOO_LARGE_CODES]
    with causal_session(jobs.collection) as session:
        failed = _fail(jobs, at_fault, now, session)
    news = []
    for one in refused:
        if one.job.id in failed:
            logger.error("job %s failed for good: %s", one.job, one.reason)
            news.append(SetAside(failed[one.job.id], one.reason))
        elif jobs.pass_over(one.job, one.reason):
            logger.error("skipped job %s for a minute: %s", one.job, one.reason)
            news.append(SetAside(one.job, one.reason))
    return news


def _fail(
    jobs: JobCollection, refused: Sequence[RefusedClaim], now: datetime, session: ClientSession
) -> dict[ObjectId, Job]:
    """Write the jobs as failed; return those for which the server accepted that."""
    plain = {one.job.id: set_aside(one.job, now, one.reason) for one in refused}
    written = dict(plain)
    left: Sequence[ObjectId] = list(plain)
    for steps in range(LIGHTEST + 1):
        if not left:
            break
        # If the document has no room for the reason, shorten the text step by step.
        if steps:
            written.update({job_id: lightened(plain[job_id], steps) for job_id in left})
        left = _send(jobs, {job_id: written[job_id] for job_id in left}, session)
    if len(left) == len(plain):
        return {}
    # Some writes may not have matched: another instance has claimed the job, or set it aside. The date of this write
    # shows which jobs it has failed. If two instances write in the same millisecond, both report the job.
    failed = {**of_ids(plain), FIELD["status"]: JobStatus.FAILED.value, FIELD["updated_at"]: now}
    reader = by_majority(jobs.collection)
    found = {document["_id"] for document in reader.find(failed, {"_id": True}, hint=BY_ID, session=session)}
    return {one.job.id: applied(one.job, written[one.job.id]) for one in refused if one.job.id in found}


def _send(jobs: JobCollection, written: Mapping[ObjectId, Transition], session: ClientSession) -> list[ObjectId]:
    """Write each transition; return the jobs for which the server refused it."""
    each = [UpdateOne(filter_of(one.guard), update_of(one), hint=BY_ID) for one in written.values()]
    refused = bulk_write(jobs.collection, each, "set jobs aside", session).refused_among(list(written))
    return [job_id for job_id, _ in refused]
