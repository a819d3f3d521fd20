"""The producer's part of Monque: through the door, on any anyio backend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeVar, Unpack, overload

from ..call_context import async_calls
from ..checks import check_known
from ..jobs.cron import SchedulePreview
from ..jobs.job import Job
from ..jobs.new_job import JobOptions, NewJob, name_of
from ..jobs.payload import Taking
from ..store.database_threads import DatabaseThreads
from ..store.types import ClientSession
from . import enqueue_many
from .context import ClientContext
from .declaring import check_on_conflict
from .group_enqueue import GroupEnqueue
from .intake import Intake
from .producer import Producer, ScheduleOptions
from .wake_board import Announcer

T = TypeVar("T")

IN_A_THREAD: Final = (
    "Call sync.{name}(...) of the same client, for example monque.sync.{name}(...) or job.scheduler.sync.{name}(...). "
    "In a plain handler, job.from_thread(job.scheduler.{name}, ...) does as well; in a program, call it in an async "
    "function"
)
"""What to do instead of an async call where no event loop runs."""


@async_calls(IN_A_THREAD)
class Enqueuing:
    """Enqueues and schedules. A base of Monque, which makes the attributes.

    What is wrong with a job is found before anything is sent. An answer that was lost is no error yet:
    the job is looked up by its id, and sent again where it is missing.
    """

    _context: ClientContext
    _producer: Producer
    _intake: Intake
    _group: GroupEnqueue
    _door: DatabaseThreads
    _announcer: Announcer

    @overload
    async def enqueue(
        self, worker: Taking[T], data: T, *, session: ClientSession | None = ..., **options: Unpack[JobOptions]
    ) -> Job: ...
    @overload
    async def enqueue(
        self,
        worker: Taking[None],
        data: None = ...,
        *,
        session: ClientSession | None = ...,
        **options: Unpack[JobOptions],
    ) -> Job: ...
    @overload
    async def enqueue(
        self, worker: str, data: Any = ..., *, session: ClientSession | None = ..., **options: Unpack[JobOptions]
    ) -> Job: ...
    async def enqueue(
        self,
        worker: str | Taking[Any],
        data: Any = None,
        *,
        session: ClientSession | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Stores a job, acknowledged by a majority; from then on it runs until it has ended.

        Calls that are made at the same time, with neither a unique key nor a session, share one
        statement. Each is told its own outcome.

        Args:
            worker: The name of a worker, or the worker, whose `payload` the data is checked against.
            data: What the worker's `payload` declares. Without one: any BSON value, or an instance of a class
                with fields, such as a dataclass, which is stored as a document of them.
            session: A pymongo session of the same client. In a transaction the job is part of it: rolled
                back with it, seen by workers when it commits. Nothing is tried again inside; an error
                after which the whole transaction may be tried again is raised as the driver's, and a
                lost race for a unique key is one.
            run_at: When it is due, timezone-aware; by default now. A moment that has passed is due at once.
            delay: Seconds from now, instead of `run_at`.
            unique_key: At most one pending or processing job of this name has this key: where there is
                one already, that one is returned as it is.
            max_attempts: After how many failures this job is `failed`, instead of its worker's.
            max_rescues: How many deaths in a row it may cause, instead of the scheduler's.
            timeout: Seconds that one run may take, instead of its worker's.

        Raises:
            InvalidJobIdentifierError, InvalidPayloadError, PayloadTooLargeError, InvalidOptionError:
                Something about the job cannot be; nothing was sent.
            BrokenDocumentError: A document that is not a job has the unique key; nothing was stored.
            MonqueConnectionError: The database did not take it; with `unknown_outcome`, it may have.
        """
        check_known(options, JobOptions.__annotations__, "enqueue")
        self._intake.check_session(session)
        draft = self._intake.draft(NewJob(name=name_of(worker), data=data, **options), worker)
        with self._announcer.also_if_lost():
            if session is None and draft.new.unique_key is None:
                job = await self._group.enqueue(draft)
            else:
                job = await self._door.call(partial(self._intake.send, draft, session))
        self._announcer.announce([job], session, new=True)
        return job

    async def enqueue_many(self, new_jobs: Sequence[NewJob]) -> list[Job]:
        """Stores many jobs with few statements; the jobs, in the order of the list.

        All are checked before anything is sent; the error of one that cannot be says which it is. Of
        several jobs with one unique key, in the list or in the collection, each is the one that has it.
        It is not one transaction. Cancelled after the first was sent, all are sent and awaited.

        Raises:
            PartialEnqueueError: The database did not take all; says which it took, and which perhaps.
            The errors of `enqueue`: Nothing was sent.
        """
        drafts = enqueue_many.checked(self._intake, new_jobs)
        if not drafts:
            return []
        with self._announcer.also_if_lost():
            jobs = await self._door.call(partial(enqueue_many.send, self._context, self._intake, drafts))
        self._announcer.announce(jobs, new=True)
        return jobs

    @overload
    async def schedule(
        self, cron: str, worker: Taking[T], data: T, *, on_conflict: str = ..., **options: Unpack[ScheduleOptions]
    ) -> Job: ...
    @overload
    async def schedule(
        self,
        cron: str,
        worker: Taking[None],
        data: None = ...,
        *,
        on_conflict: str = ...,
        **options: Unpack[ScheduleOptions],
    ) -> Job: ...
    @overload
    async def schedule(
        self, cron: str, worker: str, data: Any = ..., *, on_conflict: str = ..., **options: Unpack[ScheduleOptions]
    ) -> Job: ...
    async def schedule(
        self,
        cron: str,
        worker: str | Taking[Any],
        data: Any = None,
        *,
        on_conflict: str = "keep",
        **options: Unpack[ScheduleOptions],
    ) -> Job:
        """Stores a job that runs again and again: on success it moves to its next occurrence.

        Args:
            cron: Five fields, or an alias such as @daily, which is stored as five fields.
            worker, data: As for `enqueue`.
            unique_key: Makes it a declaration: where a pending or processing job of this name has the
                key, there is no second one. Without, each call makes another job.
            timezone: The IANA name of the zone that `cron` speaks of; "UTC" by default.
            on_exhausted: What an occurrence that used up its retries means: "continue" with the next
                one, which is the default, or "fail".
            on_conflict: Where the key is in use: "keep" the job as it is, or "update" its cron, time zone,
                data and `on_exhausted`, unless its `version` is higher. A run that is under way keeps what it began
                with.
            version: A whole number from 1 that decides which of two declarations is the newer one: "update" leaves
                a schedule of a higher version as it is, and logs that. None is older than any version.

        Raises:
            InvalidCronError: The expression or the time zone cannot be understood; nothing was sent.
            The errors of `enqueue`.
        """
        check_on_conflict(on_conflict)
        call = partial(self._producer.schedule, cron, worker, data, on_conflict=on_conflict, **options)
        with self._announcer.also_if_lost():
            job = await self._door.call(call)
        self._announcer.announce([job])
        return job

    @overload
    async def document(self, worker: Taking[T], data: T, **options: Unpack[JobOptions]) -> dict[str, Any]: ...
    @overload
    async def document(
        self, worker: Taking[None], data: None = ..., **options: Unpack[JobOptions]
    ) -> dict[str, Any]: ...
    @overload
    async def document(self, worker: str, data: Any = ..., **options: Unpack[JobOptions]) -> dict[str, Any]: ...
    async def document(
        self, worker: str | Taking[Any], data: Any = None, **options: Unpack[JobOptions]
    ) -> dict[str, Any]:
        """The document of a job, checked as by `enqueue`, for you to insert: with another driver, in its transaction.

        It is due from the server's time on, and the indexes exist when this returns: call it before the
        transaction begins. A unique key in use is a duplicate key error of your insert.
        """
        return await self._door.call(partial(self._producer.document, worker, data, **options))

    async def preview(self, cron: str, timezone: str = "UTC", count: int = 5) -> SchedulePreview:
        """What a schedule means, in words and in its next runs; stores nothing.

        Raises:
            InvalidCronError: The expression or the time zone cannot be understood.
            InvalidOptionError: `count` is out of range.
        """
        return await self._door.call(partial(self._producer.preview, cron, timezone, count))
