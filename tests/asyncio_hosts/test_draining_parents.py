"""`drain` of the testing kit beside parents that wait for their children, on trio, asyncio and uvloop, in real time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from tests.asyncio_hosts.conftest import Run
from tests.support.interception import Interceptor
from trio_monque import Discard, Monque, RunningJob, Workers, open_job_nursery
from trio_monque.embedded import EmbeddedServer
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
        async with SchedulerOpener(db)(workers, shutdown_timeout=0) as scheduler:
            await monque.enqueue("order")
            with anyio.fail_after(50):
                drained = await drain(scheduler)
                assert (drained.completed, drained.failed) == (1, 1)
                assert statuses(db) == {"order": "processing", "reserve": "completed", "charge": "pending"}
                drained = await drain(scheduler, until=now() + timedelta(hours=3))
                assert (drained.completed, drained.failed) == (2, 1)
        assert set(statuses(db).values()) == {"completed"}

    run(main)


def reads_ended_child(db: Database) -> Callable[[str, Any], bool]:
    """The look of a parent for the charge, which has ended."""

    def matches(name: str, command: Any) -> bool:
        is_look = name == "aggregate" and "$replaceWith" in command["pipeline"][-1]
        return is_look and statuses(db).get("charge") == "completed"

    return matches


def looks_for_live_children(name: str, command: Any) -> bool:
    return name == "aggregate" and "$nin" in command["pipeline"][0].get("$match", {}).get("status", ())


def drained_beside_late_news(mongod: EmbeddedServer, db: Database, run: Run, workers: Workers, name: str) -> int:
    """How many runs a drain completes beside a parent whose look for the end of the charge is held up.

    It is held up until the drain has looked whether the children are live, and half a second more: the drain must go on
    waiting after its look.
    """
    holding, looking, looked = Interceptor(), Interceptor(), threading.Event()
    holding.before(reads_ended_child(db), lambda: looked.wait(30))
    looking.before(looks_for_live_children, threading.Timer(0.5, looked.set).start)
    completed: list[int] = []

    async def main() -> None:
        with MongoClient[Any](mongod.uri, event_listeners=[holding, looking]) as client:
            async with SchedulerOpener(client[db.name])(workers, shutdown_timeout=0) as scheduler:
                await scheduler.enqueue(name)
                try:
                    with anyio.fail_after(50):
                        completed.append((await drain(scheduler)).completed)
                finally:
                    looked.set()

    run(main)
    return completed[0]


def test_drain_waits_for_a_parent_whose_last_child_has_ended(mongod: EmbeddedServer, db: Database, run: Run) -> None:
    assert drained_beside_late_news(mongod, db, run, workers_of_orders([None]), "order") == 3


def test_drain_ends_only_after_a_parent_whose_child_has_failed(db: Database, run: Run) -> None:
    workers = Workers()

    @workers.register("order", max_attempts=1)
    async def order(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("reserve")
            await nursery.start("reserve", delay=3600)
            await nursery.start("charge")

    @workers.register("reserve")
    async def reserve(_: RunningJob[Any]) -> None:
        await anyio.sleep_forever()

    @workers.register("charge")
    async def charge(_: RunningJob[Any]) -> None:
        raise Discard("the card has expired")

    async def main() -> None:
        async with SchedulerOpener(db)(workers, shutdown_timeout=0) as scheduler:
            await scheduler.enqueue("order")
            with anyio.fail_after(50):
                await drain(scheduler)
            assert statuses(db) == {"order": "failed", "reserve": "cancelled", "charge": "failed"}

    run(main)


def test_drain_waits_for_work_beside_a_wait(db: Database, run: Run) -> None:
    """A task of the parent waits for a child that is due later, and the one that opened the block works."""
    steps: list[str] = []
    workers = Workers()

    @workers.register("order")
    async def order(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(nursery.run, "charge", delay=3600))
            await anyio.sleep(1.5)
            steps.append("worked")

    @workers.register("charge")
    async def charge(_: RunningJob[Any]) -> None: ...

    async def main() -> None:
        async with SchedulerOpener(db)(workers, shutdown_timeout=0) as scheduler:
            await scheduler.enqueue("order")
            # Only a wait of the task that opened the block is known to be all that the parent does.
            with anyio.fail_after(50), pytest.raises(AssertionError, match="not drained within 3 s: order"):
                await drain(scheduler, within=3)
            assert steps == ["worked"]

    run(main)


def test_drain_waits_for_what_a_parent_does_next_beside_a_child_that_is_due_later(
    mongod: EmbeddedServer, db: Database, run: Run
) -> None:
    """The end of one child is on its way while another one is live."""
    workers = workers_of_orders([None, None])

    @workers.register("shipment")
    async def shipment(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("reserve", delay=3600)
            await nursery.run("charge")
            await nursery.run("charge", "again")

    assert drained_beside_late_news(mongod, db, run, workers, "shipment") == 2
