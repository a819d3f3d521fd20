"""A block of a job nursery in one run of its handler: what it waits for, and how results come."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.nursery.flows import Flow, nothing, only, run_parent, statuses
from trio_monque import JobFailedError, JobNursery, RunningJob, Snooze, Workers, open_job_nursery
from trio_monque.errors import MonqueError, PayloadTooLargeError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, drain


@pytest.mark.full
async def test_block_waits_for_the_longest_child_exactly(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        began = trio.current_time()
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", [3600, 7200, 10800])
            assert not any(child.has_ended for child in children)
            with pytest.raises(MonqueError, match="has not ended"):
                _ = children[0].result
        return [trio.current_time() - began, [child.result for child in children]]

    async with open_test_scheduler(Flow(body).workers, lock_timeout=None) as scheduler:
        parent = await scheduler.enqueue("parent")
        result = (await scheduler.wait_job(parent)).result
    assert result == [pytest.approx(10800, abs=0.5), [3600, 7200, 10800]]
    assert statuses(jobs) == {"completed": 3}
    assert "ownScope" not in only(jobs), "it lives as long as the work"


async def test_results_arrive_as_children_end_and_from_run_and_wait(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            first = await nursery.run("child", "at once")
            waited = await (await nursery.start("child", 5)).wait()
            await nursery.map("child", [30, 10, 20])
            order = [child.result async for child in nursery.as_completed()]
        return [first, waited, order]

    assert (await run_parent(open_test_scheduler, Flow(body))).result == ["at once", 5, ["at once", 5, 10, 20, 30]]


async def test_children_store_results_even_if_their_worker_does_not(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("quiet", store_result=False, max_attempts=1)
    async def quiet(job: RunningJob[Any]) -> Any:
        return object() if job.data == "odd" else "said"

    @workers.register("parent", store_result=True, max_attempts=1)
    async def parent(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job, fail="keep") as nursery:
            said, odd = await nursery.map(quiet, [None, "odd"])
        assert isinstance(odd.error, JobFailedError)
        return [said.result, odd.error.job.fail_reason]

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue(parent)
        said, reason = (await scheduler.wait_job(job)).result
    assert said == "said"
    assert "result" in reason


async def test_child_has_the_meta_of_its_parent_unless_it_is_given_one(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "own", meta={"tenant": "b"})
            await nursery.start("child", "inherited")

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        await scheduler.enqueue("parent", meta={"tenant": "a"})
        await drain(scheduler)
    metas = {one["data"]: one["meta"] for one in jobs.find({"name": "child"})}
    assert metas == {"own": {"tenant": "b"}, "inherited": {"tenant": "a"}}


async def test_plain_handler_opens_a_block_by_from_thread(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    flow = Flow(nothing)
    workers.register("child", flow.child)

    @workers.register("parent", store_result=True)
    def parent(job: RunningJob[Any]) -> Any:
        async def block() -> list[Any]:
            async with open_job_nursery(job) as nursery:
                children = await nursery.map("child", [1, 100])
            return [child.result for child in children]

        return job.from_thread(block)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue(parent)
        await trio.sleep(50)
        assert scheduler.statistics().parked == 1
        assert (await scheduler.wait_job(job)).result == [1, 100]


async def test_nothing_is_started_after_the_block(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        kept: list[JobNursery] = []
        async with open_job_nursery(job) as nursery:
            kept.append(nursery)
        with pytest.raises(MonqueError, match="has ended"):
            await kept[0].start("child", 1)

    await run_parent(open_test_scheduler, Flow(body))
    assert jobs.count_documents({"name": "child"}) == 0


async def test_waits_end_when_the_block_is_left_without_its_children(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    said: list[str] = []

    async def body(job: RunningJob[Any]) -> None:
        waits = []
        try:
            async with open_job_nursery(job) as nursery:
                waits += [(await nursery.start("child", 100)).wait, nursery.as_completed().__anext__]
                raise Snooze(after=5)
        except Snooze:
            for wait in waits:
                with pytest.raises(MonqueError) as raised:
                    await wait()
                said.append(str(raised.value))

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        ended = await scheduler.wait_job(await scheduler.enqueue("parent"))
        assert ended.status == "completed"
    assert ["block was left" in said[0], "nursery has ended" in said[1]] == [True, True]


async def test_results_and_data_that_are_too_large_are_errors_of_the_child_and_of_the_start(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def huge(job: RunningJob[Any]) -> str:
        return "x" * 17_000_000

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job, fail="keep") as nursery:
            with pytest.raises(PayloadTooLargeError):
                await nursery.start("child", "x" * 17_000_000)
            child = await nursery.start("huge")
        assert isinstance(child.error, JobFailedError)
        return child.error.job.fail_reason

    flow = Flow(body)
    flow.workers.register("huge", huge, max_attempts=1)
    ended = await run_parent(open_test_scheduler, flow)
    assert "result" in str(ended.result)
    assert statuses(jobs, "child") == {}


async def test_wait_for_the_next_end_goes_on_when_a_start_beside_it_fails(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        seen: list[Any] = []
        async with open_job_nursery(job) as nursery, anyio.create_task_group() as tasks:
            await nursery.run("child", "a")
            jobs.database.command("collMod", jobs.name, validator={"data": {"$ne": "refused"}})

            async def refused() -> None:
                with pytest.raises(MonqueError):
                    await nursery.start("child", "refused")

            tasks.start_soon(refused)
            for _ in range(3):  # Until that start is on its way.
                await anyio.lowlevel.checkpoint()
            with anyio.move_on_after(1000) as waited:
                seen += [child.result async for child in nursery.as_completed()]
        return [seen, waited.cancelled_caught]

    assert (await run_parent(open_test_scheduler, Flow(body))).result == [["a"], False]
