"""Jobs of a crashed scheduler, and what its rescuers report."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from trio_monque import CancelReason, RunningJob, Scheduler, Workers
from trio_monque.events import Event, JobCancelled, JobFailed, StaleJobsRecovered
from trio_monque.testing import SchedulerOpener, crash, quiesce

LEASE, PASS = 90.0, 15.0


class Jobs:
    """A worker whose first try of a job never ends, and later ones do at once."""

    def __init__(self) -> None:
        self.starts: list[tuple[float, int]] = []
        self.reasons: list[CancelReason | None] = []
        self.workers = Workers()
        self.workers.register("job", self.handler, concurrency=50)

    async def handler(self, job: RunningJob[Any]) -> None:
        self.starts.append((trio.current_time(), job.attempt))
        if job.attempt == 1:
            try:
                await trio.sleep_forever()
            finally:
                self.reasons.append(job.cancel_reason)


def heard(into: list[Any]) -> dict[type[Event], Any]:
    async def hear(event: Event) -> None:
        into.append(event)

    return {StaleJobsRecovered: hear, JobFailed: hear, JobCancelled: hear}


@asynccontextmanager
async def dead_instance(
    opener: SchedulerOpener, workers: Workers, *jobs: str, after: float = 0.0, **options: Any
) -> AsyncIterator[Scheduler]:
    """Claims these, and crashes `after` seconds later."""
    async with opener(workers, **options) as scheduler:
        for name in jobs:
            await scheduler.enqueue(name)
        await trio.sleep(after)
        await quiesce()
        await crash(scheduler)
        yield scheduler
