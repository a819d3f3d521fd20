"""What a bulk action does to one batch of jobs, and the event that reports it. Blocking."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any, ClassVar

from .. import events
from ..error_types import MonqueConnectionError
from ..jobs.bulk_changes import CANCELLABLE, DELETABLE, RETRIABLE, Change, cancel_selected, retry_selected, spread_over
from ..jobs.job import Job, JobStatus
from ..jobs.job_selector import JobSelector
from ..jobs.nursery_scopes import PROGRAM
from ..store.driver.types import ObjectId
from ..store.jobs import bulk_writes, indexes, parents_of_children
from ..store.jobs.bulk_writes import Sending, Written
from .client_context import ClientContext
from .enqueue import looked_up


class Action(ABC):
    """What is done to the jobs of one batch, and the event that reports it.

    Attributes:
        name: For messages.
        wakes: Whether it makes jobs due.
        possible: The statuses in which the action is possible.
        statuses: Those of them that are selected.
        guard: The condition that each job must satisfy, also when it is written.
        index: The index along which all selected jobs are read; None if the server chooses one.
    """

    name: ClassVar[str]
    possible: ClassVar[Collection[JobStatus]]
    wakes: ClassVar[bool] = False

    def __init__(self, context: ClientContext, selector: JobSelector) -> None:
        self._context = context
        self._selector = selector
        self.statuses = selector.among(self.possible)
        self.index = indexes.UNIQUE_KEY if selector.has_key else None

    @property
    def guard(self) -> Mapping[str, Any]:
        return self._selector.guard(self.statuses)

    def begin(self) -> None:
        """Note by which moment jobs are due: the same one for all batches."""
        self._selector = self._selector.as_of(self._context.now)

    @abstractmethod
    def write(self, chosen: Sequence[Job], now: datetime) -> Written:
        """Do it; raise MonqueConnectionError if the second attempt has no answer either."""

    @abstractmethod
    def event(self, count: int, by_name: Mapping[str, int]) -> events.Event:
        """Return the event that reports it."""


class _Changing(Action):
    """Cancels or retries. It stores a receipt in each job, which shows after a lost answer what was changed."""

    def _made(self, send: Sending, changes: Sequence[Change]) -> Written:
        jobs, receipt = self._context.jobs, f"bulk:{secrets.token_hex(8)}"
        try:
            written = send(jobs, changes, receipt)
        except MonqueConnectionError as error:
            # The jobs that bear the receipt were changed by this batch: no other write stores it.
            return looked_up(error, lambda: bulk_writes.find_out(jobs, changes, receipt))
        if written.count and not written.done:
            written.done = _which(lambda: bulk_writes.signed(jobs, changes, receipt))
        return written


class CancelJobs(_Changing):
    """pending -> cancelled."""

    name = "cancel"
    possible = CANCELLABLE

    def write(self, chosen: Sequence[Job], now: datetime) -> Written:
        return self._made(bulk_writes.cancel, [cancel_selected(self._selector, tuple(chosen), now)])

    def event(self, count: int, by_name: Mapping[str, int]) -> events.Event:
        return events.JobsCancelled(count, by_name)


class RetryJobs(_Changing):
    """failed or cancelled -> pending, each at its own moment within a window."""

    name = "retry"
    possible = RETRIABLE
    wakes = True

    def __init__(self, context: ClientContext, selector: JobSelector, spread: float) -> None:
        super().__init__(context, selector)
        self._spread = spread
        self._random = Random()

    def write(self, chosen: Sequence[Job], now: datetime) -> Written:
        # Not all due at once: a thousand jobs of one name would hit the service that failed them at the same moment.
        moments = spread_over(now, self._spread, len(chosen), self._random)
        pairs = zip(chosen, moments, strict=True)
        refused = self._of_nurseries(chosen)
        written = self._made(
            bulk_writes.retry,
            [retry_selected(self._selector, job, now, moment) for job, moment in pairs if job.id not in refused],
        )
        written.refused = {**written.refused, **refused}
        return written

    def _of_nurseries(self, chosen: Sequence[Job]) -> Mapping[ObjectId, str]:
        """Detach children whose parents do not need them; return those that only a parent may run again, and why."""
        refused = {job.id: "it represented a program that is gone" for job in chosen if job.name == PROGRAM}
        children = [job for job in chosen if job.child is not None]
        if not children:
            return refused
        needed = parents_of_children.needed(self._context.jobs, [job.id for job in children])
        parents_of_children.detach(self._context.jobs, [job for job in children if job.id not in needed])
        for job in children:
            if job.id in needed and job.child is not None:
                refused[job.id] = f"it is a child of job {job.child.parent}: retry that job"
        return refused

    def event(self, count: int, by_name: Mapping[str, int]) -> events.Event:
        return events.JobsRetried(count, by_name)


class DeleteJobs(Action):
    """Deletes jobs of any status."""

    name = "delete"
    possible = DELETABLE

    def write(self, chosen: Sequence[Job], now: datetime) -> Written:
        jobs = self._context.jobs
        try:
            written = bulk_writes.delete(jobs, chosen, self.guard)
        except MonqueConnectionError as error:
            return looked_up(error, lambda: bulk_writes.find_out_deleted(jobs, chosen, self.guard))
        if written.count and not written.done:
            gone = _which(lambda: bulk_writes.gone(jobs, chosen))
            # If more are gone than we deleted, other callers deleted some: it is not known which.
            written.done = gone if len(gone) == written.count else set()
        return written

    def event(self, count: int, by_name: Mapping[str, int]) -> events.Event:
        return events.JobsDeleted(count, by_name)


def _which(look: Callable[[], set[ObjectId]]) -> set[ObjectId]:
    """Return what `look` finds, or nothing if it fails: only names depend on it, and the count is known."""
    try:
        return look()
    except MonqueConnectionError:
        return set()
