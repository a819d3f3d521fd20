"""A trio run that is the guest of an asyncio loop: both are in one thread, and are two loops all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.loops import TrioLoop
from trio_monque.store.driver.types import Collection, Database


@asynccontextmanager
async def guest_run(guest: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `guest` on trio, in the asyncio loop of the caller; wait for its end."""
    running = asyncio.get_running_loop()
    ended = running.create_future()
    trio.lowlevel.start_guest_run(
        guest, run_sync_soon_threadsafe=running.call_soon_threadsafe, done_callback=ended.set_result
    )
    yield
    outcome: Any = await ended
    outcome.unwrap()


def test_post_by_the_host_reaches_the_guest() -> None:
    called_in_a_task = list[bool]()

    async def host() -> None:
        made = asyncio.get_running_loop().create_future()

        async def guest() -> None:
            called = trio.Event()

            def function() -> None:
                called_in_a_task.append(trio.lowlevel.in_trio_task())
                called.set()

            made.set_result((TrioLoop(), function))
            await called.wait()

        async with guest_run(guest):
            guest_loop, function = await made
            assert not guest_loop.is_current
            guest_loop.post(function)
            assert called_in_a_task == []

    asyncio.run(host())
    assert called_in_a_task == [True]


def test_scheduler_of_the_host_works_beside_a_guest(db: Database, jobs: Collection) -> None:
    workers, saved = Workers(), list[object]()

    @workers.register("work")
    async def work(job: RunningJob[Any]) -> None:
        await job.save("half")  # By a call from the host to the thread of the scheduler.
        saved.append(job.saved)
        job.scheduler.drain()

    async def host() -> None:
        made = asyncio.get_running_loop().create_future()
        ended = trio.Event()

        async def guest() -> None:
            made.set_result(TrioLoop())
            await ended.wait()

        async with guest_run(guest):
            guest_loop = await made
            async with open_scheduler(db, workers) as scheduler:
                await scheduler.enqueue("work")
                await scheduler.wait_drained()
            guest_loop.post(ended.set)

    asyncio.run(host())
    (stored,) = jobs.find()
    assert (stored["status"], saved) == ("completed", ["half"])
