"""Handlers on asyncio that raise, swallow and nest what loops treat specially."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
import trio
import trio.lowlevel

from tests.asyncio_hosts.conftest import ON_ASYNCIO, VIRTUALLY_ON_ASYNCIO, Run, VirtualRun
from tests.asyncio_hosts.scenes import LONG, QUICK, only_document, statuses, until
from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.errors import ClaimLostError
from trio_monque.events import JobFailed
from trio_monque.store.driver.types import Database

LIMIT = 1.0
"""Seconds, which are virtual except on uvloop: there, a busy machine begins the handler in time."""


def raising(error: Callable[[], BaseException]) -> Any:
    async def handle(job: RunningJob[Any]) -> None:
        await asyncio.sleep(0)
        raise error()

    return handle


OF_LOOPS: dict[str, Callable[[], BaseException]] = {
    "generator-exit": lambda: GeneratorExit("mine"),
    "stop-iteration": lambda: StopIteration("mine"),
    "system-exit": lambda: SystemExit("mine"),
    "timeout": lambda: TimeoutError("mine"),
    "generator-exit-in-group": lambda: BaseExceptionGroup("g", [GeneratorExit("mine")]),
    "cancelled-in-nested-groups": lambda: BaseExceptionGroup(
        "outer", [BaseExceptionGroup("inner", [asyncio.CancelledError(), asyncio.CancelledError()])]
    ),
    "trio-cancelled": lambda: trio.Cancelled._create(source="explicit"),
    "trio-cancelled-in-group": lambda: BaseExceptionGroup("g", [trio.Cancelled._create(source="explicit")]),
}


@ON_ASYNCIO
def test_what_loops_treat_specially_is_a_failed_attempt_with_its_own_error(db: Database, run: Run) -> None:
    workers, heard = Workers(), dict[str, BaseException]()
    for name, error in OF_LOOPS.items():
        workers.register(name, raising(error), max_attempts=1)

    async def hear(event: JobFailed) -> None:
        heard[event.job.name] = event.error

    async def main() -> None:
        async with open_scheduler(db, workers, listeners={JobFailed: hear}, **QUICK) as scheduler:
            for name in OF_LOOPS:
                await scheduler.enqueue(name)
            await until(lambda: len(heard) == len(OF_LOOPS))
            assert scheduler.is_healthy()

    run(main)
    assert {name for name in OF_LOOPS if statuses(db, name) == ["failed"]} == set(OF_LOOPS)
    assert isinstance(heard["generator-exit"], GeneratorExit)
    assert isinstance(heard["stop-iteration"], StopIteration)
    assert isinstance(heard["system-exit"], SystemExit)
    assert isinstance(heard["timeout"], TimeoutError)
    assert isinstance(heard["cancelled-in-nested-groups"].__cause__, BaseExceptionGroup)
    for name in ("trio-cancelled", "trio-cancelled-in-group"):
        assert "trio.Cancelled" in str(heard[name])


@ON_ASYNCIO
def test_handler_that_leaves_a_scope_open_breaks_its_own_run_only(db: Database, run: Run) -> None:
    workers, may_end = Workers(), asyncio.Event()

    @workers.register("breaks", max_attempts=1)
    async def breaks(job: RunningJob[Any]) -> None:
        anyio.CancelScope(deadline=anyio.current_time() + LONG).__enter__()
        await asyncio.sleep(0)

    @workers.register("other")
    async def other(job: RunningJob[Any]) -> None:
        await may_end.wait()

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("other")
            await scheduler.enqueue("breaks")
            await until(lambda: statuses(db, "breaks") == ["failed"])
            may_end.set()
            await until(lambda: statuses(db, "other") == ["completed"])

    run(main)


@VIRTUALLY_ON_ASYNCIO
def test_handler_in_the_runtime_uses_anyio_on_trio(db: Database, run_virtually: VirtualRun) -> None:
    workers, seen = Workers(), list[object]()

    @workers.register("a", runs_on="runtime", timeout=LIMIT, max_attempts=1)
    async def handle(job: RunningJob[Any]) -> None:
        with anyio.move_on_after(0.01) as scope:
            await anyio.sleep(LONG)
        seen.append(scope.cancelled_caught)
        seen.append(await anyio.to_thread.run_sync(lambda: anyio.from_thread.run_sync(trio.lowlevel.in_trio_task)))
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.sleep, LONG)
        finally:
            seen.append(str(job.cancel_reason))

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("a")
            await until(lambda: statuses(db, "a") == ["failed"])

    run_virtually(main)
    assert seen == [True, True, "timeout"]


@ON_ASYNCIO
def test_handler_in_the_runtime_has_the_resources_of_its_own_workers(db: Database, run: Run) -> None:
    workers, seen = Workers(), dict[str, tuple[object, bool]]()

    async def look(job: RunningJob[Any]) -> None:
        seen[job.name] = job.resources, trio.lowlevel.in_trio_task()

    workers.register("on-the-loop", look)
    workers.register("in-the-runtime", look, runs_on="runtime")

    async def main() -> None:
        async with open_scheduler(db, workers.with_resources("a pool"), resources="of all", **QUICK) as scheduler:
            for name in workers.names:
                await scheduler.enqueue(name)
            await until(lambda: len(seen) == 2)

    run(main)
    assert seen == {"on-the-loop": ("a pool", False), "in-the-runtime": ("a pool", True)}


@ON_ASYNCIO
def test_timeouts_and_task_groups_of_asyncio_work_in_handlers(db: Database, run: Run) -> None:
    workers, log, counts = Workers(), list[str](), list[int]()

    async def sleeps() -> None:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            log.append("child")
            raise

    @workers.register("a", max_attempts=1)
    async def handle(job: RunningJob[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(LONG)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sleeps(), 0.01)
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(sleeps())
                await asyncio.sleep(0)
                raise ValueError
        # Inside out: a scope of anyio around a timeout of asyncio, and the other way round.
        with anyio.move_on_after(0.01) as scope:
            async with asyncio.timeout(LONG):
                await asyncio.sleep(LONG)
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(LONG)
        assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()
        assert await anyio.to_thread.run_sync(threading.get_ident) != threading.get_ident()
        await job.save("in the middle")
        counts.append(task.cancelling())

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("a")
            await until(lambda: statuses(db, "a") not in (["pending"], ["processing"]))

    run(main)
    assert only_document(db)["status"] == "completed", only_document(db)
    assert log == ["child"] * 2
    assert counts == [0]


@VIRTUALLY_ON_ASYNCIO
def test_cancelled_run_passes_timeouts_and_task_groups_and_may_clean_up_in_a_child(
    db: Database, run_virtually: VirtualRun
) -> None:
    workers, log = Workers(), list[str]()

    @workers.register("a", timeout=LIMIT, max_attempts=1)
    async def handle(job: RunningJob[Any]) -> None:
        async def child() -> None:
            try:
                await asyncio.sleep(LONG)
            finally:
                with job.cleanup(5):
                    await job.save("of the child")
                    log.append("child saved")

        try:
            async with asyncio.timeout(LONG), asyncio.TaskGroup() as tasks:
                tasks.create_task(child())
                await asyncio.sleep(LONG)
        finally:
            log.append(str(job.cancel_reason))
            with anyio.CancelScope(shield=True), anyio.move_on_after(0.01) as inner, job.cleanup(5):
                await job.set_progress("of the handler")
            log.append(f"inner {inner.cancelled_caught}")

    async def main() -> None:
        async with open_scheduler(db, workers, cleanup_timeout=3, **QUICK) as scheduler:
            await scheduler.enqueue("a")
            await until(lambda: statuses(db, "a") == ["failed"])

    run_virtually(main)
    assert log == ["child saved", "timeout", "inner False"]
    document = only_document(db)
    assert (document["saved"], document["progress"]) == ("of the child", "of the handler")
    assert "longer than 1 s" in document["failReason"]


@VIRTUALLY_ON_ASYNCIO
def test_handler_that_swallows_one_cancellation_and_returns_keeps_its_result(
    db: Database, run_virtually: VirtualRun
) -> None:
    """As on trio."""
    workers, log = Workers(), list[str]()

    @workers.register("a", timeout=LIMIT, max_attempts=1, store_result=True)
    async def handle(job: RunningJob[Any]) -> str:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            log.append("swallowed")
        return "all the same"

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("a")
            await until(lambda: statuses(db, "a") not in (["pending"], ["processing"]))

    run_virtually(main)
    assert log == ["swallowed"]
    assert (only_document(db)["status"], only_document(db).get("result")) == ("completed", "all the same")


@ON_ASYNCIO
def test_task_that_outlives_its_handler_may_enqueue_and_not_save(db: Database, run: Run) -> None:
    workers, log, left = Workers(), list[str](), list[asyncio.Task[None]]()
    may_go_on = asyncio.Event()

    @workers.register("a", timeout=LONG)
    async def handle(job: RunningJob[Any]) -> None:
        async def goes_on() -> None:
            await may_go_on.wait()
            await job.scheduler.enqueue("later")
            for name, call in (("save", job.save), ("progress", job.set_progress)):
                try:
                    await call(1)
                except ClaimLostError:
                    log.append(f"{name} refused")
            with job.cleanup(1):
                await asyncio.sleep(0)
            log.append(str(job.cancel_reason))

        left.append(asyncio.create_task(goes_on()))

    async def main() -> None:
        async with open_scheduler(db, workers, cleanup_timeout=0.1, **QUICK) as scheduler:
            await scheduler.enqueue("a")
            await until(lambda: statuses(db, "a") == ["completed"])
            may_go_on.set()
            await asyncio.wait_for(left[0], 40)

    run(main)
    assert log == ["save refused", "progress refused", "lost"]
    assert statuses(db, "later") == ["pending"]


@ON_ASYNCIO
def test_calls_of_a_job_from_another_loop_and_thread(db: Database, run: Run) -> None:
    workers, seen = Workers(), list[object]()

    @workers.register("a", max_attempts=1)
    async def handle(job: RunningJob[Any]) -> None:
        async def elsewhere() -> None:
            await job.save("elsewhere")
            with job.cleanup(1) as scope:
                await job.set_progress("elsewhere")
            seen.append(scope.cancelled_caught)
            await job.scheduler.enqueue("other")

        def thread() -> None:
            asyncio.run(elsewhere())
            with pytest.raises(Exception, match="another trio run"):
                trio.run(job.save, "in trio")
            job.scheduler.sync.enqueue("other")

        await asyncio.to_thread(thread)
        seen.append(job.saved)

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("a")
            await until(lambda: statuses(db, "a") not in (["pending"], ["processing"]))

    run(main)
    assert seen == [False, "elsewhere"]
    assert statuses(db, "a") == ["completed"], db["monque_jobs"].find_one({"name": "a"})
    assert statuses(db, "other") == ["pending"] * 2


@ON_ASYNCIO
def test_handler_that_calls_trio_gets_advice(db: Database, run: Run) -> None:
    workers = Workers()

    @workers.register("a", max_attempts=1)
    async def handle(job: RunningJob[Any]) -> None:
        await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("a")
            await until(lambda: statuses(db, "a") == ["failed"])

    run(main)
    assert 'runs_on="runtime"' in only_document(db)["errors"][-1]["traceback"], only_document(db)["errors"][-1]
