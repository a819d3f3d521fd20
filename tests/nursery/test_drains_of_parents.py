"""A drain does not wait for parents whose children it does not start: it releases them, and their next runs go on.

Nor does the `drain` of the testing kit, which leaves them as they are.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.nursery.flows import Flow, live, only, statuses
from trio_monque import RunningJob, open_job_nursery
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, drain, now, quiesce

SOON = 5.0
"""Seconds that a drain takes which waits for nothing: far less than its `shutdown_timeout`."""


async def two_children(job: RunningJob[Any]) -> Any:
    async with open_job_nursery(job) as nursery:
        children = await nursery.map("child", [500, 600])
    return [child.result for child in children]


@pytest.mark.parametrize("shutdown_timeout", [0.0, 3600.0, math.inf])
async def test_waiting_parent_is_released_at_once_and_its_next_run_goes_on(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, shutdown_timeout: float
) -> None:
    flow = Flow(two_children)
    async with open_test_scheduler(flow.only_children):
        async with open_test_scheduler(flow.only_parents, shutdown_timeout=shutdown_timeout) as scheduler:
            parent = await scheduler.enqueue("parent")
            await trio.sleep(10)
            drained = trio.current_time()
        assert trio.current_time() - drained < SOON
        assert only(jobs)["status"] == "pending"
        assert live(jobs) == 2
        async with open_test_scheduler(flow.only_parents) as scheduler:
            assert (await scheduler.wait_job(parent)).result == [500, 600]
    assert flow.runs == {"500": 1, "600": 1}
    assert only(jobs)["failCount"] == 0


async def test_parent_completes_in_the_drain_if_its_last_child_does(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    flow = Flow(two_children)
    async with open_test_scheduler(flow.workers, shutdown_timeout=3600) as scheduler:
        await scheduler.enqueue("parent")
        await trio.sleep(10)
    assert only(jobs)["status"] == "completed"
    assert flow.attempts == [1]


async def test_parent_is_released_when_what_runs_beside_it_has_ended(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def waits_for_later(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "late", delay=5000)

    flow = Flow(waits_for_later)
    async with open_test_scheduler(flow.workers, shutdown_timeout=3600) as scheduler:
        await scheduler.enqueue("parent")
        other = await scheduler.enqueue("child", 300)
        await trio.sleep(100)
        drained = trio.current_time()
    assert 200 <= trio.current_time() - drained < 200 + SOON
    assert jobs.count_documents({"_id": other.id, "status": "completed"}) == 1
    assert only(jobs)["status"] == "pending"


async def test_parent_that_begins_to_wait_in_the_drain_is_released(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def works_first(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await trio.sleep(100)
            await nursery.start("child", "never started here")

    flow = Flow(works_first)
    async with open_test_scheduler(flow.workers, shutdown_timeout=3600) as scheduler:
        await scheduler.enqueue("parent")
        await trio.sleep(50)
        await quiesce()
        drained = trio.current_time()
    assert 50 <= trio.current_time() - drained < 50 + SOON
    assert statuses(jobs, "child") == statuses(jobs, "parent") == {"pending": 1}
    assert flow.attempts == [1]


async def test_parent_whose_wait_has_just_ended_works_on(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def works_afterwards(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.run("child", 10.5)
            await trio.sleep(100)

    flow = Flow(works_afterwards)
    async with open_test_scheduler(flow.only_children):
        async with open_test_scheduler(flow.only_parents, shutdown_timeout=3600) as scheduler:
            await scheduler.enqueue("parent")
            await trio.sleep(10)
            await quiesce()
            assert scheduler.statistics().parked == 1
            drained = trio.current_time()
        assert trio.current_time() - drained > 100
    assert only(jobs)["status"] == "completed"
    assert flow.attempts == [1]


async def test_many_waiting_parents_are_released_together(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    flow = Flow(two_children)
    async with open_test_scheduler(flow.only_parents, concurrency=1, shutdown_timeout=math.inf) as scheduler:
        for _ in range(10):
            await scheduler.enqueue("parent")
        await trio.sleep(10)
        await quiesce()
        assert scheduler.statistics().parked == 10
    assert statuses(jobs, "parent") == {"pending": 10}
    assert statuses(jobs, "child") == {"pending": 20}


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
