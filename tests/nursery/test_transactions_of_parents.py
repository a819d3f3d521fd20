"""`job.transaction` in a handler that opens job nurseries: not inside a block, and the scope ends with it."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from tests.nursery.flows import Flow, killed_and_run_again, live, nothing, only, statuses
from trio_monque import RunningJob, Workers, open_job_nursery
from trio_monque.errors import MonqueError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, drain


async def test_transaction_and_block_exclude_each_other(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    said: list[str] = []

    async def body(job: RunningJob[Any]) -> None:
        def work(session: Any) -> None: ...

        async with open_job_nursery(job) as nursery:
            await nursery.start("child", 1)
            with pytest.raises(MonqueError) as first:
                await job.transaction(work)
        await job.transaction(work)
        with pytest.raises(MonqueError) as second:
            async with open_job_nursery(job):
                raise AssertionError
        said.extend([str(first.value), str(second.value)])

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await scheduler.wait_job(parent)
        await drain(scheduler)
    assert "leave the block first" in said[0]
    assert "transaction" in said[1]


@pytest.mark.full
async def test_transaction_ends_children_that_an_earlier_run_has_left(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    lived: list[int] = []

    async def body(job: RunningJob[Any]) -> None:
        if job.attempt == 2:
            await job.transaction(lambda session: lived.append(live(jobs)))
            return
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [800, 900])

    flow = Flow(body)
    async with killed_and_run_again(open_test_scheduler, flow):
        assert lived == [0]
    assert statuses(jobs) == {"cancelled": 2}


async def test_transaction_of_a_job_with_a_scope_clears_it(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    flow = Flow(nothing)
    workers.register("child", flow.child)

    @workers.register("parent")
    async def parent(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.run("child", "done")
        await job.transaction(lambda _: None)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.wait_job(await scheduler.enqueue(parent))
    assert not {"ownScope", "scopeTry"} & only(jobs).keys()
