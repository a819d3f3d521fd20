"""Virtual time against a real server: calls in flight hold the clock, and nothing else does."""

from __future__ import annotations

import math
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import cast

import trio
from trio.testing import MockClock

from trio_monque import Monque, RunningJob, Workers
from trio_monque.clock import ServerClock, virtual_time
from trio_monque.hold import clock_hold
from trio_monque.store.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, drain
from trio_monque.threads import HoldingLimiter


async def test_calls_in_flight_hold_the_clock_and_fire_no_timeout(db: Database, autojump_clock: MockClock) -> None:
    monque = Monque(db)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await trio.sleep(10)
            beats += 1

    async def call_and_sleep(nursery_done: trio.Event | None = None) -> None:
        for _ in range(10):
            with trio.fail_after(5):
                await monque.get_queue_stats()
        await trio.sleep(1)

    async with trio.open_nursery() as beating:
        beating.start_soon(beat)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(call_and_sleep)
        beating.cancel_scope.cancel()
    assert trio.current_time() == 1.0
    assert beats == 0
    assert clock_hold().holders == 0
    assert autojump_clock.autojump_threshold == 0


async def test_abandoned_thread_holds_the_clock_until_it_has_really_ended(autojump_clock: MockClock) -> None:
    limiter = cast("trio.CapacityLimiter", HoldingLimiter(1))
    release = threading.Event()
    ended: list[float] = []

    def slow() -> None:
        release.wait(10)
        ended.append(autojump_clock.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.to_thread.run_sync, slow, limiter=limiter, abandon_on_cancel=True))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert clock_hold().holders == 1
    assert autojump_clock.autojump_threshold == math.inf
    release.set()
    await trio.sleep(100)  # Only passes when the hold is gone.
    assert ended == [0.0]
    assert trio.current_time() == 100


async def test_now_follows_the_clock_of_the_run(autojump_clock: MockClock) -> None:
    clock = ServerClock()
    clock.set_offset(12345)  # Of no meaning in virtual time.
    assert not clock.is_stale()
    start = clock.now()
    assert abs(start - datetime.now(UTC)) < timedelta(seconds=10)
    await trio.sleep(86400.25)
    assert clock.now() - start == timedelta(days=1, milliseconds=250)
    assert ServerClock().now() == clock.now()  # One timeline for all clients of the run.


async def test_threads_that_work_for_the_run_see_its_time(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    seen: list[datetime] = []

    @workers.register("plain")
    def plain(job: RunningJob[None]) -> None:
        virtual = virtual_time()
        assert virtual is not None
        seen.append(virtual.now())
        job.scheduler.sync.enqueue("other")

    before = ServerClock().now()
    async with open_test_scheduler(workers) as scheduler:
        await advance(7 * 86400)
        await scheduler.enqueue("plain")
        await drain(scheduler)
    assert seen == [before + timedelta(days=7)]
    other = jobs.find_one({"name": "other"})
    assert other is not None
    assert other["createdAt"] == seen[0]


def test_real_clock_is_this_machines_plus_the_offset_to_the_servers() -> None:
    clock = ServerClock()
    assert clock.is_stale()
    clock.set_offset(3600)
    assert not clock.is_stale()
    assert timedelta(minutes=59) < clock.now() - datetime.now(UTC) < timedelta(minutes=61)
    assert clock.now().microsecond % 1000 == 0
    assert clock.now().tzinfo is UTC


def test_offset_to_the_server_is_measured_before_the_first_write(db: Database) -> None:
    monque = Monque(db)
    job = monque.sync.enqueue("greet")
    assert not monque._ground.clock.is_stale()
    assert abs(job.created_at - datetime.now(UTC)) < timedelta(seconds=2)


def test_run_on_the_real_clock_inside_a_thread_of_a_virtual_run_has_real_time() -> None:
    async def inner() -> bool:
        return virtual_time() is None

    async def outer() -> bool:
        assert virtual_time() is not None
        limiter = cast("trio.CapacityLimiter", HoldingLimiter(1))
        return await trio.to_thread.run_sync(partial(trio.run, inner), limiter=limiter)

    assert trio.run(outer, clock=MockClock(autojump_threshold=0))
