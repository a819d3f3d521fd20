"""`job.scheduler` of a handler that is run alone: what it enqueues is checked as in production, and remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn, Unpack

import bson
import trio

from ..client.declaring import check_on_conflict
from ..client.enqueue_many import checked
from ..client.ground import Ground
from ..client.intake import Intake
from ..client.producer import ScheduleOptions
from ..jobs.job import Job
from ..jobs.new_job import Draft, JobOptions, Named, NewJob, NewSchedule, name_of
from ..store.types import ClientSession
from .no_database import NoDatabaseError


class Recorder:
    """The blocking calls, as `job.scheduler.sync` has them. From any thread."""

    def __init__(self, ground: Ground, running: Job) -> None:
        self._ground = ground
        self._intake = Intake(ground)
        self.enqueued: list[NewJob] = []
        self.scheduled: list[NewSchedule] = []
        # The job whose handler runs is one, too: it holds its own key while it is processing.
        self._holders: dict[tuple[str, str], Job] = {}
        self._hold_key(running)

    def enqueue(
        self,
        worker: str | Named,
        data: Any = None,
        *,
        session: ClientSession | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        return self.record(self.draft(worker, data, session, options))

    def enqueue_many(self, new_jobs: Sequence[NewJob]) -> list[Job]:
        return [self.record(draft) for draft in checked(self._intake, new_jobs)]

    def now(self, worker: str | Named, data: Any = None) -> Job:
        return self.enqueue(worker, data)

    def schedule(
        self,
        cron: str,
        worker: str | Named,
        data: Any = None,
        *,
        on_conflict: str = "keep",
        **options: Unpack[ScheduleOptions],
    ) -> Job:
        return self.record(self.draft_schedule(cron, worker, data, on_conflict, options))

    def __getattr__(self, name: str) -> NoReturn:
        raise NoDatabaseError(f"job.scheduler.sync.{name}")

    # --- Checked, and then recorded: between the two, an async call may be cancelled ---

    def draft(
        self, worker: str | Named, data: Any, session: ClientSession | None = None, options: JobOptions | None = None
    ) -> Draft:
        if session is not None:
            raise NoDatabaseError("the database of that session")
        new = NewJob(name=name_of(worker), data=data, **(options or {}))
        return self._intake.draft(new, worker)

    def drafts(self, new_jobs: Sequence[NewJob]) -> Sequence[Draft]:
        return checked(self._intake, new_jobs)

    def draft_schedule(
        self, cron: str, worker: str | Named, data: Any, on_conflict: str, options: ScheduleOptions
    ) -> Draft:
        check_on_conflict(on_conflict)
        return self._intake.draft(NewSchedule(name=name_of(worker), cron=cron, data=data, **options), worker)

    def record(self, draft: Draft) -> Job:
        """Remembers what would be stored, and returns its job; or the job that has the unique key already."""
        # As it will be read: what the handler does to its own object afterwards changes nothing.
        options = self._ground.jobs.codec.callers.with_options(document_class=dict)
        new = replace(draft.new, data=bson.decode(draft.payload, codec_options=options)[""])
        job = replace(draft, new=new).at(self._ground.clock.now())
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


class RecordingScheduler:
    """What `run_job` gives a handler as `job.scheduler`.

    `enqueue`, `enqueue_many`, `now` and `schedule`, here and in `sync`, check and return what those of a
    scheduler do, and store nothing. `drain` is remembered. All else raises NoDatabaseError.

    Attributes:
        id: An instance id.
        sync: The same calls, blocking.
        drained: Whether the handler said `drain`.
    """

    def __init__(self, ground: Ground, running: Job) -> None:
        self.id = running.claimed_by
        self.sync = Recorder(ground, running)
        self.drained = False

    @property
    def enqueued(self) -> tuple[NewJob, ...]:
        """What was enqueued, in order; data as it would be stored, that of a dataclass as a document."""
        return tuple(self.sync.enqueued)

    @property
    def scheduled(self) -> tuple[NewSchedule, ...]:
        """What was declared with `schedule`, in order."""
        return tuple(self.sync.scheduled)

    async def enqueue(
        self,
        worker: str | Named,
        data: Any = None,
        *,
        session: ClientSession | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        draft = self.sync.draft(worker, data, session, options)
        await trio.lowlevel.checkpoint()
        return self.sync.record(draft)

    async def enqueue_many(self, new_jobs: Sequence[NewJob]) -> list[Job]:
        drafts = self.sync.drafts(new_jobs)
        await trio.lowlevel.checkpoint()
        return [self.sync.record(draft) for draft in drafts]

    async def now(self, worker: str | Named, data: Any = None) -> Job:
        return await self.enqueue(worker, data)

    async def schedule(
        self,
        cron: str,
        worker: str | Named,
        data: Any = None,
        *,
        on_conflict: str = "keep",
        **options: Unpack[ScheduleOptions],
    ) -> Job:
        draft = self.sync.draft_schedule(cron, worker, data, on_conflict, options)
        await trio.lowlevel.checkpoint()
        return self.sync.record(draft)

    def drain(self) -> None:
        self.drained = True

    def __getattr__(self, name: str) -> NoReturn:
        raise NoDatabaseError(f"job.scheduler.{name}")
