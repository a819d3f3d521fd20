"""Keys and options of blocks and children: which are refused, and what a key names."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from tests.nursery.flows import Flow, killed_and_run_again, live, run_parent
from trio_monque import RunningJob, open_job_nursery
from trio_monque.errors import InvalidOptionError, MonqueError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener


@pytest.mark.parametrize("wrong", [{"fail": "never"}, {"key": ""}, {"key": 3}, {"key": "3"}])
def test_arguments_of_the_block_are_checked(wrong: Any) -> None:
    with pytest.raises(InvalidOptionError):
        open_job_nursery(None, **wrong)


def test_other_parents_are_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match="enqueue a job"):
        open_job_nursery(object())


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"unique_key": "a"}, "unique_key"),
        ({"on_conflict": "replace"}, "on_conflict"),
        ({"max_wait": 3}, "max_wait"),
        ({"colour": 3}, "colour"),
        ({"key": ""}, "key"),
        ({"key": 3}, "key"),
    ],
)
async def test_options_that_children_do_not_have_are_refused(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, options: Any, problem: str
) -> None:
    errors: list[Exception] = []

    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            with pytest.raises(InvalidOptionError) as caught:
                await nursery.start("child", 1, **options)
            errors.append(caught.value)

    await run_parent(open_test_scheduler, Flow(body))
    (error,) = errors
    assert problem in str(error)
    assert jobs.count_documents({"name": "child"}) == 0


@pytest.mark.parametrize("key", ["\ud800", "a\0", "", 5])
async def test_key_that_cannot_be_stored_is_refused_wherever_it_is_given(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, key: Any
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        with pytest.raises(InvalidOptionError, match="must be a string of 1 to"):
            open_job_nursery(job, key=key)
        with pytest.raises(InvalidOptionError, match="must be a string of 1 to"):
            await job.step(key, lambda: 1)
        async with open_job_nursery(job) as nursery:
            with pytest.raises(InvalidOptionError, match="must be a string of 1 to"):
                await nursery.start("child", 1, key=key)

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        ended = await scheduler.wait_job(await scheduler.enqueue("parent"))
        assert (ended.status, ended.fail_reason) == ("completed", None)


async def test_equal_children_all_start_and_a_key_twice_is_an_error(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", ["same", "same"])
            await nursery.start("child", "same")
            await nursery.start("child", "x", key="k")
            with pytest.raises(InvalidOptionError, match="another child of this block"):
                await nursery.start("child", "y", key="k")

    await run_parent(open_test_scheduler, Flow(body))
    assert sorted(one["data"] for one in jobs.find({"name": "child"})) == ["same", "same", "same", "x"]


async def test_key_names_one_block_of_a_run(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    """The second block would take over the children of the first."""

    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job, key="a") as nursery:
            await nursery.start("child", 1)
        with pytest.raises(InvalidOptionError, match="opened already"):
            async with open_job_nursery(job, key="a"):
                pass

    await run_parent(open_test_scheduler, Flow(body))


@pytest.mark.parametrize("key", ["place", None])
async def test_block_that_could_not_be_opened_is_the_same_one_at_another_try(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, key: str | None
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with open_job_nursery(job, key=key):
                pass
        async with open_job_nursery(job, key=key) as nursery:
            await nursery.start("child", "x")

    await run_parent(open_test_scheduler, Flow(body))
    assert [one["block"] for one in jobs.find({"name": "child"})] == [key or "0"]


async def test_other_worker_under_the_same_key_is_an_error(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        name = "child" if job.attempt == 1 else "newer"
        async with open_job_nursery(job) as nursery:
            with pytest.raises(MonqueError, match="was started as 'child'") if job.attempt == 2 else nullcontext():
                await nursery.start(name, 500, key="charge")
            if job.attempt == 2:
                return "refused"
        return "done"

    flow = Flow(body)
    flow.workers.register("newer", flow.child)
    async with killed_and_run_again(open_test_scheduler, flow) as parent:
        assert parent.result == "refused"
        assert live(jobs) == 0
