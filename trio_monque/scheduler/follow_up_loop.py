"""FollowUps: enqueues what the `then` of workers returns for jobs that have ended. `jobs/follow_ups.py` has the rules.

It works right after the ends that its own scheduler has written. A look at the start and every half a minute finds the
others: of processes that were killed, and of instances that gave a job up and do not know its worker. A scheduler
without a worker that has a `then` sends nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import trio

from ..client.client_context import ClientContext
from ..client.enqueue import draft_of
from ..engine.progress import Progress
from ..error_types import InvalidOptionError, InvalidPayloadError, MonqueConnectionError
from ..jobs.follow_ups import parked_for, released
from ..jobs.job import Job, JobStatus, log_extra, made_of
from ..jobs.new_job import NewJob
from ..log import exc_info_of, logger_of
from ..loop_time import loop_time
from ..safe_text import shown
from ..store.driver.database_threads import Channel, DatabaseThreads
from ..store.driver.types import ObjectId
from ..store.jobs import follow_up_writes, indexes, inserting
from ..store.jobs.inserting import Parcel
from .workers import Workers

logger = logger_of("scheduler")

INTERVAL: Final = 30.0
"""Seconds between two looks for what killed processes have left behind."""

JITTER: Final = 0.1

RETRY_AFTER: Final = 1.0
"""Seconds until the next attempt after a fault."""

END_TIMEOUT: Final = 0.5
"""Seconds that a shutdown waits for the follow-ups of the last jobs. Another instance finds what is left."""

MOST_REPORTED: Final = 1000


class FollowUps:
    """The loop, a service: it ends when the last run is settled. Another instance finishes what it leaves.

    Args:
        announce: Announces jobs to the schedulers of this trio run; None for unknown ones. May be called from any
            thread.
    """

    def __init__(
        self,
        context: ClientContext,
        db_threads: DatabaseThreads,
        workers: Workers,
        announce: Callable[[Sequence[Job] | None], None],
    ) -> None:
        self.progress = Progress("follow-ups")
        self._context = context
        self._db_threads = db_threads
        self._workers = workers
        self._announce = announce
        self._time = loop_time()
        self._ended: list[ObjectId] = []
        self._wake = trio.Event()
        self._idle = trio.Event()
        # Jobs whose `then` has failed: each is tried again with every look, and logged once. Only in the one database
        # thread of this loop; all other attributes belong to the thread of the trio run.
        self._reported: set[ObjectId] = set()

    def jobs_ended(self, jobs: Sequence[Job]) -> None:
        """Enqueue the follow-ups of jobs that have just ended with the mark. On the thread of the trio run."""
        if jobs:
            self._ended += [job.id for job in jobs]
            self._idle = trio.Event()
            self._wake.set()

    def worker_added(self) -> None:
        """A worker was registered: it may have a `then`. On the thread of the trio run."""
        self._wake.set()

    async def run(self) -> None:
        look_at = -math.inf  # The first look is at once: an earlier process may have left something behind.
        try:
            while True:
                looks = bool(self._workers.followed) and trio.current_time() >= look_at
                if not await self._work(looks=looks):
                    # Its answer may be lost: then only a look finds the follow-ups that it has chosen.
                    look_at = -math.inf
                    await trio.sleep(RETRY_AFTER)
                    continue
                if looks:
                    look_at = trio.current_time() + self._pause()
                if not self._ended:
                    self._idle.set()
                    with trio.move_on_at(look_at if self._workers.followed else math.inf):
                        await self._wake.wait()
                    self._wake = trio.Event()
        finally:
            self._idle.set()

    def _pause(self) -> float:
        return self._time.jittered(self._time.poll_interval(INTERVAL), JITTER)

    async def end(self) -> None:
        """Wait until the follow-ups of the last jobs are enqueued, for a bounded time."""
        with trio.move_on_after(END_TIMEOUT):
            await self._idle.wait()

    async def _work(self, *, looks: bool) -> bool:
        """Enqueue the follow-ups of the jobs that just ended; with `looks`, search for missed ones too.

        Return whether the database answered.
        """
        ended, self._ended = self._ended, []
        if not (ended or looks):
            return True
        self.progress.ask()
        try:
            await self._db_threads.call(
                partial(self._pay, ended, looks=looks), channel=Channel.COMMANDS, abandon_on_cancel=True
            )
        except MonqueConnectionError as error:
            # The look that comes next finds these as well. Each step may be repeated: what was done already matches
            # nothing.
            level = logging.WARNING if self.progress.fail(error) else logging.DEBUG
            logger.log(level, "%s; retrying (follow-ups are delayed)", error)
            return False
        self.progress.answered(len(ended))
        return True

    # --- In a database thread ---

    def _pay(self, ended: Sequence[ObjectId], *, looks: bool) -> None:
        jobs = self._context.jobs
        self._context.ensure_indexes(indexes.FOLLOW_UPS)
        for start in range(0, len(ended), follow_up_writes.MOST_AT_ONCE):
            some = ended[start : start + follow_up_writes.MOST_AT_ONCE]
            self._enqueue(follow_up_writes.owing_among(jobs, some))
        if looks:
            self._look()

    def _look(self) -> None:
        """Find what is owed, and what was begun and not finished, by any instance."""
        jobs, after = self._context.jobs, None
        while found := follow_up_writes.owing(jobs, self._workers.followed, after):
            after = found[-1].id
            self._enqueue(found)
        after = None
        while left := follow_up_writes.chosen(jobs, after):
            after = max(left)
            follow_up_writes.clear(jobs, follow_up_writes.release(jobs, left))
            self._announce(None)
        after = None
        while True:
            doomed, after = follow_up_writes.not_chosen(jobs, after)
            follow_up_writes.delete_parked(jobs, doomed)
            if after is None:
                return

    def _enqueue(self, parents: Sequence[Job]) -> None:
        """Enqueue the follow-ups of these jobs. A failure for one of them does not affect the others."""
        jobs = self._context.jobs
        made: list[tuple[Job, Parcel]] = []
        without: list[Job] = []
        for parent in parents:
            if parent.name not in self._workers.followed:
                continue  # An instance that knows its worker finds it.
            try:
                parcel = self._parcel(parent)
            except MemoryError:
                raise  # The job is not the cause.
            except BaseException as error:  # noqa: BLE001  # Code of the user may raise anything.
                self._report(parent, error)
                continue
            if parcel is None:
                without.append(parent)
            else:
                made.append((parent, parcel))
        if without:
            follow_up_writes.forgive(jobs, without)
        if made:
            refused = inserting.insert_all(jobs, [parcel for _, parcel in made])
            for place, refusal in refused.items():
                self._report(made[place][0], refusal)
            stored = {one.id: parcel.job for place, (one, parcel) in enumerate(made) if place not in refused}
            self._settle([parent for parent, _ in made if parent.id in stored], stored)

    def _settle(self, parents: Sequence[Job], stored: Mapping[ObjectId, Job]) -> None:
        """Choose and release what was inserted, or delete it if another instance was faster."""
        if not parents:
            return
        jobs = self._context.jobs
        chosen = follow_up_writes.choose(jobs, stored, parents)
        due = {parent: (stored[parent].id, released(stored[parent]).next_run_at) for parent in chosen}
        free = follow_up_writes.release(jobs, due)
        self._announce([released(stored[parent]) for parent in free])
        follow_up_writes.clear(jobs, free)
        # Their choice was answered, and cannot succeed any more. Last: a user may not have the right to delete jobs.
        follow_up_writes.delete_parked(jobs, [one.id for parent, one in stored.items() if parent not in chosen])

    def _parcel(self, parent: Job) -> Parcel | None:
        """Return the follow-up of a job, as it is inserted; None if its worker wants none."""
        worker = self._workers.get(parent.name)
        assert worker is not None
        then = worker.settings.then
        assert then is not None
        seen = parent
        if parent.status is JobStatus.COMPLETED and parent.result is not None:
            seen = made_of({**vars(parent), "result": worker.loaded_result(parent.result)})
        new: object = then(seen)
        if new is None:
            return None
        if not isinstance(new, NewJob):
            raise InvalidPayloadError(
                f"the `then` of worker {worker.name!r} returned {shown(new)}: return a NewJob or None"
            )
        if new.unique_key is not None:
            raise InvalidOptionError(
                "unique_key", new.unique_key, "is not for a follow-up: there is exactly one of each job without it"
            )
        draft = draft_of(self._context, new)
        job = draft.at(self._context.now())
        if new.meta is None and parent.meta:
            job = made_of({**vars(job), "meta": parent.meta})
        return inserting.parcel(parked_for(job, parent), draft.payload)

    def _report(self, parent: Job, error: BaseException) -> None:
        if parent.id in self._reported:
            return
        if len(self._reported) >= MOST_REPORTED:
            self._reported.clear()
        self._reported.add(parent.id)
        logger.error(
            "could not enqueue the follow-up of job %s: %s; retrying every %g s until it succeeds, even after a new "
            "deployment",
            parent,
            error,
            INTERVAL,
            exc_info=exc_info_of(error),
            extra=log_extra(parent),
        )
