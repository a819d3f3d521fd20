"""UnstartedJobs: ends jobs that were not started by their `start_by`, and reports each once.

A look for due jobs meets most of them, and ends them here instead of claiming them. It does not see jobs of names that
are paused or that no instance has, nor a job that is due later. `run` ends those: it sleeps until the earliest moment
that it knows, and looks for others once a minute. Every instance does this, for all names; one of them ends a job.

The same loop starts the jobs once more that were replaced while Monque for Node ran them: the other kind of job that
no look for due jobs meets.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, NoReturn

import trio

from ..engine.progress import Progress
from ..engine.source import Control
from ..error_types import ClientClosedError, MonqueConnectionError
from ..jobs.claimable import is_too_late
from ..jobs.follow_ups import PARKED_UNTIL
from ..jobs.job import Job
from ..log import logger_of
from ..loop_time import loop_time
from ..store.driver.database_threads import Channel
from ..store.driver.types import IndexModel, ObjectId
from ..store.job_collection import JobCollection
from ..store.jobs import indexes, starting_again, unstarted_writes
from .context import SchedulerContext
from .settlement import JobSettlement

logger = logger_of("scheduler")

LOOK_INTERVAL: Final = 60.0
"""Seconds between two looks, in real time. In virtual time each job is announced, and there are no other looks."""

JITTER: Final = 0.1

PAUSE_AFTER_FAULT: Final = 5.0

MOST_PAGES: Final = 10
"""Pages of one turn, of `unstarted_jobs.MOST_AT_ONCE` jobs each. The next turn goes on."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """What was sent. After a lost answer it is sent again: its receipt shows which jobs it has ended."""

    late: Sequence[Job]
    now: datetime
    receipt: str


class UnstartedJobs:
    """The loop, and what claims use of it.

    Attributes:
        indexes: Which of `indexes.IF_NEEDED` the collection had at the last look. Others ask, too.
        learned: Called after a look that has found further ones; None for nothing.
    """

    def __init__(self, shared: SchedulerContext, control: Control[Job, JobSettlement]) -> None:
        self.progress = Progress("start limits")
        self._context = shared.client
        self._db_threads = shared.db_threads
        self._reporter = shared.reporter
        self._control = control
        self._time = loop_time()
        self._signal = trio.Event()
        self._look_at = -math.inf
        # Claims add in their threads. Only the thread of this loop takes out, one at a time.
        self._unanswered: list[_Batch] = []
        # Jobs with `start_by` were met. Enqueued in a transaction, or by another program, they have no index yet.
        self._has_met = False
        self.indexes: Sequence[IndexModel] = ()
        self.learned: Callable[[], object] | None = None

    # --- In a database thread ---

    def end(self, jobs: JobCollection, late: Sequence[Job], now: datetime) -> Sequence[Job]:
        """End these pending jobs, and report them; return those that this call has ended.

        Raises:
            MonqueConnectionError: The loop sends it again.
        """
        self._has_met = True
        return self._send(jobs, _Batch(late, now, secrets.token_hex(6)))

    def _send(self, jobs: JobCollection, batch: _Batch) -> Sequence[Job]:
        try:
            ended = unstarted_writes.end(jobs, batch.late, batch.now, batch.receipt)
        except MonqueConnectionError as error:
            # Some may have ended. No look shows them any more, and without this their ends would not be reported.
            if error.unknown_outcome:
                self._unanswered.append(batch)
                self._control.post(self._look_soon)
            raise
        # From here, because the task that waits for this thread may be cancelled.
        self._control.post(partial(self._reporter.jobs_ended_unstarted, ended))
        return ended

    # --- On the thread of the run ---

    def expect(self, jobs: Sequence[Job]) -> None:
        """Set a timer for these pending jobs, as far as they must start by a moment."""
        if moments := [start_by for job in jobs if (start_by := job.limits.start_by) is not None]:
            self._has_met = True
            self._look_by(self._context.clock.on_run_clock(min(moments)))

    def _look_by(self, moment: float) -> None:
        if moment < self._look_at:
            self._look_at = moment
            self._signal.set()

    def _look_soon(self) -> None:
        self._look_by(trio.current_time() + PAUSE_AFTER_FAULT)

    async def run(self) -> NoReturn:
        """Run until cancelled, at any time: no running job depends on it."""
        while True:
            self._signal = trio.Event()  # Before the time is compared: what is set after that ends the wait.
            if trio.current_time() >= self._look_at:
                await self._take_turn()
            self.progress.plan(self._look_at)
            with trio.move_on_at(self._look_at):
                await self._signal.wait()

    async def _take_turn(self) -> None:
        self._look_at = math.inf  # Before the look: what is announced during it may not be in its answer.
        self.progress.ask()
        known = self.indexes
        try:
            following = await self._db_threads.call(
                self._look_and_write, channel=Channel.COMMANDS, abandon_on_cancel=True
            )
        except ClientClosedError:
            raise  # It ends the scheduler.
        except MonqueConnectionError as error:
            if self.progress.fail(error):
                logger.warning("could not look for jobs that were not started in time: %s; retrying", error)
            self._look_soon()
            return
        self.progress.answered()
        if len(self.indexes) > len(known) and self.learned is not None:
            self.learned()
        if following is not None:
            self._look_by(self._context.clock.on_run_clock(following))
        if not self._time.is_event_driven:
            self._look_by(trio.current_time() + self._time.jittered(LOOK_INTERVAL, JITTER))

    def _look_and_write(self) -> datetime | None:
        """Do all that is due; return when there is more to do, None if that is not known."""
        if self._has_met:
            self._context.ensure_indexes(indexes.START_BY)
        if not {indexes.START_BY, indexes.RUN_AGAIN, indexes.SCOPES} <= set(self.indexes):
            self.indexes = indexes.in_use(self._context.jobs)
        following = self._end_all() if indexes.START_BY in self.indexes else None
        if indexes.RUN_AGAIN in self.indexes:
            starting_again.start_again(self._context.jobs, self._context.now())
        return following

    def _end_all(self) -> datetime | None:
        """End all that are late; return the earliest moment of the others, None if there are none."""
        jobs = self._context.jobs
        while self._unanswered:
            self._send(jobs, self._unanswered.pop())
        met: list[ObjectId] = []
        for _ in range(MOST_PAGES):
            found, now = unstarted_writes.look(jobs, met), self._context.now()
            # A parked follow-up is ended when it is released: until then, another one may be chosen in its place.
            late = [job for job in found if is_too_late(job, now) and job.next_run_at < PARKED_UNTIL]
            if late:
                self.end(jobs, late, now)
            if len(late) < unstarted_writes.MOST_AT_ONCE:
                return min(
                    (limit for job in found if (limit := job.limits.start_by) and not is_too_late(job, now)),
                    default=None,
                )
            met += [job.id for job in late]
        return None
