"""Jobs that are replaced and debounced, on asyncio and in real time: by the async and the blocking calls alike."""

from __future__ import annotations

from typing import Any

import anyio
from anyio import to_thread

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import QUICK
from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.store.driver.types import Database

pytestmark = ON_ASYNCIO


def test_job_that_is_replaced_while_it_runs_runs_once_more_with_the_last_data(db: Database, run: Run) -> None:
    workers, ran, results = Workers(), list[Any](), list[Any]()
    goes_on = list[anyio.Event]()

    @workers.register("build", store_result=True)
    async def build(job: RunningJob[Any]) -> object:
        ran.append(job.data)
        if len(ran) == 1:
            goes_on.append(anyio.Event())
            await goes_on[0].wait()
        return job.data

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            job = await scheduler.enqueue("build", 1, unique_key="k")
            with anyio.fail_after(20):
                while not goes_on:
                    await anyio.sleep(0.01)

            def from_a_thread() -> str:
                options: Any = {"unique_key": "k", "on_conflict": "debounce", "delay": 0.05, "max_wait": 1}
                return scheduler.sync.enqueue_with_outcome("build", 3, **options).outcome

            outcomes = [
                (await scheduler.enqueue_with_outcome("build", 2, unique_key="k", on_conflict="replace")).outcome,
                await to_thread.run_sync(from_a_thread),
            ]
            goes_on[0].set()
            results.append((outcomes, (await scheduler.wait_job(job, timeout=40)).result))

    run(main)
    assert results == [(["again", "again"], 3)]
    assert ran == [1, 3]
