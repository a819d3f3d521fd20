"""`job.step`: a handler decides once for all its runs."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

from tests.nursery.flows import Flow, killed_and_run_again, only, run_parent
from trio_monque import JobNurseryError, RunningJob, Workers, open_job_nursery
from trio_monque.errors import InvalidOptionError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import NoDatabaseError, SchedulerOpener, run_job


async def test_step_is_called_once_and_its_result_is_that_of_all_runs(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    calls: list[Any] = []

    async def body(job: RunningJob[Any]) -> Any:
        async def fetch(of: str) -> tuple[str, int]:
            calls.append(of)
            return of, len(calls)

        def plain() -> int:
            calls.append("plain")
            return 7

        first = await job.step("a.$b", fetch, "x")
        second = await job.step("plain", plain)
        if job.attempt == 1:
            await trio.sleep_forever()
        return [first, second]

    flow = Flow(body)
    async with killed_and_run_again(open_test_scheduler, flow) as parent:
        assert parent.result == [["x", 1], 7]
    assert calls == ["x", "plain"]
    assert not {"steps", "ownScope", "scopeTry"} & only(jobs).keys(), "kept as a checkpoint is"


async def test_step_that_raises_is_called_again_by_the_next_attempt(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    calls: list[int] = []

    async def body(job: RunningJob[Any]) -> Any:
        def flaky() -> int:
            calls.append(job.attempt)
            if job.attempt == 1:
                raise OSError
            return 5

        return await job.step("s", flaky)

    assert (await run_parent(open_test_scheduler, Flow(body))).result == 5
    assert calls == [1, 2]


async def test_steps_and_blocks_share_the_scope(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        names = await job.step("names", lambda: ["a", "b"])
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", names)
        more = await job.step("more", lambda: 3)
        return [[child.result for child in children], more]

    assert (await run_parent(open_test_scheduler, Flow(body))).result == [["a", "b"], 3]


async def test_long_step_does_not_delay_a_block_in_another_task(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """It delays neither the opening of a block, nor the record of a failed child."""

    async def body(job: RunningJob[Any]) -> Any:
        async def slow() -> str:
            await trio.sleep(1000)
            return "slow"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(job.step, "slow", slow)
            await trio.sleep(1)
            began = trio.current_time()
            with pytest.raises(JobNurseryError):
                async with open_job_nursery(job, key="a") as nursery:
                    await nursery.map("child", ["fail", 5000])
            took = trio.current_time() - began
        return [took, await job.step("slow", slow)]

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        took, stored = (await scheduler.wait_job(await scheduler.enqueue("parent"))).result
    assert took < 100
    assert stored == "slow"


async def test_step_may_open_a_block(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async def gathered() -> list[Any]:
            async with open_job_nursery(job) as nursery:
                children = await nursery.map("child", [1, 2])
            return [child.result for child in children]

        return await job.step("gathered", gathered)

    assert (await run_parent(open_test_scheduler, Flow(body))).result == [1, 2]


async def test_keys_of_steps_are_checked(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    async def body(job: RunningJob[Any]) -> None:
        wrong: Any
        for wrong in ("", 3, "a\0b", "x" * 2000):
            with pytest.raises(InvalidOptionError):
                await job.step(wrong, lambda: 1)

    await run_parent(open_test_scheduler, Flow(body))


async def test_without_a_database_steps_work_and_nurseries_do_not() -> None:
    workers = Workers()

    @workers.register("steps")
    async def steps(job: RunningJob[Any]) -> Any:
        first = await job.step("a", lambda: (1, 2))
        return [first, await job.step("a", lambda: 9)]

    @workers.register("nursery")
    async def nursery(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job):
            pass

    assert (await run_job(steps)).value == [[1, 2], [1, 2]]
    with pytest.raises(NoDatabaseError, match="open_job_nursery"):
        await run_job(nursery)
