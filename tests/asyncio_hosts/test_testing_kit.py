"""The kit for tests of jobs, on trio, asyncio and uvloop: schedulers of a test, `drain`, checks of what is stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from trio_monque import Monque, RunningJob, Workers
from trio_monque.errors import MonqueError
from trio_monque.store.types import Database
from trio_monque.testing import SchedulerOpener, assert_enqueued, drain

from .conftest import ON_ASYNCIO, Run


def test_drain_runs_all_that_is_due(run: Run, db: Database) -> None:
    workers = Workers()

    @workers.register("double", store_result=True)
    async def double(job: RunningJob[int]) -> int:
        await anyio.sleep(0.01)
        if job.data < 8:
            await job.scheduler.enqueue("double", job.data * 2)
        return job.data * 2

    @workers.register("fails", backoff=3600)
    async def fails(job: RunningJob[None]) -> None:
        raise ConnectionError

    async def main() -> None:
        monque = Monque(db, stats_cache_ttl=0)
        async with SchedulerOpener(db)(workers) as scheduler:
            await monque.enqueue("double", 2)
            await monque.enqueue("fails")
            drained = await drain(scheduler)
            assert (drained.completed, drained.failed) == (3, 1)
            await assert_enqueued(monque, name="double", data=8, status="completed")
            await assert_enqueued(monque, name="fails", status="pending")  # Until its backoff is over.
            assert (await drain(scheduler)).completed == 0

    run(main)


@ON_ASYNCIO
def test_drain_does_not_advance_the_time_of_asyncio(run: Run, db: Database) -> None:
    async def main() -> None:
        async with SchedulerOpener(db)(Workers()) as scheduler:
            with pytest.raises(MonqueError, match="only virtual time can be advanced: use a MockClock"):
                await drain(scheduler, until=datetime.now(UTC) + timedelta(days=1))

    run(main)
