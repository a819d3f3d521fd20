"""Threads that a program starts itself freeze virtual time, too, in schedulers that the kit has opened."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import anyio.to_thread
import pytest
import trio
from trio.testing import MockClock

from trio_monque import RunningJob, Workers
from trio_monque.testing import SchedulerOpener, drain, quiesce, start_virtual_time
from trio_monque.threads_and_frozen_time import clock_freeze


@pytest.mark.parametrize("limiter", ["the default", "one of its own", "anyio's"])
async def test_clock_stands_still_while_a_handlers_own_thread_works(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, limiter: str
) -> None:
    workers = Workers()
    works, go_on = trio.Event(), threading.Event()

    @workers.register("threads")
    async def threads(job: RunningJob[Any]) -> None:
        works.set()
        with trio.fail_after(5):
            if limiter == "anyio's":
                await anyio.to_thread.run_sync(go_on.wait, 50)
            elif limiter == "the default":
                await trio.to_thread.run_sync(go_on.wait, 50)
            else:
                await trio.to_thread.run_sync(go_on.wait, 50, limiter=trio.CapacityLimiter(1))

    async with open_test_scheduler(workers, heartbeat_interval=10) as scheduler:
        await scheduler.enqueue("threads")
        await works.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert autojump_clock.autojump_threshold == math.inf
        go_on.set()
        assert (await drain(scheduler)).completed == 1
    assert trio.current_time() == 0
    assert clock_freeze().freezing == 0
    await trio.sleep(1000)  # Only passes when the clock is thawed.


async def test_thread_that_waits_for_the_loop_lets_time_pass(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        job.from_thread(trio.sleep, 1000)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("plain")
        assert (await drain(scheduler)).completed == 1
    assert trio.current_time() == 1000


async def test_own_thread_that_waits_for_the_loop_lets_time_pass_too(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("threads")
    async def threads(job: RunningJob[Any]) -> None:
        await trio.to_thread.run_sync(job.from_thread, trio.sleep, 100)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("threads")
        assert (await drain(scheduler)).completed == 1
    assert trio.current_time() == 100
    assert clock_freeze().freezing == 0


async def test_own_thread_of_a_function_that_a_thread_called_lets_time_pass_too(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    """It has a copy of the context of the handler's thread, and does not freeze the clock as that one does."""
    workers = Workers()

    async def sleep_from_another_thread(job: RunningJob[Any]) -> None:
        await trio.to_thread.run_sync(job.from_thread, trio.sleep, 100)

    @workers.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        job.from_thread(sleep_from_another_thread, job)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("plain")
        assert (await drain(scheduler)).completed == 1
    assert trio.current_time() == 100
    assert clock_freeze().freezing == 0


async def test_two_schedulers_hold_once(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    go_on = threading.Event()
    async with open_test_scheduler(), open_test_scheduler(), trio.open_nursery() as nursery:
        await quiesce()  # Each has looked for dead claims.
        nursery.start_soon(trio.to_thread.run_sync, go_on.wait, 50)
        await trio.testing.wait_all_tasks_blocked()
        assert clock_freeze().freezing == 1
        go_on.set()


async def test_job_now_is_virtual_in_each_thread_of_a_handler(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    begin = datetime(2040, 1, 1, tzinfo=UTC)
    start_virtual_time(begin)
    workers, seen = Workers(), list[datetime]()

    @workers.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        with ThreadPoolExecutor(1) as pool:
            seen.extend([job.now(), pool.submit(job.now).result(), job.from_thread(job.now)])

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("plain")
        await drain(scheduler)
    assert seen == [begin] * 3
