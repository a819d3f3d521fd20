"""`on_drain="release"`: a run that only waits is released when its scheduler shuts down, and no other run is."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel
from pymongo import MongoClient
from trio.testing import MockClock

from tests.nursery.flows import Body, Flow, only, statuses
from trio_monque import JobNurseryError, Monque, RunningJob, open_job_nursery
from trio_monque.errors import InvalidOptionError
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, quiesce

LIMIT = 50.0
"""The `shutdown_timeout` of these tests, in virtual seconds."""


async def seconds_to_end(open_test_scheduler: SchedulerOpener, body: Body, *, until: float = 0.0) -> float:
    """How long a scheduler that runs a parent with this body takes to shut down, `until` seconds after its start."""
    flow = Flow(body)
    async with open_test_scheduler(flow.workers, shutdown_timeout=LIMIT) as scheduler:
        await scheduler.enqueue("parent")
        await trio.sleep(until)
        await quiesce()
        began = trio.current_time()
    assert scheduler.report is not None
    assert scheduler.report.unfinished == ()
    return trio.current_time() - began


async def test_run_that_waits_is_released_at_once_and_the_next_one_goes_on(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job, on_drain="release") as nursery:
            child = await nursery.start("child", "later", delay=600)
        return child.result

    assert await seconds_to_end(open_test_scheduler, body) == pytest.approx(0, abs=0.1)
    parent = only(jobs)
    assert (parent["status"], parent["failCount"], statuses(jobs)) == ("pending", 0, {"pending": 1})
    async with open_test_scheduler(Flow(body).workers) as scheduler:
        assert (await scheduler.wait_job(parent["_id"])).result == "later"
    assert only(jobs)["attempts"] == 2


async def test_run_that_waits_in_its_body_is_released_too(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job, on_drain="release") as nursery:
            await nursery.run("child", "later", delay=3600)

    assert await seconds_to_end(open_test_scheduler, body) == pytest.approx(0, abs=0.1)
    assert statuses(jobs, "parent") == {"pending": 1}


async def test_run_that_works_is_released_only_when_it_waits(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    steps: list[str] = []

    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job, on_drain="release") as nursery:
            await nursery.start("child", "later", delay=3600)
            await trio.sleep(20)
            steps.append("worked")

    assert await seconds_to_end(open_test_scheduler, body, until=5) == pytest.approx(15, abs=0.1)
    assert steps == ["worked"]
    assert statuses(jobs, "parent") == {"pending": 1}


async def test_children_that_run_here_end_before_the_scheduler_does(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job, on_drain="release") as nursery:
            await nursery.start("child", 30)

    assert await seconds_to_end(open_test_scheduler, body, until=10) == pytest.approx(20, abs=0.5)
    assert (statuses(jobs, "parent"), statuses(jobs)) == ({"pending": 1}, {"completed": 1})


KEPT: dict[str, Any] = {}


def kept(body: Body) -> Body:
    KEPT[body.__name__] = body
    return body


@kept
async def without_the_option(job: RunningJob[Any]) -> None:
    async with open_job_nursery(job) as nursery:
        await nursery.start("child", "later", delay=3600)


@kept
async def one_of_two_nested_blocks_has_it(job: RunningJob[Any]) -> None:
    async with open_job_nursery(job, key="outer") as outer:
        await outer.start("child", "later", delay=3600)
        async with open_job_nursery(job, key="inner", on_drain="release") as inner:
            await inner.start("child", "later", delay=3600)


@kept
async def another_block_is_worked_in(job: RunningJob[Any]) -> None:
    async def waits() -> None:
        async with open_job_nursery(job, key="waits", on_drain="release") as nursery:
            await nursery.start("child", "later", delay=3600)

    async with trio.open_nursery() as tasks, open_job_nursery(job, key="works", on_drain="release"):
        tasks.start_soon(waits)
        await trio.sleep(1000)


@kept
async def the_one_that_opened_the_block_works(job: RunningJob[Any]) -> None:
    async with open_job_nursery(job, on_drain="release") as nursery, trio.open_nursery() as tasks:
        tasks.start_soon(partial(nursery.run, "child", "later", delay=3600))
        await trio.sleep(1000)


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
async def test_other_runs_have_their_time(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, body: Body
) -> None:
    assert await seconds_to_end(open_test_scheduler, body, until=5) == pytest.approx(LIMIT, abs=0.5)
    assert statuses(jobs, "parent") == {"pending": 1}


async def test_block_that_has_ended_does_not_keep_the_run(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "at once")
        async with open_job_nursery(job, on_drain="release") as nursery:
            await nursery.start("child", "later", delay=3600)

    assert await seconds_to_end(open_test_scheduler, body, until=5) == pytest.approx(0, abs=0.1)
    assert statuses(jobs, "parent") == {"pending": 1}


async def test_block_that_has_ended_does_not_release_the_run(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job, on_drain="release") as nursery:
            await nursery.start("child", "at once")
        await trio.sleep(20)

    assert await seconds_to_end(open_test_scheduler, body, until=5) == pytest.approx(15, abs=0.1)
    assert statuses(jobs, "parent") == {"completed": 1}


async def test_block_that_cancels_its_children_is_not_interrupted(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Otherwise its handler would see the failure, and go on, beside children that live."""
    seen: list[Any] = []

    async def body(job: RunningJob[Any]) -> str:
        try:
            async with open_job_nursery(job, on_drain="release") as nursery:
                await nursery.start("slow", "to end")
                await nursery.start("child", "fail")
        except JobNurseryError:
            seen.append(statuses(jobs, "slow"))
        return "undone"

    flow = Flow(body)

    @flow.workers.register("slow")
    async def slow(job: RunningJob[Any]) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(40)

    async with open_test_scheduler(flow.workers, shutdown_timeout=LIMIT, cleanup_timeout=45) as scheduler:
        await scheduler.enqueue("parent")
        await trio.sleep(5)
        await quiesce()
        began = trio.current_time()
    assert trio.current_time() - began == pytest.approx(35, abs=1)
    assert (seen, only(jobs)["result"]) == ([{"completed": 1}], "undone")


def test_other_values_and_programs_are_refused(mongod: Any, db: Database) -> None:
    with MongoClient[Any](mongod.uri) as client:
        monque = Monque(client[db.name])
        with pytest.raises(InvalidOptionError, match='on_drain=.* must be "wait" or "release"'):
            open_job_nursery(monque, on_drain="leave")  # type: ignore[arg-type]
        with pytest.raises(InvalidOptionError, match="is for handlers"):
            open_job_nursery(monque, on_drain="release")
