"""Ends pending jobs that were not started by their `start_by`. They are `cancelled`, with that as the reason.

A claim of such a job and its end race. Both writes ask for a pending job without an owner, so one of them matches, and
the other one does not. The claim also asks that the moment is in the future, in the same write: a claim that was
delayed on its way to the database is compared with the time of its own instance, as its due date is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from bson import ObjectId
from pymongo import ASCENDING, UpdateOne
from pymongo import errors as driver

from ...jobs import transitions
from ...jobs.conditional_write import applied
from ...jobs.job import Job, JobStatus
from ...log import logger_of
from ..broken.doubled_fields import report_doubled
from ..codec import filter_of, update_of
from ..driver.commands import BY_ID, bulk_write, by_majority, causal_session, command, of_ids
from ..fields import FIELD
from ..job_collection import JobCollection
from . import indexes

logger = logger_of("store")

MOST_AT_ONCE: Final = 100
"""Jobs that one look returns: they are read whole."""

_ANY_MOMENT: Final = datetime.min.replace(tzinfo=UTC)


@command("look for jobs that were not started in time", writes=False)
def look(jobs: JobCollection, but: Sequence[ObjectId] = ()) -> Sequence[Job]:
    """Return the pending jobs of any name that must start by a moment, except `but`: those with the earliest moments.

    Only by their index, which has no other jobs. Without it there are none: a collection is not scanned for this.
    """
    wanted = {
        **filter_of({"status": JobStatus.PENDING}),
        # As a comparison, which the server knows to be true of all that is in the index.
        FIELD["limits.start_by"]: {"$gte": _ANY_MOMENT},
        **({"_id": {"$nin": list(but)}} if but else {}),
    }
    index, order = indexes.name_of(indexes.START_BY), [(FIELD["limits.start_by"], ASCENDING)]
    try:
        return jobs.decoded(lambda collection: collection.find(wanted, sort=order, limit=MOST_AT_ONCE, hint=index))
    except driver.OperationFailure as error:
        if error.code not in indexes.NO_SUCH_INDEX:
            raise
        return []


@command("cancel jobs that were not started in time")
def end(jobs: JobCollection, late: Sequence[Job], now: datetime, receipt: str) -> Sequence[Job]:
    """Cancel those of the jobs that are still pending as they were read; return them as they are now.

    Args:
        jobs: The jobs collection.
        late: Pending jobs whose `start_by` has passed.
        now: By the server's time.
        receipt: A new text for this call. It shows which of the jobs this very write has ended.
    """
    written = {job.id: transitions.end_unstarted(job, now) for job in late}
    each = [UpdateOne(filter_of(one.guard), update_of(one, receipt), hint=BY_ID) for one in written.values()]
    with causal_session(jobs.collection) as session:
        result = bulk_write(jobs.collection, each, "cancel jobs that were not started in time", session)
        if result.modified == len(late):
            found = set(written)
        else:
            # As a majority has it: the end is reported, and a primary that is cut off may show one that is undone.
            ours = {**of_ids(written), FIELD["internals.receipt"]: receipt}
            reader = by_majority(jobs.collection)
            found = {document["_id"] for document in reader.find(ours, {"_id": True}, hint=BY_ID, session=session)}
    if result.modified < len(late):
        # A document with a field twice matches no write, and would come back in every look. So would one whose end a
        # validator refuses.
        report_doubled(jobs, [job_id for job_id in written if job_id not in found])
        for job, refusal in result.refused_among(late):
            if jobs.pass_over(job, refusal.message):
                logger.error(
                    "the server refused to cancel job %s, which was not started in time: %s", job, refusal.message
                )
    return [applied(job, written[job.id]) for job in late if job.id in found]
