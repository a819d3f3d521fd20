"""What a scheduler is to the clients of its run: see the wake board."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from ..client.context import ClientContext
from ..engine.demand import KnownItem
from ..jobs.job import Job
from .paused_names import PausedNames
from .settlements import JobEngine
from .told import JobKey, Told


class EngineOnTheBoard:
    """Hears of jobs, on the collection's time; the engine's timers are on trio's clock. And says whether it works."""

    def __init__(
        self, engine: JobEngine, context: ClientContext, paused: PausedNames, told: Told, instance_id: str
    ) -> None:
        self.instance_id = instance_id
        self._context = context
        self._paused = paused
        self._told = told
        self.is_idle = engine.is_idle
        self.wait_changed = engine.wait_changed
        self.look = engine.waker.look
        self.look_for_the_dead = engine.reaper.look
        self._reaper = engine.reaper
        self.look_while = engine.waker.look_while
        self._expect = engine.waker.expect

    def watch(self, is_idle: Callable[[], bool]) -> None:
        if is_idle != self.is_idle:  # What this scheduler holds it renews itself.
            self._reaper.watch(is_idle)

    def look_for_pauses(self) -> None:
        self._paused.forget()
        # Not before: a claim that begins now must find out that it does not know.
        self.look()

    def expect(self, jobs: Sequence[Job], *, new: bool) -> None:
        if new:
            jobs = [job for job in jobs if job.id not in self._told]
            self._told.add(job.id for job in jobs)
        if not jobs:
            return
        first = min(jobs, key=lambda job: job.next_run_at)
        item = KnownItem(JobKey(first.id, first.next_run_at), first.name) if new and len(jobs) == 1 else None
        moments = [self._context.clock.on_run_clock(job.next_run_at) for job in jobs]
        self._expect(min(moments), item)
        # The look for what is due now finds nothing of what is due later: that needs its own timer.
        later = min((moment for moment in moments if moment > trio.current_time()), default=None)
        if later is not None and later > min(moments):
            self._expect(later)
