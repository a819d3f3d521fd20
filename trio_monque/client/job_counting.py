"""How many jobs a selection has, for a question before a bulk action. Blocking."""

from __future__ import annotations

from typing import Unpack

from ..checks import check_count
from ..jobs.job import JobStatus
from ..jobs.job_selector import JobSelector, Selection
from ..store.reads.selection_counts import MOST_COUNTED, SelectionCount, count_selected
from .client_context import ClientContext
from .operation import Operation, Read


def count_jobs(
    context: ClientContext, *, up_to: int = MOST_COUNTED, **selection: Unpack[Selection]
) -> Operation[SelectionCount]:
    """Count the selected jobs, up to a number.

    For a text in `fail_reason`, and for an age or a change beside names, the server reads documents: 100,000 at most.
    The count is then a lower bound, and `is_capped`.

    Args:
        up_to: That number; a lower one costs less.
        selection: See `cancel_jobs`. Without one, all documents of the collection are counted.

    Raises:
        InvalidOptionError: The selection or the number is invalid; the message names what is wrong.
        AggregationTimeoutError: The server needed longer than `operation_timeout`.
        MonqueConnectionError: The database cannot be reached or used.
    """
    check_count("up_to", up_to, at_least=1)
    selector = JobSelector(**selection)

    def count() -> SelectionCount:
        asked = selector.as_of(context.now)
        return count_selected(context.jobs, asked, asked.among(tuple(JobStatus)), up_to)

    return Read(count)
