"""Starts whose answer is lost, and errors of the database in a block."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.nursery.flows import Flow, live, run_parent, statuses
from trio_monque import RunningJob, open_job_nursery
from trio_monque.errors import MonqueConnectionError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, fail_next


@pytest.mark.full
@pytest.mark.parametrize("when", ["before", "after"])
async def test_start_whose_answer_is_lost_once_finds_its_child(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, when: Any
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        with fail_next(job.scheduler, AutoReconnect("lost"), when=when, command="^start children$"):
            async with open_job_nursery(job) as nursery:
                children = await nursery.map("child", [1, 2, 3])
        return [child.result for child in children]

    flow = Flow(body)
    assert (await run_parent(open_test_scheduler, flow)).result == [1, 2, 3]
    assert flow.runs == {"1": 1, "2": 1, "3": 1}


@pytest.mark.full
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("catches", [True, False])
async def test_start_without_an_answer_is_made_impossible_before_the_block_is_left(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    when: Any,
    catches: bool,
) -> None:
    ids: list[Any] = []

    async def body(job: RunningJob[Any]) -> str:
        try:
            async with open_job_nursery(job) as nursery:
                commands = "^(start|look for) children$"
                with fail_next(job.scheduler, AutoReconnect("lost"), when=when, command=commands, times=2):
                    try:
                        await nursery.start("child", 5000, key="k")
                    except MonqueConnectionError:
                        if not catches:
                            raise
        except* MonqueConnectionError:
            assert not catches
        assert live(jobs) == 0
        ids.extend(jobs.distinct("_id", {"name": "child"}))
        return "left"

    flow = Flow(body, max_attempts=1)
    assert (await run_parent(open_test_scheduler, flow)).result == "left"
    assert len(ids) == 1, "its id is taken, so that an insert that comes late stores nothing"
    assert statuses(jobs) == {"cancelled": 1}


@pytest.mark.parametrize(
    "command", ["cancel children", "look for live children", "make sure that children are not started any more"]
)
async def test_fault_while_a_block_is_ended_is_tried_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, command: str
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        with fail_next(job.scheduler, AutoReconnect("away"), command=f"^{command}$", times=3):
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", [5000, 6000])
                await trio.sleep(1)
                with fail_next(job.scheduler, AutoReconnect("lost"), command="^start children$", times=2):
                    await nursery.start("child", 7000)

    flow = Flow(body, max_attempts=1)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await trio.sleep(300)
        assert live(jobs) == 0
    assert statuses(jobs) == {"cancelled": 3}


@pytest.mark.parametrize("ends", ["by an error", "by its children"])
async def test_fault_where_deaths_are_counted_anew_does_not_end_the_block(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, ends: str
) -> None:
    """The next wait resets the count. If the error were raised, children would outlive the block."""
    lived: list[int] = []
    faults: list[Any] = []
    left = "left by (KeyError(),)" if ends == "by an error" else "left"

    async def body(job: RunningJob[Any]) -> str:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.start("child", 50)
                await trio.sleep(1)
                faults.append(fail_next(job.scheduler, AutoReconnect("away"), command="^report on the job$"))
                if ends == "by an error":
                    raise KeyError
        except ExceptionGroup as group:
            lived.append(live(jobs))
            return f"left by {group.exceptions!r}, {faults[0].happened}"
        return f"left, {faults[0].happened}"

    flow = Flow(body, max_attempts=1)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent", delay=10)
        jobs.update_one({"name": "parent"}, {"$set": {"rescues": 1}})
        assert (await scheduler.wait_job(parent)).result == f"{left}, True"
    assert lived == ([0] if ends == "by an error" else [])
