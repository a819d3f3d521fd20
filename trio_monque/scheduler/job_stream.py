"""JobStream: turns the database's change stream into hints for the engine: when to look, and which job is due.

A hint decides nothing. If one is lost, a poll finds the job later; if one is wrong, it costs a look.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from ..client.client_context import ClientContext
from ..engine.demand import Hints, KnownItem, StreamFailedError
from ..error_types import MonqueConnectionError
from ..jobs.claim_stamps_and_fences import claim_id
from ..jobs.job import Job
from ..store.driver.database_threads import Channel, DatabaseThreads
from ..store.driver.types import ObjectId
from ..store.jobs import change_stream, leases
from ..store.jobs.change_stream import ChangeKind, NoStreamError
from .changes import ChangeSource, OpenChanges
from .job_finder import JobKey
from .paused_names import PausedNames
from .workers import Workers

T = TypeVar("T")

MOST_REMEMBERED: Final = 10_000
"""Ids that are remembered. A forgotten one costs a look; the second announcement comes milliseconds after the first."""


class RecentIds:
    """The ids of the new jobs that were announced last. Written on the thread of the run, read in other threads, too.

    A job that a client of the same trio run inserts is announced twice: by the client, and by the change stream.

    The first announcement has caused a look or set a timer, after the insert, so the second one has nothing to add.
    Only inserts are remembered: the same change may be made, undone and made again, so each announcement of a change
    counts.
    """

    def __init__(self) -> None:
        self._ids: set[ObjectId] = set()
        self._order: deque[ObjectId] = deque()

    def __contains__(self, job_id: ObjectId) -> bool:
        return job_id in self._ids

    def add(self, ids: Iterable[ObjectId]) -> None:
        for job_id in ids:
            if job_id not in self._ids:
                self._ids.add(job_id)
                self._order.append(job_id)
        while len(self._order) > MOST_REMEMBERED:
            self._ids.discard(self._order.popleft())


@dataclass(slots=True)
class _Digest:
    """The summary of one batch of changes.

    Attributes:
        is_anything: A job may be due, at an unknown moment: look now.
        due: When the earliest of the jobs is due.
        last_due: When the latest of the jobs is due.
        count: The number of pending jobs.
        new: The ids of those that were inserted.
        item: The last one that was inserted.
        cancelled: The ids of jobs whose cancellation was requested.
        is_any_cancelled: The cancellation of any job may have been requested.
    """

    is_anything: bool = False
    due: datetime | None = None
    last_due: datetime | None = None
    count: int = 0
    new: list[ObjectId] = field(default_factory=list)
    item: KnownItem | None = None
    cancelled: set[ObjectId] = field(default_factory=set)
    is_any_cancelled: bool = False

    @property
    def is_cancel_requested(self) -> Callable[[Job], bool] | None:
        if self.is_any_cancelled:
            return lambda _: True
        return partial(_is_among, self.cancelled) if self.cancelled else None


class JobStream:
    """A `HintStream`. Called on the thread of the run; it waits for changes in a database thread of its own."""

    def __init__(
        self,
        context: ClientContext,
        db_threads: DatabaseThreads,
        workers: Workers,
        paused: PausedNames,
        changes: ChangeSource,
        recent_ids: RecentIds,
    ) -> None:
        self._context = context
        self._db_threads = db_threads
        self._workers = workers
        self._paused = paused
        self._changes = changes
        self._recent_ids = recent_ids
        self._watch: OpenChanges | None = None
        self._was_open = False

    async def open(self) -> None:
        self._watch = await self._call(self._changes.open, _close)
        self._was_open = True
        # Pauses and resumes from before the stream was open were not announced: the next claim must ask.
        self._paused.forget()
        self._paused.is_announced = True

    async def next(self, wait: float) -> Hints[Job]:
        opened = self._opened
        digest = await self._call(lambda: self._digest(opened.read(wait)), lambda _: opened.close())
        item = digest.item if digest.count == 1 else None
        if item is not None and digest.new[0] in self._recent_ids:
            # A local wakeup announced it while this batch was read. Without `due`, the engine ignores `last_due`.
            digest.due = item = None
        self._recent_ids.add(digest.new)
        return Hints(
            look=digest.is_anything,
            due=math.inf if digest.due is None else self._context.clock.on_run_clock(digest.due),
            last_due=-math.inf if digest.last_due is None else self._context.clock.on_run_clock(digest.last_due),
            item=item,
            is_cancel_requested=digest.is_cancel_requested,
            ended=not opened.is_open,
        )

    async def cancel_requested(self, claims: Sequence[Job]) -> Sequence[bool]:
        found = await self._ask(partial(leases.cancel_requested, self._context.jobs, claims))
        return [claim_id(claim) in found for claim in claims]

    async def end_wait(self) -> None:
        # At this point everything is settled, so no other command on this channel delays this one.
        await self._ask(self._changes.end_wait)

    async def _ask(self, function: Callable[[], T]) -> T:
        try:
            return await self._db_threads.call(function, channel=Channel.RENEWALS, abandon_on_cancel=True)
        except MonqueConnectionError as error:
            raise StreamFailedError(error) from error

    async def close(self) -> None:
        self._paused.is_announced = False
        opened, self._watch = self._opened, None
        await self._call(opened.close, lambda _: None)

    @property
    def _opened(self) -> OpenChanges:
        assert self._watch is not None, "the engine opens it first"
        return self._watch

    async def _call(self, function: Callable[[], T], orphan: Callable[[T | None], None]) -> T:
        """Call a function in the stream's thread. If the caller is cancelled meanwhile, `orphan` closes the cursor."""
        try:
            return await self._db_threads.hand_over(function, orphan, channel=Channel.WATCH)
        except NoStreamError as error:
            # If the stream was open before, the database user has lost a privilege since. That is an outage: an
            # operator may give the privilege back.
            raise StreamFailedError(error, is_final=not (error.is_of_user and self._was_open)) from error
        except MonqueConnectionError as error:
            raise StreamFailedError(error) from error

    def _digest(self, changes: Sequence[change_stream.JobChange]) -> _Digest:
        """Runs in the thread of the stream, so that thousands of changes do not block the event loop."""
        digest = _Digest()
        for change in changes:
            match change.kind:
                case ChangeKind.GONE:
                    # The collection was dropped: the next claim or enqueue creates the indexes first.
                    self._context.forget_indexes()
                    digest.is_anything = True
                case ChangeKind.PAUSE:
                    self._paused.forget()
                    digest.is_anything = True
                case ChangeKind.ANYTHING:
                    self._context.forget_indexes()
                    self._paused.forget()
                    digest.is_anything = digest.is_any_cancelled = True
                case ChangeKind.JOB:
                    self._add(change, digest)
        return digest

    def _add(self, change: change_stream.JobChange, digest: _Digest) -> None:
        if change.cancel_requested:
            digest.cancelled.add(change.job_id)
        # A change that does not show the name may be of a job with a worker here.
        if not change.is_pending or (change.name is not None and change.name not in self._workers.by_name):
            return
        if change.due is None:
            digest.is_anything = True
            return
        if change.is_new and change.name is not None:
            if change.job_id in self._recent_ids:
                return
            digest.new.append(change.job_id)
            digest.item = KnownItem(JobKey(change.job_id, change.due), change.name)
        digest.count += 1
        digest.due = change.due if digest.due is None else min(digest.due, change.due)
        digest.last_due = change.due if digest.last_due is None else max(digest.last_due, change.due)


def _close(opened: OpenChanges | None) -> None:
    if opened is not None:
        opened.close()


def _is_among(ids: set[ObjectId], claim: Job) -> bool:
    return claim.id in ids
