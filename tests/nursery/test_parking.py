"""A run that waits for its children does not occupy a slot, and survives deployments, deaths and time limits."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.nursery.flows import Flow, only, statuses
from tests.support.rescues import LEASE, PASS
from trio_monque import NewJob, RunningJob, Workers, open_job_nursery
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, crash, quiesce


@pytest.mark.full
async def test_many_parents_complete_on_one_slot(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            return await nursery.run("child", job.data)

    flow = Flow(body)
    async with open_test_scheduler(flow.workers, concurrency=1) as scheduler:
        parents = [await scheduler.enqueue("parent", number / 10) for number in range(30)]
        ended = await scheduler.wait_jobs(parents)
        assert scheduler.statistics().running == 0
    assert [job.result for job in ended] == [number / 10 for number in range(30)]


@pytest.mark.full
async def test_parked_runs_hold_no_slot_and_do_not_count_as_unsettled(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", 10_000)

    flow = Flow(body)
    workers = Workers()
    workers.register("parent", flow.parent, concurrency=2)
    async with open_test_scheduler(workers, concurrency=2, lock_timeout=None) as scheduler:
        await scheduler.enqueue_many([NewJob("parent") for _ in range(450)])  # More than 4 x slots + 400.
        await trio.sleep(60)
        await quiesce()
        numbers = scheduler.statistics()
        assert (numbers.running, numbers.parked) == (0, 450)
        scheduler.drain()
    assert statuses(jobs, "parent") == {"pending": 450}


@pytest.mark.full
async def test_waiting_parent_outlives_its_lock_timeout_and_deployments(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            return await nursery.run("child", "late", delay=3 * 600)

    flow = Flow(body)
    async with open_test_scheduler(flow.workers, lock_timeout=600) as scheduler:
        parent = await scheduler.enqueue("parent")
        ended = await scheduler.wait_job(parent)
    assert ended.result == "late"
    assert ended.fail_count == 0
    assert len(flow.attempts) == 4
    assert flow.runs == {"late": 1}


async def test_own_time_limit_counts_while_it_waits(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", 1000)

    flow = Flow(body, timeout=100, max_attempts=1)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await trio.sleep(300)
        await quiesce()
    assert only(jobs)["status"] == "failed"
    assert "longer than 100 s" in only(jobs)["failReason"]
    assert statuses(jobs) == {"cancelled": 1}


async def test_kills_while_it_waits_do_not_fail_a_workflow(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            return await nursery.run("child", "late", delay=5000)

    flow = Flow(body)
    only_children = Workers()
    only_children.register("child", flow.child)
    async with open_test_scheduler(only_children, max_rescues=3, lock_timeout=None) as other:
        parent = await other.enqueue("parent")
        for _ in range(6):
            async with open_test_scheduler(flow.workers, max_rescues=3, lock_timeout=None) as killed:
                await trio.sleep(5)
                await quiesce()
                await crash(killed)
            await advance(LEASE + 2 * PASS)
        async with open_test_scheduler(flow.workers, max_rescues=3, lock_timeout=None) as scheduler:
            ended = await scheduler.wait_job(parent)
    assert (ended.result, ended.fail_count, ended.rescues) == ("late", 0, 0)
    assert flow.attempts == [1, 2, 3, 4, 5, 6, 7]


async def test_kills_in_the_body_still_fail_it(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job):
            await trio.sleep_forever()

    flow = Flow(body)
    async with open_test_scheduler(Workers(), max_rescues=1) as other:
        await other.enqueue("parent")
        for _ in range(2):
            async with open_test_scheduler(flow.workers) as killed:
                await trio.sleep(5)
                await quiesce()
                await crash(killed)
            await advance(LEASE + 2 * PASS)
    assert only(jobs)["status"] == "failed"


@pytest.mark.parametrize("waits", ["run", "as_completed", "leaving"])
async def test_slot_is_free_in_every_kind_of_wait_and_taken_again_after_it(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, waits: str
) -> None:
    running: list[int] = []

    async def body(job: RunningJob[Any]) -> None:
        def running_now() -> int:
            return job.scheduler.statistics().running_by_name.get("parent", 0)

        async with open_job_nursery(job) as nursery:
            child = await nursery.start("child", 100)
            running.append(running_now())
            if waits == "run":
                await child.wait()
                running.append(running_now())
            elif waits == "as_completed":
                running.extend([running_now() async for _ in nursery.as_completed()])
        running.append(running_now())

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await trio.sleep(50)
        assert scheduler.statistics().running_by_name.get("parent", 0) == 0
        assert scheduler.statistics().parked == 1
        await scheduler.wait_job(parent)
        assert scheduler.statistics().parked == 0
    assert running == [1] * len(running)


async def test_more_waiting_runs_than_allowed_are_put_back_uncounted(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            return await nursery.run("child", job.data)

    flow = Flow(body)
    async with open_test_scheduler(flow.workers, max_parked=2) as scheduler:
        parents = [await scheduler.enqueue("parent", 10 + number) for number in range(4)]
        await trio.sleep(5)
        await quiesce()
        assert scheduler.statistics().parked == 2
        assert statuses(jobs, "parent") == {"processing": 2, "pending": 2}
        assert statuses(jobs) == {"processing": 4}, "their children go on"
        ended = await scheduler.wait_jobs(parents)
    assert [job.result for job in ended] == [10, 11, 12, 13]
    assert [job.fail_count for job in ended] == [0] * 4
    assert flow.runs == {"10": 1, "11": 1, "12": 1, "13": 1}
    assert caplog.text.count("the most that max_parked allows") == 1


async def test_suspect_that_has_reached_its_wait_does_not_hold_up_others(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N20: it has reached its wait without killing the process. Otherwise only one suspect runs at a time."""
    ends: list[float] = []

    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.run("child", 100)
        await trio.sleep(100)
        ends.append(trio.current_time())

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        began = trio.current_time()
        parents = [await scheduler.enqueue("parent", number, delay=delay) for number, delay in enumerate((10, 20, 150))]
        jobs.update_many({"name": "parent"}, {"$set": {"rescues": 2}})
        await scheduler.wait_jobs(parents)
    assert [end - began for end in ends] == [pytest.approx(end, abs=5) for end in (210, 220, 350)]
