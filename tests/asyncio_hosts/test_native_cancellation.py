"""asyncio cancels tasks by itself, past every scope: what that means for a scheduler, its handlers and their calls."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run, runtimes_left
from tests.asyncio_hosts.scenes import LONG, QUICK, LongJobs, only_document, statuses, until
from tests.support.waiting import wait_until
from trio_monque import NewJob, RunningJob, Workers, open_scheduler
from trio_monque.events import JobFailed
from trio_monque.store.driver.types import Database

pytestmark = ON_ASYNCIO

OF_CLOCKS = 0.01
"""Seconds by which a moment may differ that was converted from one clock to another."""


@pytest.mark.full
@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_task_of_the_program_cuts(db: Database, run: Run, times: int) -> None:
    long = LongJobs(cleanup=0.3)

    async def main() -> None:
        async def service() -> None:
            async with open_scheduler(db, long.workers, cleanup_timeout=0.5) as scheduler:
                await scheduler.enqueue("long")
                await asyncio.sleep(LONG)

        task = asyncio.create_task(service())
        await until(lambda: long.log)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.03)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not runtimes_left()

    run(main)
    assert long.log == ["began", "shutdown"]
    assert statuses(db, "long") == ["pending"]


def test_a_cancellation_at_any_moment_of_the_start_leaves_nothing_behind(db: Database, run: Run) -> None:
    async def main() -> None:
        async def service() -> None:
            async with open_scheduler(db, Workers()):
                await asyncio.sleep(LONG)

        for milliseconds in (0, 1, 3, 6, 10, 20, 30):
            task = asyncio.create_task(service())
            await asyncio.sleep(milliseconds / 1000)
            task.cancel()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not runtimes_left()
        assert db["monque_scheduler_instances"].count_documents({}) == 0

    run(main)


def test_a_scheduler_is_left_in_another_task_than_it_was_entered_in(db: Database, run: Run) -> None:
    long = LongJobs()

    async def main() -> None:
        opening = open_scheduler(db, long.workers, shutdown_timeout=0)
        scheduler = await asyncio.create_task(opening.__aenter__())
        await scheduler.enqueue("long")
        await until(lambda: long.log)
        await asyncio.create_task(opening.__aexit__(None, None, None))
        assert scheduler.report is not None
        # A look that was in flight at the drain may claim the released job; that claim is released without a run.
        assert scheduler.report.released >= 1

    run(main)
    assert long.log == ["began", "shutdown"]


def test_all_tasks_cancelled_is_a_cut_and_not_a_failure(db: Database, run: Run) -> None:
    long = LongJobs()

    async def main() -> None:
        async def service() -> None:
            async with open_scheduler(db, long.workers) as scheduler:
                await scheduler.enqueue("long")
                await asyncio.sleep(LONG)

        task = asyncio.create_task(service())
        await until(lambda: long.log)
        for one in asyncio.all_tasks() - {asyncio.current_task()}:
            one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)
    assert statuses(db, "long") == ["pending"]
    assert only_document(db).get("failCount", 0) == 0


def test_a_cancelled_error_of_the_handler_itself_is_a_failed_attempt(db: Database, run: Run) -> None:
    workers, heard = Workers(), dict[str, BaseException]()

    @workers.register("raises", max_attempts=1)
    async def raises(job: RunningJob[Any]) -> None:
        raise asyncio.CancelledError("mine")

    @workers.register("cancels-itself", max_attempts=1)
    async def cancels_itself(job: RunningJob[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    @workers.register("child", max_attempts=1)
    async def child(job: RunningJob[Any]) -> None:
        task = asyncio.create_task(asyncio.sleep(LONG))
        await asyncio.sleep(0)
        task.cancel()
        await task

    @workers.register("group", max_attempts=1)
    async def group(job: RunningJob[Any]) -> None:
        raise BaseExceptionGroup("both", [ValueError("v"), asyncio.CancelledError()])

    async def hear(event: JobFailed) -> None:
        heard[event.job.name] = event.error

    async def main() -> None:
        async with open_scheduler(db, workers, listeners={JobFailed: hear}, **QUICK) as scheduler:
            for name in workers.names:
                await scheduler.enqueue(name)
            await until(lambda: len(heard) == 4)

    run(main)
    for name in ("raises", "cancels-itself", "child"):
        assert isinstance(heard[name].__cause__, asyncio.CancelledError), name
    assert "ValueError" in repr(heard["group"])
    assert "CancelledError" not in repr(heard["group"])


def test_a_keyboard_interrupt_of_a_handler_ends_the_program(db: Database, run: Run) -> None:
    workers = Workers()

    @workers.register("interrupted", max_attempts=5)
    async def interrupted(job: RunningJob[Any]) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("interrupted")
            await asyncio.sleep(LONG)

    with pytest.raises(KeyboardInterrupt):
        run(main)


@pytest.mark.full
def test_a_handler_that_swallows_its_cancellation_is_named_and_waited_for(
    db: Database, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    long, is_named = LongJobs(), threading.Event()

    async def deep_inside() -> None:
        await asyncio.sleep(0.05)

    @long.workers.register("swallower")
    async def swallower(job: RunningJob[Any]) -> None:
        long.log.append("began")
        while "swallows its cancellation" not in caplog.text:
            with suppress(asyncio.CancelledError):
                await deep_inside()
        is_named.set()

    async def main() -> None:
        async with open_scheduler(db, long.workers, shutdown_timeout=0, cleanup_timeout=0.1) as scheduler:
            await scheduler.enqueue("swallower")
            await scheduler.enqueue("long")
            await until(lambda: long.log.count("began") == 2)
        assert scheduler.report is not None
        assert [job.name for job in scheduler.report.unfinished] == ["swallower"]

    run(main)
    assert is_named.is_set()
    assert "in swallower" in caplog.text
    assert statuses(db, "long") == ["pending"]


@pytest.mark.full
def test_a_handler_cut_while_the_database_does_not_answer_ends_with_its_clean_up(
    db: Database, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has sent is awaited for as long as a clean-up: single, in a group, many, and a checkpoint."""
    workers, ended_at, left_at, sent = Workers(), dict[str, float](), list[float](), list[str]()
    answers, are_late = threading.Event(), list[bool]()
    names = ["grouped", "grouped", "grouped", "many", "saves"]
    functions = ["jobs.inserting.parcels", "jobs.job_changes.report_if_held"]

    def registered(name: str, call: Any, concurrency: int = 1) -> None:
        @workers.register(name, max_attempts=1, concurrency=concurrency)
        async def handle(job: RunningJob[Any]) -> None:
            try:
                await call(job)
            finally:
                ended_at[f"{name} {job.data}"] = time.monotonic()

    registered("grouped", lambda job: job.scheduler.enqueue("x"), concurrency=3)
    registered("many", lambda job: job.scheduler.enqueue_many([NewJob(name="x")]))
    registered("saves", lambda job: job.save(1))

    def unanswered(function: str, *_: object, **__: object) -> None:
        sent.append(function)
        are_late.append(not answers.wait(50))
        raise AssertionError("nothing waits for this answer")

    async def main() -> None:
        async with open_scheduler(db, workers, shutdown_timeout=0, cleanup_timeout=0.4, **QUICK) as scheduler:
            documents = [await scheduler.document(name, number) for number, name in enumerate(names)]
            for function in functions:
                monkeypatch.setattr(f"trio_monque.store.{function}", partial(unanswered, function))
            db["monque_jobs"].insert_many(documents)
            await until(lambda: sent.count(functions[0]) >= 2 and functions[1] in sent)
            left_at.append(time.monotonic())
        assert not answers.is_set()
        assert len(ended_at) == len(names)
        monkeypatch.undo()
        answers.set()

    try:
        run(main)
    finally:
        answers.set()
    wait_until(lambda: len(are_late) == len(sent), "the threads have their answers")
    assert not any(are_late)
    # A member of the group that came after the batch was sent has sent nothing, and is not held up.
    last = {name: max(at for one, at in ended_at.items() if one.startswith(name)) for name in set(names)}
    assert all(at - left_at[0] > 0.4 - OF_CLOCKS for at in last.values()), (left_at, last)


@pytest.mark.full
def test_tasks_outlive_the_garbage_collector_and_leave_no_reference(db: Database, run: Run) -> None:
    workers, jobs, gates = Workers(), list[weakref.ref[Any]](), list[Any]()

    async def gate() -> None:
        future = asyncio.get_running_loop().create_future()
        gates.append(weakref.ref(future))
        await future

    @workers.register("a", concurrency=20)
    async def handle(job: RunningJob[Any]) -> None:
        jobs.append(weakref.ref(job))
        await gate()

    async def main() -> None:
        async with open_scheduler(db, workers) as scheduler:
            await scheduler.enqueue_many([NewJob(name="a") for _ in range(20)])
            await until(lambda: len(gates) == 20)
            for _ in range(3):
                gc.collect()
                await asyncio.sleep(0)
            for one in gates:
                one().set_result(None)
            await until(lambda: statuses(db, "a") == ["completed"] * 20)
            gc.collect()
            assert sum(job() is not None for job in jobs) <= 1

    run(main)


def test_other_loops_of_the_program_call_a_scheduler(db: Database, run: Run) -> None:
    async def main() -> None:
        async with open_scheduler(db, Workers()) as scheduler:

            async def elsewhere() -> None:
                await scheduler.enqueue("x")
                scheduler.health()
                await scheduler.wait_drained()

            thread = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(elsewhere())))
            waiting = asyncio.create_task(scheduler.wait_drained())
            await until(lambda: statuses(db, "x") == ["pending"])
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            scheduler.drain()
            with anyio.fail_after(40):
                await thread

    run(main)


def test_many_schedulers_one_after_another_leave_nothing_behind(db: Database, run: Run) -> None:
    async def main() -> None:
        async with open_scheduler(db, Workers()):
            pass
        threads, tasks = threading.active_count(), len(asyncio.all_tasks())
        for _ in range(10):
            async with open_scheduler(db, Workers()):
                pass
        assert len(asyncio.all_tasks()) == tasks
        await until(lambda: threading.active_count() <= threads + 2)

    run(main)
