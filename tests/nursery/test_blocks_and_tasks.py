"""Blocks in several tasks, blocks within blocks, and tasks that start children beside or around a block."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.nursery.flows import Flow, live, only, run_parent, statuses
from trio_monque import JobNursery, JobNurseryError, RunningJob, open_job_nursery
from trio_monque.errors import MonqueError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, crash, quiesce


@pytest.mark.parametrize("fails", [False, True])
async def test_blocks_in_two_tasks_with_keys_go_on_after_a_kill(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, fails: bool
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        got: dict[str, Any] = {}

        async def block(key: str, data: list[Any]) -> None:
            try:
                async with open_job_nursery(job, key=key) as nursery:
                    children = await nursery.map("child", data)
                got[key] = [child.result for child in children]
            except JobNurseryError:
                got[key] = "failed"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(block, "a", [1, "fail" if fails else 200])
            tasks.start_soon(block, "b", [2, 300])
        return got

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as killed:
        parent = await killed.enqueue("parent")
        await trio.sleep(50)
        assert killed.statistics().parked == 1
        await quiesce()
        await crash(killed)
        async with open_test_scheduler(flow.workers) as scheduler:
            ended = await scheduler.wait_job(parent)
    assert ended.result == {"a": "failed" if fails else [1, 200], "b": [2, 300]}
    assert flow.runs["2"] == 1
    assert live(jobs) == 0


async def test_blocks_in_two_tasks_without_keys_are_an_error_and_end_what_was_started(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    said: list[str] = []

    async def body(job: RunningJob[Any]) -> None:
        async def block(after: float) -> None:
            await trio.sleep(after)
            try:
                async with open_job_nursery(job) as nursery:
                    await nursery.start("child", 100)
            except MonqueError as error:
                said.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(block, 0)
            tasks.start_soon(block, 10)

    await run_parent(open_test_scheduler, Flow(body))
    (error,) = said
    assert "in another task" in error
    assert statuses(jobs) == {"completed": 1}


async def test_block_within_a_block_fails_without_the_outer_one_if_its_error_is_handled(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as outer:
            slow = await outer.start("child", 300)
            try:
                async with open_job_nursery(job) as inner:
                    await inner.map("child", ["fail", 5000])
            except JobNurseryError as failed:
                return [len(failed.jobs), await slow.wait()]
        return None

    flow = Flow(body)
    assert (await run_parent(open_test_scheduler, flow)).result == [1, 300]
    assert statuses(jobs) == {"completed": 1, "failed": 1, "cancelled": 1}


async def test_failure_of_the_outer_block_ends_the_inner_one(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job) as outer:
                await outer.start("child", "fail", delay=50)
                async with open_job_nursery(job) as inner:
                    await inner.map("child", [5000, 6000])
        except JobNurseryError as failed:
            return [job.data for job in failed.jobs], live(jobs)
        return None

    assert (await run_parent(open_test_scheduler, Flow(body))).result == [["fail"], 0]
    assert only(jobs)["scopeFailed" if "scopeFailed" in only(jobs) else "status"] == "completed"


async def test_children_are_started_by_tasks_beside_the_body(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Also while the body waits for other children. The block waits for all that start before its body ends."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery, anyio.create_task_group() as tasks:

            async def more(number: int) -> None:
                first = await nursery.run("child", number)
                await nursery.start("child", first * 10)

            for number in (1, 2, 3):
                tasks.start_soon(more, number)
        return sorted([child.result async for child in nursery.as_completed()])

    ended = await run_parent(open_test_scheduler, Flow(body))
    assert ended.result == [1, 2, 3, 10, 20, 30]


async def test_task_around_a_failed_block_starts_nothing_of_it(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N11: the block cannot cancel this task, and the body may take its time to clean up."""
    said: list[str] = []
    lived: list[int] = []

    async def body(job: RunningJob[Any]) -> None:
        async def around(nursery: JobNursery) -> None:
            await trio.sleep(50)
            with pytest.raises(MonqueError, match="has ended") as caught:
                await nursery.start("child", "ship")
            said.append(str(caught.value))

        async with anyio.create_task_group() as tasks:
            with pytest.raises(JobNurseryError):
                async with open_job_nursery(job) as nursery:
                    tasks.start_soon(around, nursery)
                    await nursery.start("child", "fail")
                    try:
                        await trio.sleep_forever()
                    finally:
                        with anyio.CancelScope(shield=True):
                            await trio.sleep(100)
            lived.append(live(jobs))

    flow = Flow(body)
    await run_parent(open_test_scheduler, flow)
    assert lived == [0]
    assert len(said) == 1
    assert flow.runs == {"fail": 1}


async def test_task_around_a_block_that_starts_many_while_it_ends_starts_none_behind_it(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """The block checks their data in parts, and may end before it has checked all."""
    said: list[str] = []

    async def body(job: RunningJob[Any]) -> None:
        async def around(nursery: JobNursery) -> None:
            with pytest.raises(MonqueError, match="has ended") as caught:
                await nursery.map("child", range(5_000))
            said.append(str(caught.value))

        async with anyio.create_task_group() as tasks:
            async with open_job_nursery(job) as nursery:
                tasks.start_soon(around, nursery)
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()

    await run_parent(open_test_scheduler, Flow(body))
    assert len(said) == 1
    assert jobs.count_documents({"name": "child"}) == 0
