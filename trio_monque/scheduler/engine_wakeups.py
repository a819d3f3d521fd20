"""EngineWakeups: passes local wakeups to one engine. The other side is `client/local_wakeups.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from ..client.client_context import ClientContext
from ..engine.demand import KnownItem
from ..jobs.job import Job
from .job_finder import JobKey
from .job_stream import RecentIds
from .paused_names import PausedNames
from .sources import JobEngine
from .unstarted_jobs import UnstartedJobs


class EngineWakeups:
    """A `LocalScheduler`: clients of the same trio run announce their jobs here.

    Announcements carry moments of the server's clock; the engine's timers run on trio's clock.
    """

    def __init__(
        self,
        engine: JobEngine,
        context: ClientContext,
        paused: PausedNames,
        recent_ids: RecentIds,
        unstarted: UnstartedJobs,
        look_for_orphans: Callable[[], None],
        instance_id: str,
    ) -> None:
        self._unstarted = unstarted
        self.instance_id = instance_id
        self._context = context
        self._paused = paused
        self._recent_ids = recent_ids
        self.is_idle = engine.is_idle
        self.waits_for = engine.waits_for
        self.wait_changed = engine.wait_changed
        self.look = engine.waker.look
        self.look_for_requests = engine.look_for_requests
        self.look_for_orphans = look_for_orphans
        self.look_for_the_dead = engine.reaper.look
        self.watch = engine.reaper.watch
        self.look_while = engine.waker.look_while
        self._expect = engine.waker.expect

    def look_for_pauses(self) -> None:
        self._paused.forget()
        # In this order: the claim that this look starts must not use the cached answer.
        self.look()

    def expect(self, jobs: Sequence[Job], *, new: bool) -> None:
        self._unstarted.expect(jobs)
        if new:
            jobs = [job for job in jobs if job.id not in self._recent_ids]
            self._recent_ids.add(job.id for job in jobs)
        if not jobs:
            return
        first = min(jobs, key=lambda job: job.next_run_at)
        item = KnownItem(JobKey(first.id, first.next_run_at), first.name) if new and len(jobs) == 1 else None
        moments = [self._context.clock.on_run_clock(job.next_run_at) for job in jobs]
        self._expect(min(moments), item)
        # If the first is due already, it starts a claim and sets no timer. The claim does not see the jobs that are due
        # later, so the first of these needs a timer of its own.
        later = min((moment for moment in moments if moment > trio.current_time()), default=None)
        if later is not None and later > min(moments):
            self._expect(later)
