"""RecordingScheduler, the `job.scheduler` of run_job: the calls of production, with jobs kept in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, TypeVar

import anyio.lowlevel

from ..client.client_context import ClientContext
from ..client.client_parts import ClientParts
from ..client.enqueue import Enqueue, EnqueueWithOutcome
from ..client.enqueue_many import EnqueueMany
from ..client.event_delivery import EventDelivery
from ..client.monque import Monque
from ..client.operation import Operation
from ..client.schedules import Declare
from ..client.sync_monque import SyncMonque
from ..jobs.enqueued import Enqueued
from ..jobs.job import Job, JobStatus
from ..jobs.job_parts import NO_CLAIM, RunAgain
from ..jobs.new_job import Draft, NewJob, NewSchedule
from ..jobs.run_again import debounced_until
from ..jobs.stored_value_limits import unpacked
from .no_database import NoDatabaseError

R = TypeVar("R")

REMEMBERED: Final = frozenset({"enqueue", "enqueue_many", "enqueue_with_outcome", "schedule"})


class _Memory:
    """Takes the place of the database: keeps what would be sent."""

    def __init__(self, context: ClientContext, running: Job) -> None:
        self.enqueued: list[NewJob] = []
        self.scheduled: list[NewSchedule] = []
        self._context = context
        # The job whose handler runs holds its own key, too, while it is processing.
        self._holders: dict[tuple[str, str], Job] = {}
        self._hold_key(running)

    def carry_out(self, operation: Operation[Any]) -> None:
        if isinstance(operation, EnqueueMany):
            operation.finish([self._store(draft).job for draft in operation.drafts])
        elif isinstance(operation, EnqueueWithOutcome):
            operation.finish(self._store(operation.enqueue.draft))
        elif isinstance(operation, Enqueue | Declare):
            operation.finish(self._store(operation.draft).job)
        else:
            raise NoDatabaseError("what this call asks for")

    def _store(self, draft: Draft) -> Enqueued[Any]:
        """Return the job that would be stored, or the one that has the unique key already."""
        # As it will be read: what the handler does to its own object afterwards changes nothing.
        new = replace(draft.new, data=unpacked(draft.payload, self._context.jobs.codec.callers))
        job = replace(draft, new=new).at(self._context.clock.now())
        if isinstance(new, NewSchedule):
            self.scheduled.append(new)
            return Enqueued(job, "created")
        holder = self._holders.get((new.name, new.unique_key)) if new.unique_key is not None else None
        if holder is None:
            self._hold_key(job)
            self.enqueued.append(new)
            return Enqueued(job, "created")
        if new.on_conflict == "keep":
            return Enqueued(holder, "kept")
        enqueued = _changed(holder, job, new)
        self._hold_key(enqueued.job)
        self.enqueued.append(new)
        return enqueued

    def _hold_key(self, job: Job) -> None:
        if job.unique_key is not None:
            self._holders[job.name, job.unique_key] = job


def _changed(holder: Job, job: Job, new: NewJob) -> Enqueued[Any]:
    """What `store/jobs/replacing.py` does to the job that has the key."""
    runs = holder.status is JobStatus.PROCESSING
    since, due = job.debounced_since, job.next_run_at
    if since is not None and new.delay is not None:
        held = holder.again if runs else holder
        since = (None if held is None else held.debounced_since) or since
        due = debounced_until(since, job.created_at, new.delay, new.max_wait)
    if not runs:
        limits = replace(holder.limits, start_by=job.limits.start_by)
        internals = replace(holder.internals, rev=holder.internals.rev + 1)
        content = {"data": job.data, "next_run_at": due, "limits": limits, "debounced_since": since}
        return Enqueued(replace(holder, **content, internals=internals), "replaced")
    again = RunAgain(call=job.id, data=job.data, next_run_at=due, start_by=job.limits.start_by, debounced_since=since)
    return Enqueued(replace(holder, again=again), "again")


class _Remembering(Monque):
    """The async calls; a memory carries them out."""

    def __init__(self, context: ClientContext, memory: _Memory) -> None:
        self._open(ClientParts.of(context))
        self._memory = memory

    async def _run(self, operation: Operation[R]) -> R:
        await anyio.lowlevel.checkpoint()  # Cancelled here, nothing is enqueued.
        self._memory.carry_out(operation)
        return operation.result


class _RememberingSync(SyncMonque):
    """The blocking calls, from any thread."""

    def __init__(self, context: ClientContext, memory: _Memory) -> None:
        super().__init__(context, EventDelivery(), blocks_loops=True)
        self._memory = memory

    def _run(self, operation: Operation[R]) -> R:
        self._memory.carry_out(operation)
        return operation.result


class Recorder:
    """The blocking calls that are remembered, as `job.scheduler.sync` has them."""

    def __init__(self, sync: SyncMonque) -> None:
        self._sync = sync

    def __getattr__(self, name: str) -> Any:
        if name in REMEMBERED:
            return getattr(self._sync, name)
        raise NoDatabaseError(f"job.scheduler.sync.{name}")


class RecordingScheduler:
    """What `run_job` gives a handler as `job.scheduler`.

    `enqueue`, `enqueue_with_outcome`, `enqueue_many` and `schedule`, here and in `sync`, check and return what those of
    a scheduler do, and store nothing. `drain` is recorded. All other calls raise NoDatabaseError.

    Attributes:
        id: An instance id.
        sync: The same calls, blocking.
        drained: Whether the handler called `drain`.
    """

    def __init__(self, context: ClientContext, running: Job) -> None:
        self._memory = _Memory(context, running)
        self._client = _Remembering(context, self._memory)
        self.id = (running.claim or NO_CLAIM).by
        self.sync = Recorder(_RememberingSync(context, self._memory))
        self.drained = False

    @property
    def enqueued(self) -> tuple[NewJob, ...]:
        """What was enqueued, in order; data as it would be stored, that of a dataclass as a document."""
        return tuple(self._memory.enqueued)

    @property
    def scheduled(self) -> tuple[NewSchedule, ...]:
        """What was declared with `schedule`, in order."""
        return tuple(self._memory.scheduled)

    def drain(self) -> None:
        self.drained = True

    def __getattr__(self, name: str) -> Any:
        if name in REMEMBERED:
            return getattr(self._client, name)
        raise NoDatabaseError(f"job.scheduler.{name}")
