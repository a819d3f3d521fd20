"""What a program on asyncio enqueues starts at once: the scheduler looks by itself once an hour only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import SECONDS_TO_BEAT, heartbeat_of_instance, statuses, until
from tests.support.internals import has_looked_for_jobs
from tests.support.waiting import wait_for_changes, wait_until
from trio_monque import Monque, NewJob, RunningJob, Scheduler, Workers, open_scheduler
from trio_monque.events import JobCompleted
from trio_monque.store.driver.types import Database

pytestmark = ON_ASYNCIO

ONCE_AN_HOUR: Any = {"change_stream": False, "poll_interval": 3600}


async def caught_up(scheduler: Scheduler) -> None:
    """Wait until the first look is over: from then on, only a wake-up makes the scheduler look."""
    await until(lambda: has_looked_for_jobs(scheduler))


async def in_plain_thread(enqueue: Callable[[], object]) -> None:
    thread = threading.Thread(target=enqueue)
    thread.start()
    await until(lambda: not thread.is_alive())


ELSEWHERE: dict[str, Callable[[Monque], Awaitable[object]]] = {
    "on the loop": lambda client: client.enqueue("a"),
    "many on the loop": lambda client: client.enqueue_many([NewJob(name="a")]),
    "blocking on the loop": lambda client: at_once(lambda: client.sync_in_loop.enqueue("a")),
    "asyncio.to_thread": lambda client: asyncio.to_thread(client.sync.enqueue, "a"),
    "anyio.to_thread": lambda client: anyio.to_thread.run_sync(client.sync.enqueue, "a"),
    "plain thread": lambda client: in_plain_thread(lambda: client.sync.enqueue("a")),
    "another loop": lambda client: in_plain_thread(lambda: anyio.run(client.enqueue, "a")),
    "a trio run": lambda client: in_plain_thread(lambda: trio.run(client.enqueue, "a")),
}


async def at_once(function: Callable[[], object]) -> None:
    function()


def test_each_way_to_enqueue_wakes_the_scheduler(db: Database, run: Run) -> None:
    workers, ran = Workers(), list[str]()

    @workers.register("a")
    async def handle(job: RunningJob[Any]) -> None:
        ran.append(job.name)

    async def main() -> None:
        async with open_scheduler(db, workers, **ONCE_AN_HOUR) as scheduler:
            await caught_up(scheduler)
            for client in (Monque(db), scheduler):
                for way, enqueue in ELSEWHERE.items():
                    before = len(ran)
                    await enqueue(client)
                    await until(lambda before=before: len(ran) > before)  # type: ignore[misc]
                    assert len(ran) == before + 1, way

    run(main)


def test_job_that_is_due_later_and_one_that_is_retried_start_in_time(db: Database, run: Run) -> None:
    workers, ran = Workers(), list[int]()

    @workers.register("a")
    async def handle(job: RunningJob[Any]) -> None:
        ran.append(job.attempt)
        if job.attempt == 1:
            raise ValueError("once")

    async def main() -> None:
        async with open_scheduler(db, workers, base_retry_interval=0.05, **ONCE_AN_HOUR) as scheduler:
            await caught_up(scheduler)
            await asyncio.to_thread(lambda: Monque(db).sync.enqueue("a", delay=0.3))
            await until(lambda: len(ran) == 2)

    run(main)


def test_handlers_of_each_kind_wake_another_scheduler_of_the_program(db: Database, run: Run) -> None:
    """Beside the first: each of the two is a trio run in a thread of its own."""
    first, second, ran = Workers(), Workers(), list[str]()

    @first.register("async")
    async def asynchronous(job: RunningJob[Any]) -> None:
        await job.scheduler.enqueue("second", "async")

    @first.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        job.scheduler.sync.enqueue("second", "plain")

    @first.register("runtime", runs_on="runtime")
    async def in_runtime(job: RunningJob[Any]) -> None:
        await job.scheduler.enqueue("second", "runtime")

    @second.register("second")
    async def end(job: RunningJob[Any]) -> None:
        ran.append(job.data)

    def listener(event: JobCompleted) -> None:
        if event.job.name == "plain":
            one[0].sync.enqueue("second", "listener")

    one = list[Scheduler]()

    async def main() -> None:
        async with (
            open_scheduler(db, first, listeners={JobCompleted: listener}, **ONCE_AN_HOUR) as scheduler,
            open_scheduler(db, second, **ONCE_AN_HOUR) as other,
        ):
            one.append(scheduler)
            await caught_up(scheduler)
            await caught_up(other)
            for kind, expected in (("async", 1), ("runtime", 2), ("plain", 4)):
                await scheduler.enqueue(kind)
                await until(lambda expected=expected: len(ran) == expected)  # type: ignore[misc]

    run(main)
    assert ran[:2] == ["async", "runtime"]
    assert sorted(ran[2:]) == ["listener", "plain"]


@pytest.mark.full
def test_jobs_that_came_while_the_loop_was_blocked_start_when_it_goes_on(db: Database, run: Run) -> None:
    workers, ran = Workers(), list[int]()

    @workers.register("a", concurrency=20)
    async def handle(job: RunningJob[Any]) -> None:
        ran.append(job.data)

    async def main() -> None:
        async with open_scheduler(db, workers, heartbeat_interval=SECONDS_TO_BEAT, **ONCE_AN_HOUR) as scheduler:
            await caught_up(scheduler)
            for block in range(2):
                wait_until(lambda: not scheduler.is_healthy(), "the scheduler notices that this blocks the loop")
                Monque(db).sync_in_loop.enqueue_many([NewJob(name="a", data=block) for _ in range(5)])
                wait_for_changes(lambda: heartbeat_of_instance(db), 2, "the heartbeat of the scheduler")
                assert statuses(db, "a").count("pending") == 5
                await until(lambda block=block: len(ran) == 5 * (block + 1))  # type: ignore[misc]
                await until(scheduler.is_healthy)

    run(main)


@pytest.mark.full
def test_many_calls_at_once_are_all_woken_for(db: Database, run: Run) -> None:
    workers, ran = Workers(), set[object]()

    @workers.register("a", concurrency=50)
    async def handle(job: RunningJob[Any]) -> None:
        ran.add(job.id)

    async def main() -> None:
        async with open_scheduler(db, workers, **ONCE_AN_HOUR) as scheduler:
            await caught_up(scheduler)
            client = Monque(db)
            for _ in range(5):
                before = len(ran)
                async with asyncio.TaskGroup() as tasks:
                    for number in range(20):
                        if number % 2:
                            tasks.create_task(client.enqueue("a"))
                        else:
                            tasks.create_task(asyncio.to_thread(client.sync.enqueue, "a"))
                await until(lambda before=before: len(ran) == before + 20)  # type: ignore[misc]

    run(main)
