"""How a scheduler starts, drains, is cut and crashes: the same on trio, asyncio and uvloop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import anyio
import pytest
from pymongo import MongoClient

from tests.asyncio_hosts.conftest import Run, VirtualRun, runtimes_left
from tests.asyncio_hosts.scenes import LONG, QUICK, SECONDS_TO_BEAT, LongJobs, only_document, statuses, until
from trio_monque import RunningJob, Scheduler, Workers, open_scheduler, run_scheduler
from trio_monque.engine.runner import LATE
from trio_monque.errors import InvalidDatabaseError, InvalidOptionError, MonqueConnectionError
from trio_monque.store.driver.types import Database


def test_leaving_drains_then_cuts_and_clips_clean_ups(db: Database, run_virtually: VirtualRun) -> None:
    workers, log = Workers(), list[object]()

    @workers.register("long")
    async def long(job: RunningJob[Any]) -> None:
        log.append("began")
        try:
            await anyio.sleep(LONG)
        finally:
            log.append(str(job.cancel_reason))
            with job.cleanup(0.1) as scope:
                await job.save({"at": 1})
                log.append("saved")
                await anyio.sleep(LONG)
            log.append(scope.cancelled_caught)
            with job.cleanup(LONG) as scope:
                await anyio.sleep(LONG)
            log.append(scope.cancelled_caught)

    async def main() -> None:
        async with open_scheduler(db, workers, shutdown_timeout=0.3, cleanup_timeout=0.5) as scheduler:
            await scheduler.enqueue("long")
            await until(lambda: log)
            left_at = anyio.current_time()
        assert run_virtually.took(anyio.current_time() - left_at, 0.8)
        assert scheduler.report is not None
        assert scheduler.report.released == 1

    run_virtually(main)
    assert log == ["began", "shutdown", "saved", True, True]
    document = only_document(db)
    assert (document["status"], document["saved"]) == ("pending", {"at": 1})


def test_a_clean_up_that_began_before_the_cancellation_is_clipped(db: Database, run_virtually: VirtualRun) -> None:
    workers, took = Workers(), list[float]()

    @workers.register("long", timeout=1.0, max_attempts=1)
    async def long(job: RunningJob[Any]) -> None:
        began_at = anyio.current_time()
        with job.cleanup(LONG):
            await anyio.sleep(LONG)
        took.append(anyio.current_time() - began_at)
        await anyio.sleep(LONG)

    async def main() -> None:
        async with open_scheduler(db, workers, cleanup_timeout=0.3, **QUICK) as scheduler:
            await scheduler.enqueue("long")
            await until(lambda: statuses(db, "long") == ["failed"])

    run_virtually(main)
    # Its time limit runs from the claim, and a busy event loop may call it so much later.
    lag = 0.0 if run_virtually.is_virtual else LATE
    assert run_virtually.took(took[0] + lag, 1.3)


def test_a_body_that_raises_or_is_cancelled_cuts(db: Database, run: Run) -> None:
    long = LongJobs()

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with open_scheduler(db, long.workers) as scheduler:
                await scheduler.enqueue("long")
                await until(lambda: long.log)
                1 / 0  # noqa: B018
        with anyio.CancelScope() as scope:
            async with open_scheduler(db, long.workers):
                await until(lambda: len(long.log) == 3)
                scope.cancel()
                await anyio.sleep(LONG)
        assert scope.cancelled_caught

    run(main)
    assert long.log == ["began", "shutdown"] * 2
    assert statuses(db, "long") == ["pending"]


@pytest.mark.full
def test_a_cancellation_while_draining_cuts(db: Database, run: Run) -> None:
    long = LongJobs()

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with open_scheduler(db, long.workers, shutdown_timeout=LONG) as scheduler:
                await scheduler.enqueue("long")
                await until(lambda: long.log)
                scope.deadline = anyio.current_time() + 0.3
        assert scope.cancelled_caught

    run(main)
    assert long.log == ["began", "shutdown"]
    assert statuses(db, "long") == ["pending"]


def test_a_handler_can_drain_and_run_scheduler_is_a_task_of_a_group(db: Database, run: Run) -> None:
    workers, long = Workers(), LongJobs()

    @workers.register("a")
    async def drains(job: RunningJob[Any]) -> None:
        job.scheduler.drain()

    async def main() -> None:
        async with open_scheduler(db, workers) as scheduler:
            await scheduler.enqueue("a")
            await scheduler.wait_drained()
        assert scheduler.report is not None
        assert scheduler.report.completed == 1
        async with anyio.create_task_group() as tasks:
            scheduler = cast("Scheduler", await tasks.start(partial(run_scheduler, db, workers)))
            await scheduler.enqueue("a")
        assert scheduler.report is not None
        assert scheduler.report.completed == 1
        async with anyio.create_task_group() as tasks:
            scheduler = await tasks.start(partial(run_scheduler, db, long.workers))
            await scheduler.enqueue("long")
            await until(lambda: long.log)
            tasks.cancel_scope.cancel()

    run(main)
    assert long.log == ["began", "shutdown"]
    assert statuses(db, "long") == ["pending"]


def test_a_crash_cancels_the_body_and_is_raised(
    db: Database, run_virtually: VirtualRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = LongJobs()

    async def crash(*_: object) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="a bug"):
            async with open_scheduler(
                db, long.workers, shutdown_timeout=LONG, heartbeat_interval=SECONDS_TO_BEAT
            ) as scheduler:
                await scheduler.enqueue("long")
                await until(lambda: long.log)
                monkeypatch.setattr("trio_monque.scheduler.renewals.JobRenewals.renew", crash)
                try:
                    await anyio.sleep(LONG)
                finally:
                    long.log.append("the body is cancelled")
        await anyio.sleep(0.01)
        task = None if not asyncio._get_running_loop() else asyncio.current_task()
        assert task is None or task.cancelling() == 0

    run_virtually(main)
    assert sorted(long.log) == ["began", "shutdown", "the body is cancelled"]
    assert statuses(db, "long") == ["pending"]


@pytest.mark.full
def test_wrong_arguments_are_refused_at_the_start(db: Database, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(InvalidOptionError):
            async with open_scheduler(db, Workers(), heartbeat_interval=-1):
                pass
        with pytest.raises(InvalidDatabaseError):
            async with open_scheduler("not a database", Workers()):  # type: ignore[arg-type]
                pass
        with MongoClient[Any]("localhost:1", serverSelectionTimeoutMS=300) as unreachable:
            with pytest.raises(MonqueConnectionError):
                async with open_scheduler(unreachable["x"], Workers(), start_timeout=0, operation_timeout=0.5):
                    pass
        assert not runtimes_left()

    run(main)


def test_calls_after_the_end(db: Database, run: Run) -> None:
    async def main() -> None:
        async with open_scheduler(db, Workers()) as scheduler:
            pass
        await scheduler.wait_drained()
        scheduler.drain()
        await scheduler.enqueue("x")
        assert not scheduler.is_healthy()
        assert scheduler.statistics().completed == 0

    run(main)
    assert statuses(db, "x") == ["pending"]
