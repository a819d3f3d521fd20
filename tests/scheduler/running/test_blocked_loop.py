"""A handler that blocks the loop, or goes on in its thread after its time, is named in the log, and counted."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.support.engine_log import block_the_loop_until, hearing
from trio_monque import RunningJob, Workers
from trio_monque.testing import SchedulerOpener, drain


@pytest.mark.full
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


@pytest.mark.full
async def test_plain_handler_that_goes_on_after_its_time_limit_is_named_and_counted(
    open_test_scheduler: SchedulerOpener,
) -> None:
    workers, seen = Workers(), list[tuple[int, tuple[str, ...], bool]]()
    with hearing("is still running although its run was cancelled") as overdue:

        @workers.register("hang", timeout=0.05, max_attempts=1)
        def hang(job: RunningJob[Any]) -> None:
            wait_like_a_request_without_a_timeout()
            health = job.scheduler.health()
            seen.append((job.scheduler.statistics().overdue_threads, health.warnings, health.healthy))

        def wait_like_a_request_without_a_timeout() -> None:
            overdue.logged.wait()

        async with open_test_scheduler(workers) as scheduler:
            job = await scheduler.enqueue("hang")
            await drain(scheduler)
            assert scheduler.statistics().overdue_threads == 0
            assert scheduler.health().warnings == ()
    (message,) = overdue.messages
    assert (
        f"the thread of hang {job.id} (processing, attempt 1) is still running although its run was cancelled (timeout)"
        in message
    )
    assert "in wait_like_a_request_without_a_timeout" in message
    ((number, warnings, is_healthy),) = seen
    assert (number, is_healthy) == (1, True)
    assert warnings == ("plain handlers are still running although their runs were cancelled; slots occupied: 1",)


async def test_thread_that_ends_with_its_run_is_not_named(open_test_scheduler: SchedulerOpener) -> None:
    workers, ended = Workers(), threading.Event()
    with hearing("is still running although its run was cancelled") as overdue:

        @workers.register("obeys", timeout=0.05, max_attempts=1)
        def obeys(job: RunningJob[Any]) -> None:
            try:
                while True:
                    job.check_cancelled()
                    time.sleep(0.001)
            finally:
                ended.set()

        async with open_test_scheduler(workers) as scheduler:
            await scheduler.enqueue("obeys")
            await drain(scheduler)
            assert ended.is_set()
            assert scheduler.statistics().overdue_threads == 0
    assert overdue.messages == []
