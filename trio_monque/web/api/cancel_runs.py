"""Asks the runs of all selected jobs to end, one after the other: as many as there are slots, so there is no batch."""

from __future__ import annotations

from typing import Final

from ...client.monque import Monque
from ...error_types import BrokenDocumentError, JobStateError, MonqueConnectionError, PartialBulkError
from ...jobs.bulk_changes import BulkResult, Tally
from ...jobs.job import JobStatus
from ...jobs.job_query import JobFilter, JobSort
from ...jobs.job_selector import JobSelector, Selection
from ...store.driver.types import ObjectId
from .long_actions import OnProgress

RUNNING: Final = frozenset({JobStatus.PROCESSING})
AT_ONCE: Final = 100
"""Jobs of one look for those that run."""


async def cancel_runs(monque: Monque, selection: Selection, on_progress: OnProgress | None) -> BulkResult:
    """Do to each selected job that runs what `cancel_job` does.

    One whose run has ended by the time of its turn is left alone, unless it waits for its next attempt.

    Raises:
        PartialBulkError: The database stopped answering after a part of it.
        MonqueConnectionError: It did not answer, and nothing was done.
    """
    tally = Tally()
    for job_id in await _running(monque, selection):
        try:
            if await monque.cancel_job(job_id) is not None:
                tally.count += 1
        except JobStateError:
            continue  # It has ended.
        except BrokenDocumentError as error:
            tally.refuse(job_id, str(error))
        except MonqueConnectionError as error:
            unknown = int(error.unknown_outcome)
            if not tally.count and not unknown:
                raise
            raise PartialBulkError("cancel", tally.count, unknown, error) from error
        if on_progress is not None:
            on_progress(tally.result())
    return tally.result()


async def _running(monque: Monque, selection: Selection) -> dict[ObjectId, None]:
    """Return the ids. A heartbeat changes a job: in this order it comes once more then, and is never passed over."""
    found: dict[ObjectId, None] = {}
    if not JobSelector(**selection).among(RUNNING):
        return found
    chosen: Selection = {**selection, "status": JobStatus.PROCESSING}
    cursor: str | None = None
    while True:
        page = await monque.get_jobs_with_cursor(
            cursor=cursor, limit=AT_ONCE, filter=JobFilter(**chosen), sort=JobSort(by="updated_at")
        )
        found.update(dict.fromkeys(job.id for job in page.jobs))
        if not page.has_next_page:
            return found
        cursor = page.cursor
