"""`drain` of the testing kit in virtual time, beside parents that wait for children."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import trio
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.nursery.flows import Flow, statuses
from tests.support.store import handle, insert
from trio_monque import RunningJob, open_job_nursery
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, drain, fail_next, now


async def test_drain_of_a_test_leaves_waiting_parents_as_they_are_and_takes_no_time(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def waits_for_both(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "at once")
            await nursery.start("child", "later", delay=3600)

    flow = Flow(waits_for_both)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        began = trio.current_time()
        assert (await drain(scheduler)).completed == 1
        assert trio.current_time() == began
        assert statuses(jobs, "parent") == {"processing": 1}
        assert (await drain(scheduler, until=now() + timedelta(hours=1))).completed == 2
        assert trio.current_time() == began + 3600


async def test_drain_of_a_test_ends_only_after_a_parent_whose_child_has_failed(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Its block cancels a child that runs and one that is due later, and waits for their ends."""

    async def has_a_child_that_fails(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", 10_000)
            await nursery.start("child", "later", delay=3600)
            await nursery.start("child", "fail")

    flow = Flow(has_a_child_that_fails, max_attempts=1)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await drain(scheduler)
        assert statuses(jobs, "parent") == {"failed": 1}
        assert statuses(jobs) == {"failed": 1, "cancelled": 2}


async def test_drain_of_a_test_waits_for_a_parent_whose_look_for_ends_has_failed(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    flow = Flow(runs_one_child)
    async with open_test_scheduler(flow.workers) as scheduler:
        with fail_next(scheduler, AutoReconnect("connection closed"), command="look for the ends of jobs"):
            await scheduler.enqueue("parent")
            await drain(scheduler)
        assert statuses(jobs, "parent") == statuses(jobs) == {"completed": 1}


async def test_drain_of_a_test_waits_for_work_beside_a_wait(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    steps: list[str] = []

    async def works_beside_a_wait(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery, trio.open_nursery() as tasks:
            tasks.start_soon(partial(nursery.run, "child", "later", delay=600))
            await trio.sleep(100)
            steps.append("worked")

    flow = Flow(works_beside_a_wait)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await drain(scheduler)
        assert steps == ["worked"]


async def test_drain_of_a_test_waits_for_work_in_another_block_of_the_parent(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    steps: list[str] = []

    async def has_two_blocks(job: RunningJob[Any]) -> None:
        async def waits() -> None:
            async with open_job_nursery(job, key="waits") as nursery:
                await nursery.start("child", "later", delay=600)

        async with trio.open_nursery() as tasks, open_job_nursery(job, key="works") as nursery:
            tasks.start_soon(waits)
            await nursery.run("child", "at once")
            await trio.sleep(100)
            steps.append("worked")

    flow = Flow(has_two_blocks)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        began = trio.current_time()
        await drain(scheduler)
        assert steps == ["worked"]
        assert trio.current_time() == began + 100, "the other block waits, and did before"


async def test_drain_of_a_test_leaves_a_parent_in_which_several_tasks_wait(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def waits_in_two_tasks(job: RunningJob[Any]) -> None:
        async with trio.open_nursery() as tasks, open_job_nursery(job) as nursery:
            tasks.start_soon(partial(nursery.run, "child", "later", delay=600))
            await trio.sleep(100)

    flow = Flow(waits_in_two_tasks)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        began = trio.current_time()
        await drain(scheduler)
        assert statuses(jobs, "parent") == {"processing": 1}
        assert trio.current_time() == began + 100, "the body of the block has waited since, for the child"


async def test_drain_of_a_test_waits_for_what_another_program_has_enqueued(
    open_test_scheduler: SchedulerOpener, db: Database, autojump_clock: MockClock
) -> None:
    """It finds the job only when it looks, and then waits for the end of its handler."""
    flow = Flow(runs_one_child)
    async with open_test_scheduler(flow.workers) as scheduler:
        await drain(scheduler)  # Nothing is due: the scheduler does not look before the next poll.
        insert(handle(db), "child", data=100)
        began = trio.current_time()
        assert (await drain(scheduler)).completed == 1
        assert trio.current_time() == began + 100


async def runs_one_child(job: RunningJob[Any]) -> Any:
    async with open_job_nursery(job) as nursery:
        return await nursery.run("child", "at once")
