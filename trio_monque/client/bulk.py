"""Cancel, retry or delete many jobs, batch by batch. Blocking: one step a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Unpack

from .. import events
from ..checks import check_seconds
from ..error_types import InvalidOptionError, MonqueConnectionError, PartialBulkError
from ..jobs.bulk_changes import BulkResult, Tally
from ..jobs.job import Job
from ..jobs.job_selector import JobSelector, Selection
from ..store.driver.types import ObjectId
from ..store.jobs import bulk_writes
from .bulk_actions import Action, CancelJobs, DeleteJobs, RetryJobs
from .client_context import ClientContext
from .operation import Operation

# A batch must finish within one operation timeout, and it delays the writes of other clients while it runs.
MOST_IN_A_BATCH: Final = 1000

# If few of millions of jobs match, the server reads window after window. It reads half a million documents in one or
# two seconds, so each read stays within the operation timeout.
MOST_IN_A_WINDOW: Final = 500_000

DEFAULT_SPREAD: Final = 30.0

OnProgress = Callable[[BulkResult], object]


def cancel_jobs(
    context: ClientContext, *, on_progress: OnProgress | None = None, **selection: Unpack[Selection]
) -> Operation[BulkResult]:
    """Cancel the selected jobs that are pending; running jobs are not asked to end.

    The call works in batches of at most 1,000, in the order of their ids. Each write repeats the selection, so a job
    that has changed meanwhile, and is not selected any more, is left alone. Jobs that are enqueued after the call
    began may be left out. One `JobsCancelled` event reports all that it cancelled, if there were any.

    Cancelled, it ends after the current batch. What it did by then stays done, and the event reports it.

    Args:
        name: Only jobs of this name, or of one of these.
        status: Only jobs of this status, or of one of these. If none of them is `pending`, there is
            nothing to do, and the database is not asked.
        older_than: Only jobs with `created_at` before this moment, timezone-aware.
        newer_than: Only jobs with `created_at` after this moment.
        updated_from: Only jobs with `updated_at` at this moment or later.
        updated_to: Only jobs with `updated_at` at this moment or earlier.
        due: True for pending jobs that are due when the call begins, False for those that are due later.
        fail_reason: Only jobs with this text somewhere in `fail_reason`, to the letter. No index serves
            that: the server reads every job that the rest of the selection leaves.
        fail_reason_prefix: Only jobs whose `fail_reason` begins with this text; read in the same way.
        unique_key: Only pending and running jobs of this unique key; needs a name.
        unique_key_prefix: Only pending and running jobs whose unique key begins with this text; needs a name.
        on_progress: Called after each batch with what was done so far. It may be async with `Monque`, not with
            `sync`. What it raises ends the call, which raises it.

    Raises:
        InvalidOptionError: The selection is invalid, or selects nothing; the message names what is wrong.
        PartialBulkError: The database stopped answering after a part of it; the error has how many are done.
        MonqueConnectionError: The database cannot be reached or used, and nothing was done.
    """
    return Bulk(context, CancelJobs(context, JobSelector(**selection)), on_progress)


def retry_jobs(
    context: ClientContext,
    *,
    spread: float = DEFAULT_SPREAD,
    on_progress: OnProgress | None = None,
    **selection: Unpack[Selection],
) -> Operation[BulkResult]:
    """Make the selected jobs that are failed or cancelled pending again, with all their attempts.

    It does to each what `retry_job` does, but they are due within a window and not all at once. A job is refused, and
    listed in the result, if another pending or processing job has its unique key; so is the second of two selected
    jobs with one key. One `JobsRetried` event reports all. For the rest, see `cancel_jobs`.

    Args:
        spread: Seconds over which each batch falls due, evenly. 0 for all at once.
        on_progress: See `cancel_jobs`.
        selection: See `cancel_jobs`.

    Raises:
        InvalidOptionError, PartialBulkError, MonqueConnectionError: See `cancel_jobs`.
    """
    check_seconds("spread", spread, zero=True)
    selector = JobSelector(**selection)
    if selector.has_key:
        key = selector.unique_key or selector.unique_key_prefix
        raise InvalidOptionError(
            "unique_key", key, "selects pending and running jobs, which are not retried: call retry_job with an id"
        )
    if selector.due is not None:
        raise InvalidOptionError("due", selector.due, "selects pending jobs, which are not retried: leave it out")
    return Bulk(context, RetryJobs(context, selector, spread), on_progress)


def delete_jobs(
    context: ClientContext,
    *,
    everything: bool = False,
    on_progress: OnProgress | None = None,
    **selection: Unpack[Selection],
) -> Operation[BulkResult]:
    """Delete the selected jobs, whatever their status. A running one loses its claim.

    Documents that are not jobs are left, and listed in the result. One `JobsDeleted` event reports all. For the rest,
    see `cancel_jobs`.

    Args:
        everything: Every job; required if there is no selection.
        on_progress: See `cancel_jobs`.
        selection: See `cancel_jobs`.

    Raises:
        InvalidOptionError: There is no selection, and not `everything` either; or see `cancel_jobs`.
        PartialBulkError, MonqueConnectionError: See `cancel_jobs`.
    """
    selector = JobSelector(**selection)
    if not isinstance(everything, bool):
        raise InvalidOptionError("everything", everything, "must be True or False")
    if selector.is_everything and not everything:
        raise InvalidOptionError(
            "everything", everything, "without a selector, every job would be deleted: pass everything=True to do that"
        )
    if everything and not selector.is_everything:
        raise InvalidOptionError("everything", everything, "cannot be combined with a selector: leave one of them out")
    return Bulk(context, DeleteJobs(context, selector), on_progress)


class Bulk(Operation[BulkResult]):
    """One call of a bulk action: each step is a batch."""

    def __init__(self, context: ClientContext, action: Action, on_progress: OnProgress | None) -> None:
        super().__init__()
        if on_progress is not None and not callable(on_progress):
            raise InvalidOptionError("on_progress", on_progress, "must be a function of a BulkResult")
        self.on_progress = on_progress
        self._context = context
        self._action = action
        self._tally = Tally()
        self._after: ObjectId | None = None
        self._until: ObjectId | None = None
        self._window_end: ObjectId | None = None
        self.result = self._tally.result()
        # None of the selected statuses allows the action: nothing is sent.
        self.is_over = not action.statuses

    def step(self) -> None:
        """Do one batch: a constant number of round trips.

        Raises:
            PartialBulkError: The database did not answer, and something was done before, or may have been.
            MonqueConnectionError: It did not answer, and nothing was done.
        """
        try:
            self._batch()
        except MonqueConnectionError as error:
            tally = self._tally
            if not tally.count and not tally.unknown:
                raise
            raise PartialBulkError(self._action.name, tally.count, tally.unknown, error) from error
        finally:
            # Also after an error: what was done until then is reported.
            self.result = self._tally.result()
            self.caused.may_be_due = self._action.wakes

    def events(self) -> Sequence[events.Event]:
        if not self._tally.count:
            return ()
        return [self._action.event(self._tally.count, dict(self._tally.by_name))]

    def _batch(self) -> None:
        context, action = self._context, self._action
        if self._until is None:
            context.ensure_indexes()
            action.begin()
            # Jobs that are enqueued later have larger ids. Without an end, the call might never catch up with them.
            self._until = bulk_writes.last_id(context.jobs)
            if self._until is None:
                self.is_over = True
                return
        if self._window_end is None and action.index is not None:
            self._window_end = self._until
        if self._window_end is None:
            self._window_end = bulk_writes.window_end(context.jobs, self._after, self._until, MOST_IN_A_WINDOW)
        chosen = bulk_writes.choose(
            context.jobs, action.guard, self._after, self._window_end, MOST_IN_A_BATCH, action.index
        )
        for broken in chosen.broken:
            self._tally.refuse(broken.document_id, str(broken))
        if chosen.jobs:
            self._write(chosen.jobs)
        self._after = chosen.last
        if chosen.last is None:
            self.is_over = self._window_end == self._until
            self._after, self._window_end = self._window_end, None

    def _write(self, chosen: Sequence[Job]) -> None:
        now = self._context.now()
        try:
            written = self._action.write(chosen, now)
        except MonqueConnectionError as error:
            self._tally.unknown += len(chosen) if error.unknown_outcome else 0
            raise
        for job_id, reason in written.refused.items():
            self._tally.refuse(job_id, reason)
        self._tally.unknown += written.unknown
        self._tally.add(written.count, Counter(job.name for job in chosen if job.id in written.done))
