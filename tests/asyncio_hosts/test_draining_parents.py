"""`drain` of the testing kit beside parents that wait for their children, on trio, asyncio and uvloop, in real time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio

from tests.asyncio_hosts.conftest import Run
from trio_monque import Monque, RunningJob, Workers, open_job_nursery
from trio_monque.store.driver.types import Database
from trio_monque.testing import SchedulerOpener, drain, now


def statuses(db: Database) -> dict[str, str]:
    return {job["name"]: job["status"] for job in db["monque_jobs"].find()}


def workers_of_orders(outcomes: list[Exception | None]) -> Workers:
    """An order reserves and charges; a charge ends by the next of these outcomes, and is tried again after an hour."""
    workers = Workers()

    @workers.register("order", store_result=True)
    async def order(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            await nursery.run("reserve")
            charged = await nursery.start("charge")
        return charged.result

    @workers.register("reserve")
    async def reserve(_: RunningJob[Any]) -> None:
        await anyio.sleep(0.01)

    @workers.register("charge", store_result=True, backoff=3600)
    async def charge(_: RunningJob[Any]) -> str:
        if (error := outcomes.pop(0)) is not None:
            raise error
        return "charged"

    return workers


def test_drain_leaves_a_parent_whose_child_is_due_later_and_runs_both_when_time_has_passed(
    db: Database, monque: Monque, run: Run
) -> None:
    async def main() -> None:
        workers = workers_of_orders([ConnectionError("closed"), ConnectionError("closed"), None])
        async with SchedulerOpener(db)(workers) as scheduler:
            await monque.enqueue("order")
            with anyio.fail_after(50):
                drained = await drain(scheduler)
                assert (drained.completed, drained.failed) == (1, 1)
                assert statuses(db) == {"order": "processing", "reserve": "completed", "charge": "pending"}
                drained = await drain(scheduler, until=now() + timedelta(hours=3))
                assert (drained.completed, drained.failed) == (2, 1)
        assert set(statuses(db).values()) == {"completed"}

    run(main)


def test_drain_waits_for_a_parent_whose_last_child_has_ended(db: Database, monque: Monque, run: Run) -> None:
    async def main() -> None:
        async with SchedulerOpener(db)(workers_of_orders([None] * 20)) as scheduler:
            for _ in range(5):
                await monque.enqueue("order")
                with anyio.fail_after(50):
                    assert (await drain(scheduler)).completed == 3

    run(main)
