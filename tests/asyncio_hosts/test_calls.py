"""Calls of handlers, listeners and threads: the same on trio, asyncio and uvloop."""

from __future__ import annotations

import threading
import time
from typing import Any

import anyio
import trio
import trio.lowlevel

from tests.asyncio_hosts.conftest import Run, VirtualRun
from tests.asyncio_hosts.scenes import LONG, QUICK, only_document, statuses, until
from tests.support.internals import has_looked_for_jobs
from trio_monque import Monque, RunningJob, Workers, open_scheduler
from trio_monque.events import Event, JobCompleted
from trio_monque.store.driver.types import Database

NO_HINTS: Any = {"change_stream": False, "poll_interval": 3600}
"""What is enqueued is then found at once by a local wakeup only."""


def test_a_plain_handler_calls_back_to_the_loop_of_the_program(db: Database, run: Run) -> None:
    workers, seen, ended = Workers(), dict[str, Any](), list[str]()

    async def doubled(number: int) -> tuple[int, int]:
        await anyio.sleep(0.01)
        return threading.get_ident(), 2 * number

    @workers.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        seen["own thread"] = threading.get_ident()
        seen["async call"] = job.from_thread(doubled, 7)
        seen["plain call"] = job.from_thread(threading.get_ident)
        job.from_thread(job.save, "half")
        seen["saved"] = job.saved
        job.from_thread(job.scheduler.enqueue, "other")
        job.scheduler.sync.enqueue("other")

    @workers.register("other")
    async def other(job: RunningJob[Any]) -> None:
        ended.append(job.name)

    async def main() -> None:
        home = threading.get_ident()
        async with open_scheduler(db, workers, **NO_HINTS) as scheduler:
            await scheduler.enqueue("plain")
            await until(lambda: len(ended) == 2)
        assert seen.pop("own thread") != home
        assert seen == {"async call": (home, 14), "plain call": home, "saved": "half"}

    run(main)


def test_plain_handler_that_waits_for_the_loop_ends_at_its_cancellation(
    db: Database, run_virtually: VirtualRun
) -> None:
    workers, raised = Workers(), list[str]()

    @workers.register("waits", timeout=1, max_attempts=1)
    def waits(job: RunningJob[Any]) -> None:
        try:
            job.from_thread(anyio.sleep, LONG)
        except BaseException as error:
            raised.append(type(error).__name__)
            raise

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("waits")
            await until(lambda: statuses(db, "waits") == ["failed"])

    run_virtually(main)
    assert raised == ["RunCancelled"]


def test_plain_handler_that_asks_ends_at_its_cancellation(db: Database, run: Run) -> None:
    workers = Workers()

    @workers.register("asks", timeout=0.2, max_attempts=1)
    def asks(job: RunningJob[Any]) -> None:
        while True:
            time.sleep(0.01)
            job.check_cancelled()

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("asks")
            await until(lambda: statuses(db, "asks") == ["failed"])

    run(main)


def test_a_handler_enqueues_and_gets_the_event_of_that_job(db: Database, run: Run) -> None:
    workers, log = Workers(), list[object]()

    @workers.register("outer")
    async def outer(job: RunningJob[Any]) -> None:
        async with job.scheduler.events(JobCompleted) as stream:
            inner = await job.scheduler.enqueue("inner", 5)
            async for event in stream:
                if event.job.id == inner.id:
                    break
        log.append("inner has ended")

    @workers.register("inner")
    async def inner(job: RunningJob[Any]) -> None:
        log.append(job.data)
        await job.set_progress("half")

    async def main() -> None:
        async with open_scheduler(db, workers) as scheduler:
            await scheduler.enqueue("outer")
            await until(lambda: statuses(db, "outer") == ["completed"])

    run(main)
    assert log == [5, "inner has ended"]
    db["monque_jobs"].delete_one({"name": "outer"})
    assert only_document(db)["progress"] == "half"


def test_a_worker_can_run_in_the_runtime(db: Database, run: Run) -> None:
    workers, seen = Workers(), dict[str, object]()

    @workers.register("async", runs_on="runtime", timeout=5)
    async def asynchronous(job: RunningJob[Any]) -> None:
        await trio.lowlevel.checkpoint()
        await job.save("half")
        with job.cleanup(1):
            await trio.lowlevel.checkpoint()
        seen["seconds left"] = 0 < job.deadline - trio.current_time() <= 5
        await job.scheduler.enqueue("plain")

    @workers.register("plain", runs_on="runtime")
    def plain(job: RunningJob[Any]) -> None:
        seen["on trio"] = job.from_thread(trio.lowlevel.in_trio_task)

    async def main() -> None:
        async with open_scheduler(db, workers, **NO_HINTS) as scheduler:
            await scheduler.enqueue("async")
            await until(lambda: statuses(db, "async") + statuses(db, "plain") == ["completed"] * 2)

    run(main)
    assert seen == {"seconds left": True, "on trio": True}


def test_listeners_run_on_the_loop_of_the_program_or_in_threads(db: Database, run: Run) -> None:
    workers, heard = Workers(), list[tuple[str, bool]]()

    @workers.register("a")
    async def handle(job: RunningJob[Any]) -> None:
        pass

    async def main() -> None:
        home = threading.get_ident()

        async def asynchronous(event: JobCompleted) -> None:
            await anyio.sleep(0.01)
            assert await scheduler.get_job(event.job.id) is not None
            heard.append(("async", threading.get_ident() == home))

        def plain(event: JobCompleted) -> None:
            heard.append(("plain", threading.get_ident() == home))

        async def fails(event: JobCompleted) -> None:
            raise ValueError

        listeners: dict[type[Event], Any] = {JobCompleted: [asynchronous, plain, fails]}
        async with open_scheduler(db, workers, listeners=listeners) as scheduler:
            remove = scheduler.on(JobCompleted, asynchronous)
            await scheduler.enqueue("a")
            await until(lambda: len(heard) == 3)
            remove()
            await scheduler.enqueue("a")
            await until(lambda: len(heard) == 5)

    run(main)
    assert sorted(heard) == [("async", True)] * 3 + [("plain", False)] * 2


def test_what_this_program_enqueues_starts_at_once(db: Database, run: Run) -> None:
    workers, ran = Workers(), list[str]()

    @workers.register("a")
    async def handle(job: RunningJob[Any]) -> None:
        ran.append(job.name)

    async def main() -> None:
        other = Monque(db)

        async def in_a_thread() -> None:
            to_thread = trio.to_thread.run_sync if is_trio() else anyio.to_thread.run_sync
            await to_thread(lambda: other.sync.enqueue("a"))

        async with open_scheduler(db, workers, **NO_HINTS) as scheduler:
            # The first look is over: only a wakeup starts another one within the hour.
            await until(lambda: has_looked_for_jobs(scheduler))
            for number, enqueue in enumerate((lambda: scheduler.enqueue("a"), lambda: other.enqueue("a"), in_a_thread)):
                await enqueue()
                await until(lambda number=number: len(ran) > number)  # type: ignore[misc]

    def is_trio() -> bool:
        return trio.lowlevel.in_trio_task()

    run(main)


def test_two_schedulers_on_one_loop_wake_each_other(db: Database, run: Run) -> None:
    first, second, log = Workers(), Workers(), list[tuple[str, bool]]()

    async def main() -> None:
        @first.register("a")
        async def a(job: RunningJob[Any]) -> None:
            log.append(("a", job.scheduler is one))
            await job.scheduler.enqueue("b")

        @second.register("b")
        async def b(job: RunningJob[Any]) -> None:
            log.append(("b", job.scheduler is two))

        async with open_scheduler(db, first, **NO_HINTS) as one, open_scheduler(db, second, **NO_HINTS) as two:
            await one.enqueue("a")
            await until(lambda: len(log) == 2)

    run(main)
    assert log == [("a", True), ("b", True)]


def test_a_scheduler_that_a_handler_opens_outlives_the_grace_of_its_run(db: Database, run: Run) -> None:
    workers, inside, log, has_begun = Workers(), Workers(), list[str](), threading.Event()

    @workers.register("outer")
    async def outer(job: RunningJob[Any]) -> None:
        async with open_scheduler(db, inside, **QUICK) as scheduler:
            await scheduler.enqueue("inner")
            await anyio.sleep(LONG)

    @inside.register("inner")
    async def inner(job: RunningJob[Any]) -> None:
        has_begun.set()
        try:
            await anyio.sleep(LONG)
        finally:
            log.append(str(job.cancel_reason))
            with job.cleanup(1):
                await job.save("cleaned up")

    async def main() -> None:
        async with open_scheduler(db, workers, cleanup_timeout=2, **QUICK) as scheduler:
            job = await scheduler.enqueue("outer")
            await until(has_begun.is_set)
            await scheduler.cancel_job(job.id)
            await until(lambda: statuses(db, "outer") == ["cancelled"])

    run(main)
    assert log == ["shutdown"]
    db["monque_jobs"].delete_one({"name": "outer"})
    assert only_document(db)["saved"] == "cleaned up"
