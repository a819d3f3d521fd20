"""What a handler gets: the job, and the run that it is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..engine.run import CancelReason, Run
from ..jobs.job import Job
from ..store.types import ObjectId

if TYPE_CHECKING:
    from .scheduler import Scheduler

T = TypeVar("T")


class RunCancelled(BaseException):  # It is no error: it unwinds a thread, as Cancelled unwinds a task.
    """Raised by `check_cancelled` to end a plain handler. No Exception, so that no handler swallows it by accident."""


class RunningJob(Generic[T]):
    """A claimed job in its run.

    Attributes:
        job: The job, exactly as it was claimed.
        scheduler: The scheduler that runs it; enqueue further jobs through it.
        resources: What was given to `open_scheduler`.
    """

    def __init__(self, run: Run[Job], scheduler: Scheduler, resources: Any) -> None:
        self._run = run
        self.job = run.claim
        self.scheduler = scheduler
        self.resources = resources

    @property
    def id(self) -> ObjectId:
        return self.job.id

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def data(self) -> T:
        """The payload."""
        return cast("T", self.job.data)

    @property
    def attempt(self) -> int:
        """Which claim of this job it is, from 1: strictly grows, also over crashes."""
        return self.job.attempts

    @property
    def fail_count(self) -> int:
        """Failures in a row before this run."""
        return self.job.fail_count

    @property
    def fail_reason(self) -> str | None:
        """Why the last try failed."""
        return self.job.fail_reason

    @property
    def next_run_at(self) -> datetime:
        """When it was due."""
        return self.job.next_run_at

    @property
    def unique_key(self) -> str | None:
        return self.job.unique_key

    @property
    def errors(self) -> Sequence[Mapping[str, Any]]:
        """The last errors, oldest first."""
        return self.job.errors

    @property
    def deadline(self) -> float:
        """When the run will be cancelled for taking too long, on trio's clock; infinity for never."""
        return self._run.deadline

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the run is cancelled; None while it is not."""
        return self._run.reason

    def check_cancelled(self) -> None:
        """For plain handlers: ends the handler here if its run is cancelled. Call it now and then."""
        if self._run.reason is not None:
            raise RunCancelled

    def __repr__(self) -> str:
        return f"<RunningJob {self.job}>"
