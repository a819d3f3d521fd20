"""Cancellation of a block by its handler, by a scope around it, or by a user: its children end with it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.nursery.flows import Flow, live, only, run_parent, statuses
from trio_monque import RunningJob, open_job_nursery
from trio_monque.client.opening_nurseries import BLOCK_TRACE
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance


async def test_cancel_scope_gives_up_the_rest(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> str:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [10_000, 20_000])
            nursery.cancel_scope.cancel()
            await anyio.sleep_forever()
        assert live(jobs) == 0
        return "gave up"

    assert (await run_parent(open_test_scheduler, Flow(body))).result == "gave up"


async def test_cancelled_children_end_at_once_in_virtual_time(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> float:
        began = trio.current_time()
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [1000, 2000])
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        return trio.current_time() - began

    assert (await run_parent(open_test_scheduler, Flow(body))).result == pytest.approx(10, abs=0.5)


async def test_scope_of_the_caller_around_the_block_ends_it_with_its_children(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> str:
        with anyio.move_on_after(50) as scope:
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", [10_000, 20_000])
        assert scope.cancelled_caught
        assert live(jobs) == 0
        return "too long"

    assert (await run_parent(open_test_scheduler, Flow(body))).result == "too long"
    assert statuses(jobs) == {"cancelled": 2}


async def test_cancellation_in_the_middle_of_a_start_leaves_nothing_alive(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    left: list[Any] = []

    async def body(job: RunningJob[Any]) -> None:
        try:
            async with open_job_nursery(job) as nursery, anyio.create_task_group() as tasks:
                tasks.start_soon(nursery.map, "child", range(3_000))
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        finally:
            left.append((job.cancel_reason, live(jobs)))

    async with open_test_scheduler(Flow(body).only_parents) as scheduler:
        await scheduler.wait_job(await scheduler.enqueue("parent"))
        await advance(100)
    assert left == [(None, 0)]
    assert live(jobs) == 0


@pytest.mark.parametrize("by", ["user", "body"])
async def test_span_of_a_block_that_is_cancelled_ends(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, by: str
) -> None:
    ends: list[BaseException | None] = []

    async def body(job: RunningJob[Any]) -> None:
        BLOCK_TRACE.set(lambda _: ends.append)
        with trio.move_on_after(5 if by == "body" else 10_000):
            async with open_job_nursery(job) as nursery:
                await nursery.start("child", 5000)

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await advance(50)
        if by == "user":
            await scheduler.cancel_job(parent.id)
        await advance(100)
    assert only(jobs)["status"] == ("cancelled" if by == "user" else "completed")
    assert len(ends) == 1
