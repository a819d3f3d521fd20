"""Starts jobs once more that were replaced while they ran, if the program that ended them ignored the replacement.

Every end that this library writes starts the job again (`jobs/run_again.py`). Monque for Node does not know these
fields: it ends the job, and what the last call wanted would be lost. The fields stay in the ended document, so a look
finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pymongo import errors as driver

from ...jobs import transitions
from ...jobs.conditional_write import OneOf, Transition
from ...jobs.job import Job, JobStatus
from ...log import logger_of
from ..codec import filter_of, update_of
from ..driver.commands import BY_ID, command
from ..fields import FIELD
from ..job_collection import JobCollection
from . import indexes

logger = logger_of("store")

MOST_AT_ONCE: Final = 100
"""Jobs of one look: they are read whole."""

# A running job has these fields, too, and is not touched. A cancellation drops them, so it need not be named here.
_ENDED: Final = OneOf((JobStatus.COMPLETED, JobStatus.FAILED))


@command("restart jobs that were replaced while they ran")
def start_again(jobs: JobCollection, now: datetime) -> None:
    """Start such jobs once more, a hundred at most. If another job has the key by now, drop what the call left.

    Many instances may do this at once: the guard names the call, so only one of them starts a job.
    """
    for job in _look(jobs):
        try:
            started = _write(jobs, transitions.run_after_end(job, now))
        except driver.DuplicateKeyError:
            # The key was free since the end of the job, and a newer call has enqueued another one with it.
            _write(jobs, transitions.drop_again(job, now))
            logger.info(
                "job %s was replaced while another library ran it; the replacement does not run, "
                "because a newer job has its key",
                job,
            )
        except driver.WriteError as error:
            if jobs.report_refused(job.id):
                logger.error("the server refused to let job %s run again: %s", job, error)
        else:
            if started:
                logger.info("job %s was replaced while another library ran it; it runs again", job)


def _look(jobs: JobCollection) -> Sequence[Job]:
    wanted = {
        # The write repeats both conditions. Without them here, each look would return jobs that it does not match.
        **filter_of({"status": _ENDED, "schedule.cron": None}),
        # As a type, which the server knows to be true of all that is in the index.
        FIELD["again.call"]: {"$type": "objectId"},
    }
    index = indexes.name_of(indexes.RUN_AGAIN)
    try:
        return jobs.decoded(lambda collection: collection.find(wanted, limit=MOST_AT_ONCE, hint=index))
    except driver.OperationFailure as error:
        if error.code not in indexes.NO_SUCH_INDEX:
            raise
        return []


def _write(jobs: JobCollection, transition: Transition) -> bool:
    guard, update = filter_of(transition.guard), update_of(transition)
    return bool(jobs.collection.update_one(guard, update, hint=BY_ID).modified_count)
