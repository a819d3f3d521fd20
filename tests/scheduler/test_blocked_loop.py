"""A handler that blocks the loop is named in the log, and counted in the report."""

from __future__ import annotations

from typing import Any

from tests.support.engine_log import block_the_loop_until, hearing
from trio_monque import RunningJob, Workers
from trio_monque.testing import SchedulerOpener, drain


async def test_job_that_blocks_the_loop_is_named_and_counted(open_test_scheduler: SchedulerOpener) -> None:
    workers = Workers()
    with hearing("the event loop is blocked") as blocked:

        @workers.register("rude")
        async def rude(job: RunningJob[Any]) -> None:
            block_the_loop_until(blocked)

        async with open_test_scheduler(workers) as scheduler:
            job = await scheduler.enqueue("rude")
            await drain(scheduler)
    assert f"by the handler of rude {job.id}" in blocked.messages[0]
    assert scheduler.report is not None
    assert (scheduler.report.completed, scheduler.report.loop_blocked) == (1, 1)
