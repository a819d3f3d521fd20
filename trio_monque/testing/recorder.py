"""`job.scheduler` of a handler that is run alone: production's own calls, whose jobs are remembered and not stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar, cast

import trio

from ..client.context import ClientContext
from ..client.enqueue_many import checked
from ..client.enqueuing import Enqueuing
from ..client.group_enqueue import GroupEnqueue
from ..client.intake import Intake
from ..client.producer import Producer
from ..client.wake_board import Nobody
from ..jobs.job import Job
from ..jobs.new_job import Draft, NewJob, NewSchedule
from ..jobs.payload import unpacked
from ..store.database_threads import DatabaseThreads
from ..store.types import ClientSession
from .no_database import NoDatabaseError

T = TypeVar("T")


class _Remembering(Intake):
    """Where jobs come in: what would be sent is remembered."""

    def __init__(self, context: ClientContext, running: Job) -> None:
        super().__init__(context)
        self.enqueued: list[NewJob] = []
        self.scheduled: list[NewSchedule] = []
        # The job whose handler runs is one, too: it holds its own key while it is processing.
        self._holders: dict[tuple[str, str], Job] = {}
        self._hold_key(running)

    def check_session(self, session: ClientSession | None) -> None:
        if session is not None:
            raise NoDatabaseError("the database of that session")

    def send(self, draft: Draft, session: ClientSession | None = None) -> Job:
        """The job that would be stored, or the one that has the unique key already."""
        # As it will be read: what the handler does to its own object afterwards changes nothing.
        new = replace(draft.new, data=unpacked(draft.payload, self._context.jobs.codec.callers))
        job = replace(draft, new=new).at(self._context.clock.now())
        if isinstance(new, NewSchedule):
            self.scheduled.append(new)
            return job
        holder = self._holders.get((new.name, new.unique_key)) if new.unique_key is not None else None
        if holder is not None:
            return holder
        self._hold_key(job)
        self.enqueued.append(new)
        return job

    def _hold_key(self, job: Job) -> None:
        if job.unique_key is not None:
            self._holders[job.name, job.unique_key] = job


class Recorder(Producer):
    """The blocking calls, as `job.scheduler.sync` has them. From any thread."""

    def __init__(self, context: ClientContext, running: Job) -> None:
        super().__init__(context, Nobody())
        self._intake: _Remembering = _Remembering(context, running)

    def enqueue_many(self, new_jobs: Sequence[NewJob]) -> list[Job]:
        return [self._intake.send(draft) for draft in checked(self._intake, new_jobs)]

    def document(self, *arguments: Any, **options: Any) -> NoReturn:
        raise NoDatabaseError("job.scheduler.sync.document")

    def preview(self, *arguments: Any, **options: Any) -> NoReturn:
        raise NoDatabaseError("job.scheduler.sync.preview")

    def __getattr__(self, name: str) -> NoReturn:
        raise NoDatabaseError(f"job.scheduler.sync.{name}")


class _Inline:
    """Stands for the door, and for the group of those who enqueue at once: nothing is sent through it."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def call(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()  # Cancelled here, nothing is enqueued.
        return function()

    async def enqueue(self, draft: Draft) -> Job:
        return await self.call(lambda: self._intake.send(draft))


class RecordingScheduler(Enqueuing):
    """What `run_job` gives a handler as `job.scheduler`.

    `enqueue`, `enqueue_many` and `schedule`, here and in `sync`, check and return what those of a
    scheduler do, and store nothing. `drain` is remembered. All else raises NoDatabaseError.

    Attributes:
        id: An instance id.
        sync: The same calls, blocking.
        drained: Whether the handler said `drain`.
    """

    def __init__(self, context: ClientContext, running: Job) -> None:
        self.id = running.claimed_by
        self.sync = Recorder(context, running)
        self.drained = False
        self._context = context
        self._producer = self.sync
        self._intake = self.sync._intake
        self._announcer = Nobody()
        inline = _Inline(self._intake)
        self._door = cast("DatabaseThreads", inline)
        self._group = cast("GroupEnqueue", inline)

    @property
    def enqueued(self) -> tuple[NewJob, ...]:
        """What was enqueued, in order; data as it would be stored, that of a dataclass as a document."""
        return tuple(self.sync._intake.enqueued)

    @property
    def scheduled(self) -> tuple[NewSchedule, ...]:
        """What was declared with `schedule`, in order."""
        return tuple(self.sync._intake.scheduled)

    async def enqueue_many(self, new_jobs: Sequence[NewJob]) -> list[Job]:
        drafts = checked(self._intake, new_jobs)
        return await self._door.call(lambda: [self._intake.send(draft) for draft in drafts])

    def drain(self) -> None:
        self.drained = True

    def __getattr__(self, name: str) -> NoReturn:
        raise NoDatabaseError(f"job.scheduler.{name}")
