"""Later runs of a handler with job nurseries: after a crash, a lost claim, a shutdown, or a change of the handler."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.nursery.flows import Flow, killed_and_run_again, live, only, report, run_parent, statuses, taken_back
from trio_monque import JobNurseryError, RunningJob, Snooze, open_job_nursery
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, drain


async def test_killed_handler_goes_on_where_it_was(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            first = await nursery.run("child", "first")
            slow, other = await nursery.start("child", 500), await nursery.start("child", "other")
        return [first, slow.result, other.result]

    flow = Flow(body)
    async with killed_and_run_again(open_test_scheduler, flow) as parent:
        assert parent.result == ["first", 500, "other"]
    assert flow.attempts == [1, 2]
    assert flow.runs == {"first": 1, "500": 2, "other": 1}, "only what had died with the process runs again"
    assert live(jobs) == 0


async def test_failed_child_stays_failed_for_the_next_run_of_the_same_try(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N11 and N12: otherwise the handler undoes the order, is killed, and then finds that all children completed."""
    undone: list[Any] = []

    async def body(job: RunningJob[Any]) -> str:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.start("child", 300)
                if job.attempt == 1:
                    await trio.sleep(5)  # The next run finds the failure before it has started all children.
                await nursery.start("child", "fail" if job.attempt == 1 else "well", key="charge")
        except JobNurseryError as failed:
            undone.append((job.attempt, *(one.fail_reason for one in failed.jobs)))
            if job.attempt == 1:
                await trio.sleep_forever()  # Killed here.
            return "undone"
        return "shipped"

    flow = Flow(body)
    async with killed_and_run_again(open_test_scheduler, flow, at=60) as parent:
        assert parent.result == "undone"
    assert undone == [(1, "it was told to"), (2, "it was told to")]
    assert flow.runs["fail"] == 1
    assert flow.runs["well"] == 0


async def test_snooze_leaves_the_children_to_the_next_run(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            child = await nursery.start("child", 100)
            if job.attempt == 1:
                raise Snooze(after=10)
        return child.result

    flow = Flow(body)
    assert (await run_parent(open_test_scheduler, flow)).result == 100
    assert flow.runs == {"100": 1}
    assert only(jobs)["failCount"] == 0


async def test_shutdown_leaves_the_children_to_the_next_run(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", [500, 600])
        return [child.result for child in children]

    flow = Flow(body)
    async with open_test_scheduler(flow.only_children):
        async with open_test_scheduler(flow.only_parents, shutdown_timeout=5) as scheduler:
            parent = await scheduler.enqueue("parent")
            await trio.sleep(10)
        assert only(jobs)["status"] == "pending"
        assert live(jobs) == 2
        async with open_test_scheduler(flow.only_parents) as scheduler:
            assert (await scheduler.wait_job(parent)).result == [500, 600]
    assert flow.runs == {"500": 1, "600": 1}
    assert only(jobs)["failCount"] == 0


async def test_stale_run_does_no_harm(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Another program takes back the claim of a run, which goes on for a while. The next run has the children."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", [200, 300])
            if job.attempt == 1:
                taken_back(jobs)
        return [child.result for child in children]

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as first, open_test_scheduler(flow.workers):
        parent = await first.enqueue("parent")
        assert (await first.wait_job(parent)).result == [200, 300]
    assert flow.runs == {"200": 1, "300": 1}
    assert statuses(jobs) == {"completed": 2}


async def test_children_that_a_changed_handler_does_not_ask_for_are_cancelled(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            wanted = [800, 900] if job.attempt == 1 else [800]
            children = await nursery.map("child", wanted)
        assert live(jobs) == 0
        return [child.result for child in children]

    flow = Flow(body)
    async with killed_and_run_again(open_test_scheduler, flow) as parent:
        assert parent.result == [800]
    assert "1 children of block '0'" in caplog.text
    assert statuses(jobs) == {"completed": 1, "cancelled": 1}


async def test_handler_that_returns_without_its_block_leaves_no_child_alive(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> str:
        if job.attempt == 2:
            return "another way"
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [800, 900])
        return "by its block"

    flow = Flow(body)
    async with killed_and_run_again(open_test_scheduler, flow) as parent:
        assert parent.result == "another way"
        assert live(jobs) == 0
    assert statuses(jobs) == {"cancelled": 2}


async def test_recurring_parent_begins_anew_with_each_occurrence(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    flow = Flow(report)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.schedule("*/10 * * * *", "parent", unique_key="k")
        await trio.sleep(3 * 600 + 60)
    # Three; or four if the test began just before an occurrence.
    assert flow.runs["report"] == len(flow.attempts) >= 3
    assert "ownScope" not in only(jobs)


@pytest.mark.parametrize("when", ["pending", "running"])
async def test_replaced_data_begin_anew(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, when: str
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            got = await nursery.run("child", "same")
            if when == "pending" and job.data == "old":
                raise OSError
            await trio.sleep(50)
        return got

    flow = Flow(body, backoff=1000)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent", "old", unique_key="k")
        await trio.sleep(10)
        await scheduler.enqueue("parent", "new", unique_key="k", on_conflict="replace")
        await drain(scheduler)
        await trio.sleep(200)
        assert (await scheduler.wait_job(parent)).result == "same"
    assert flow.runs["same"] == 2, "the data are others, so the work is another one"
