"""Many jobs at once, batch by batch. Blocking: one step a batch; who calls it decides where, and what comes between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Unpack

from .. import events
from ..checks import check_seconds, is_async
from ..errors import InvalidOptionError, MonqueConnectionError, PartialBulkError
from ..jobs.bulk_changes import BulkResult, Tally
from ..jobs.job import Job
from ..jobs.job_selector import JobSelector, Selection
from ..store import bulk_changes
from ..store.types import ObjectId
from .bulk_actions import Action, Cancel, Delete, Retry
from .context import ClientContext
from .wake_board import Announcer

# One batch is done within one operation timeout, and holds up the others' writes no longer than that takes.
MOST_IN_A_BATCH: Final = 1000

# Where next to nothing is selected of millions, that is found out window by window: half a million documents are
# read in a second or two.
MOST_IN_A_WINDOW: Final = 500_000

DEFAULT_SPREAD: Final = 30.0


class Bulk:
    """One call. It is done one step after the other, maybe each in another thread."""

    def __init__(self, context: ClientContext, action: Action) -> None:
        self._context = context
        self._action = action
        self._tally = Tally()
        self._after: ObjectId | None = None
        self._until: ObjectId | None = None
        self._window_end: ObjectId | None = None
        # Nothing that could be changed is asked for: nobody is asked.
        self._is_over = not action.statuses

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def result(self) -> BulkResult:
        """So far."""
        return self._tally.result()

    def step(self) -> None:
        """One batch: a constant number of round trips.

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

    def _batch(self) -> None:
        context, action = self._context, self._action
        if self._until is None:
            context.ensure_indexes()
            self._until = bulk_changes.last_id(context.jobs)
            if self._until is None:
                self._is_over = True
                return
        if self._window_end is None:
            self._window_end = bulk_changes.window_end(context.jobs, self._after, self._until, MOST_IN_A_WINDOW)
        chosen = bulk_changes.choose(context.jobs, action.guard, self._after, self._window_end, MOST_IN_A_BATCH)
        for broken in chosen.broken:
            self._tally.refuse(broken.document_id, str(broken))
        if chosen.jobs:
            self._write(chosen.jobs)
        self._after = chosen.last
        if chosen.last is None:
            self._is_over = self._window_end == self._until
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

    def told(self) -> Sequence[events.Event]:
        """What has happened, however it ended."""
        if not self._tally.count:
            return ()
        return [self._action.event(self._tally.count, dict(self._tally.by_name))]

    @contextmanager
    def waking(self, announcer: Announcer) -> Iterator[None]:
        """Around a step: however it ended, jobs may be due by it, and the schedulers of the run look."""
        try:
            yield
        finally:
            if self._action.wakes:
                announcer.announce_unknown()


# --- What a call means; nothing is sent ---


def cancelling(context: ClientContext, selection: Selection) -> Bulk:
    return Bulk(context, Cancel(context, JobSelector(**selection)))


def retrying(context: ClientContext, selection: Selection, spread: float) -> Bulk:
    check_seconds("spread", spread, zero=True)
    return Bulk(context, Retry(context, JobSelector(**selection), spread))


def deleting(context: ClientContext, selection: Selection, *, everything: bool) -> Bulk:
    selector = JobSelector(**selection)
    if not isinstance(everything, bool):
        raise InvalidOptionError("everything", everything, "must be True or False")
    if selector.is_everything and not everything:
        raise InvalidOptionError(
            "everything", everything, "without a selector, every job would be deleted: say everything=True to do that"
        )
    if everything and not selector.is_everything:
        raise InvalidOptionError("everything", everything, "contradicts the selector beside it: leave one of them out")
    return Bulk(context, Delete(context, selector))


# --- The blocking calls ---


class SyncBulk:
    """Manages many jobs; every call blocks until all of it is done."""

    def __init__(self, context: ClientContext, tell: Callable[[events.Event], None], announcer: Announcer) -> None:
        self._context = context
        self._tell = tell
        self._announcer = announcer

    def cancel_jobs(
        self, *, on_progress: Callable[[BulkResult], object] | None = None, **selection: Unpack[Selection]
    ) -> BulkResult:
        """See `Monque.cancel_jobs`; `on_progress` is a plain function."""
        return self._run_bulk(cancelling(self._context, selection), on_progress)

    def retry_jobs(
        self,
        *,
        spread: float = DEFAULT_SPREAD,
        on_progress: Callable[[BulkResult], object] | None = None,
        **selection: Unpack[Selection],
    ) -> BulkResult:
        """See `Monque.retry_jobs`; `on_progress` is a plain function."""
        return self._run_bulk(retrying(self._context, selection, spread), on_progress)

    def delete_jobs(
        self,
        *,
        everything: bool = False,
        on_progress: Callable[[BulkResult], object] | None = None,
        **selection: Unpack[Selection],
    ) -> BulkResult:
        """See `Monque.delete_jobs`; `on_progress` is a plain function."""
        return self._run_bulk(deleting(self._context, selection, everything=everything), on_progress)

    def _run_bulk(self, one: Bulk, on_progress: Callable[[BulkResult], object] | None) -> BulkResult:
        check_on_progress(on_progress)
        if on_progress is not None and is_async(on_progress):
            raise InvalidOptionError("on_progress", on_progress, "must be a plain function: nobody awaits it here")
        try:
            while not one.is_over:
                with one.waking(self._announcer):
                    one.step()
                if on_progress is not None:
                    on_progress(one.result)
        finally:
            for event in one.told():
                self._tell(event)
        return one.result


def check_on_progress(given: object) -> None:
    if given is not None and not callable(given):
        raise InvalidOptionError("on_progress", given, "must be a function of a BulkResult")
