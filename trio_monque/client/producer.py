"""What enqueues: blocking calls, for threads, scripts and callbacks of transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, TypeVar, Unpack, overload

from ..checks import check_known
from ..jobs import cron as schedules
from ..jobs.cron import SchedulePreview
from ..jobs.job import Job
from ..jobs.new_job import JobOptions, NewJob, NewSchedule, check_order, name_of
from ..jobs.payload import Taking
from ..store.codec import document_of
from ..store.types import ClientSession
from . import enqueue_many
from .context import ClientContext
from .declaring import check_on_conflict, declare
from .intake import Intake
from .wake_board import Announcer

T = TypeVar("T")


class ScheduleOptions(TypedDict, total=False):
    """What can be said about a schedule; see `Monque.schedule`."""

    unique_key: str | None
    timezone: str
    on_exhausted: str
    version: int | None


class Producer:
    """Enqueues jobs; every call blocks until the database has answered."""

    def __init__(self, context: ClientContext, announcer: Announcer) -> None:
        self._context = context
        self._intake = Intake(context)
        self._announcer = announcer

    @overload
    def enqueue(
        self, worker: Taking[T], data: T, *, session: ClientSession | None = ..., **options: Unpack[JobOptions]
    ) -> Job: ...
    @overload
    def enqueue(
        self,
        worker: Taking[None],
        data: None = ...,
        *,
        session: ClientSession | None = ...,
        **options: Unpack[JobOptions],
    ) -> Job: ...
    @overload
    def enqueue(
        self, worker: str, data: Any = ..., *, session: ClientSession | None = ..., **options: Unpack[JobOptions]
    ) -> Job: ...
    def enqueue(
        self,
        worker: str | Taking[Any],
        data: Any = None,
        *,
        session: ClientSession | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """See `Monque.enqueue`. This one can be called from a callback of `with_transaction`."""
        check_known(options, JobOptions.__annotations__, "enqueue")
        self._intake.check_session(session)
        draft = self._intake.draft(NewJob(name=name_of(worker), data=data, **options), worker)
        with self._announcer.also_if_lost():
            job = self._intake.send(draft, session)
        self._announcer.announce([job], session, new=True)
        return job

    def enqueue_many(self, new_jobs: Sequence[NewJob]) -> list[Job]:
        """See `Monque.enqueue_many`."""
        drafts = enqueue_many.checked(self._intake, new_jobs)
        with self._announcer.also_if_lost():
            jobs = enqueue_many.send(self._context, self._intake, drafts) if drafts else []
        self._announcer.announce(jobs, new=True)
        return jobs

    @overload
    def schedule(
        self, cron: str, worker: Taking[T], data: T, *, on_conflict: str = ..., **options: Unpack[ScheduleOptions]
    ) -> Job: ...
    @overload
    def schedule(
        self,
        cron: str,
        worker: Taking[None],
        data: None = ...,
        *,
        on_conflict: str = ...,
        **options: Unpack[ScheduleOptions],
    ) -> Job: ...
    @overload
    def schedule(
        self, cron: str, worker: str, data: Any = ..., *, on_conflict: str = ..., **options: Unpack[ScheduleOptions]
    ) -> Job: ...
    def schedule(
        self,
        cron: str,
        worker: str | Taking[Any],
        data: Any = None,
        *,
        on_conflict: str = "keep",
        **options: Unpack[ScheduleOptions],
    ) -> Job:
        """See `Monque.schedule`."""
        check_known(options, ScheduleOptions.__annotations__, "schedule")
        check_on_conflict(on_conflict)
        check_order(cron, worker)
        draft = self._intake.draft(NewSchedule(name=name_of(worker), cron=cron, data=data, **options), worker)
        with self._announcer.also_if_lost():
            job = declare(self._context, self._intake, draft, on_conflict)
        self._announcer.announce([job])
        return job

    @overload
    def document(self, worker: Taking[T], data: T, **options: Unpack[JobOptions]) -> dict[str, Any]: ...
    @overload
    def document(self, worker: Taking[None], data: None = ..., **options: Unpack[JobOptions]) -> dict[str, Any]: ...
    @overload
    def document(self, worker: str, data: Any = ..., **options: Unpack[JobOptions]) -> dict[str, Any]: ...
    def document(self, worker: str | Taking[Any], data: Any = None, **options: Unpack[JobOptions]) -> dict[str, Any]:
        """See `Monque.document`."""
        check_known(options, JobOptions.__annotations__, "document")
        draft = self._intake.draft(NewJob(name=name_of(worker), data=data, **options), worker)
        self._context.ensure_indexes()
        return document_of(draft.at(self._context.now()))

    def preview(self, cron: str, timezone: str = "UTC", count: int = 5) -> SchedulePreview:
        """See `Monque.preview`."""
        schedules.preview(cron, timezone, count, self._context.clock.now())  # What is wrong is told without a database.
        return schedules.preview(cron, timezone, count, self._context.now())
