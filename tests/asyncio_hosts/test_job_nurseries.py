"""Job nurseries on several event loops: a handler's block is on the loop of the application."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import BEATS, LONG, QUICK, SECONDS_TO_BEAT, statuses, until
from tests.support.waiting import wait_until
from trio_monque import (
    JobFailedError,
    JobNurseryError,
    Monque,
    RunningJob,
    Workers,
    open_job_nursery,
    open_scheduler,
)
from trio_monque.jobs.nursery_scopes import PROGRAM
from trio_monque.store.driver.types import Database


async def child(job: RunningJob[Any]) -> Any:
    if job.data == "fail":
        raise ValueError("no")
    if job.data == "long":
        await anyio.sleep(LONG)
    return job.data


def workers_with(parent: Any, **options: Any) -> Workers:
    workers = Workers()
    workers.register("child", child, max_attempts=1)
    workers.register("parent", parent, store_result=True, **options)
    return workers


def live(db: Database) -> int:
    """How many children are pending or run."""
    return db["monque_jobs"].count_documents({"name": "child", "status": {"$in": ["pending", "processing"]}})


def test_block_hands_over_results_and_a_failure_ends_the_others(db: Database, run: Run) -> None:
    async def parent(job: RunningJob[Any]) -> Any:
        first = await job.step("first", lambda: [1, 2])
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", first)
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", ["fail", "long", "long"])
        except JobNurseryError as failed:
            return [[one.result for one in children], len(failed.exceptions), live(db)]

    async def main() -> None:
        async with open_scheduler(db, workers_with(parent), **QUICK) as scheduler:
            ended = await scheduler.wait_job(await scheduler.enqueue("parent"), timeout=40)
            assert ended.result == [[1, 2], 1, 0]

    run(main)


def test_shutdown_leaves_the_children_to_the_next_scheduler(db: Database, run: Run) -> None:
    async def parent(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", [1, 2], delay=1)
        return [one.result for one in children]

    async def main() -> None:
        async with open_scheduler(db, workers_with(parent), shutdown_timeout=0, **QUICK) as scheduler:
            job = await scheduler.enqueue("parent")
            await until(lambda: scheduler.statistics().parked)
        assert live(db) == 2
        assert statuses(db, "parent") == ["pending"]
        async with open_scheduler(db, workers_with(parent), **QUICK) as scheduler:
            assert (await scheduler.wait_job(job, timeout=40)).result == [1, 2]

    run(main)


@pytest.mark.parametrize("on_drain", ["wait", "release"])
@pytest.mark.parametrize("acts", ["returns", "raises"])
def test_handler_that_is_cut_while_its_block_cancels_does_not_see_the_failure(
    db: Database, run: Run, acts: str, on_drain: Any
) -> None:
    """A child lives on. If the handler acted on the failure, its job would end beside that child."""
    seen: list[list[str]] = []

    async def parent(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job, on_drain=on_drain) as nursery:
                await nursery.start("slow")
                await nursery.run("child", "fail")
        except JobNurseryError:
            seen.append(statuses(db, "slow"))
            if acts == "raises":
                raise
        return "undone"  # Without an `await`, at which a cancellation could be raised.

    async def slow(job: RunningJob[Any]) -> None:
        with anyio.CancelScope(shield=True):
            await until(lambda: statuses(db, "parent") != ["processing"])

    async def main() -> None:
        workers = workers_with(parent)
        workers.register("slow", slow)
        options = {**QUICK, "shutdown_timeout": 0.5, "cleanup_timeout": 20}
        async with open_scheduler(db, workers, **options) as scheduler:
            await scheduler.enqueue("parent")
            await until(lambda: db["monque_jobs"].count_documents({"scopeFailed": {"$exists": True}}) == 1)
        assert (seen, statuses(db, "parent")) == ([], ["pending"])

    run(main)


def test_block_in_the_clean_up_of_a_cancelled_handler_ends_as_usual(db: Database, run: Run) -> None:
    """The run is cancelled, and its clean-up is shielded from that."""
    seen: list[Any] = []

    async def parent(job: RunningJob[Any]) -> None:
        try:
            await anyio.sleep(LONG)
        finally:
            with job.cleanup(20):
                try:
                    async with open_job_nursery(job) as nursery:
                        seen.append(await nursery.run("child", 5))
                        await nursery.start("child", "fail")
                except JobNurseryError:
                    seen.append(live(db))

    async def main() -> None:
        async with open_scheduler(db, workers_with(parent), **{**QUICK, "cleanup_timeout": 20}) as scheduler:
            job = await scheduler.enqueue("parent")
            await until(lambda: statuses(db, "parent") == ["processing"])
            await scheduler.cancel_job(job.id)
            await until(lambda: statuses(db, "parent") == ["cancelled"])

    run(main)
    assert seen == [5, 0]


def test_run_that_waits_is_released_by_a_drain_if_its_handler_wants_that(db: Database, run: Run) -> None:
    """Without waiting for the end of `shutdown_timeout`, which never comes here."""

    async def parent(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job, on_drain="release") as nursery:
            first = await nursery.run("child", 1)
            second = await nursery.start("child", 2, delay=1)
        return [first, second.result]

    async def main() -> None:
        with anyio.fail_after(50):
            async with open_scheduler(db, workers_with(parent), shutdown_timeout=math.inf, **QUICK) as scheduler:
                job = await scheduler.enqueue("parent")
                await until(lambda: scheduler.statistics().parked and live(db) == 1)
        assert statuses(db, "parent") == ["pending"]
        async with open_scheduler(db, workers_with(parent), **QUICK) as scheduler:
            assert (await scheduler.wait_job(job, timeout=40)).result == [1, 2]

    run(main)


@ON_ASYNCIO
@pytest.mark.full
def test_loop_that_stands_still_inside_a_block_keeps_its_claim_and_finds_the_failure_afterwards(
    db: Database, run: Run
) -> None:
    begun, is_still, runs, jobs = threading.Event(), threading.Event(), list[int](), db["monque_jobs"]

    def plain(job: RunningJob[Any]) -> None:
        begun.set()
        assert is_still.wait(20)
        raise ValueError("no")

    def beat() -> datetime:
        found = jobs.find_one({"name": "parent"})
        assert found is not None
        moment: datetime = found["lastHeartbeat"]
        return moment

    async def parent(job: RunningJob[Any]) -> None:
        runs.append(job.attempt)
        async with open_job_nursery(job) as nursery:
            await nursery.start("plain")
            await nursery.start("child", "long")
            await until(begun.is_set)
            is_still.set()
            lease_is_over = beat() + timedelta(seconds=4 * SECONDS_TO_BEAT)  # A lease is three.
            # All of it without the loop: the failure is stored, and the claim is renewed beyond its lease.
            wait_until(lambda: jobs.count_documents({"name": "plain", "status": "failed"}), "the child has failed")
            wait_until(lambda: beat() > lease_is_over, "the claim is renewed")

    async def main() -> None:
        workers = workers_with(parent)
        workers.register("plain", plain, max_attempts=1)
        async with open_scheduler(db, workers, **BEATS) as scheduler:
            with pytest.raises(JobFailedError):
                await scheduler.wait_job(await scheduler.enqueue("parent"), timeout=40)
            assert live(db) == 0

    run(main)
    assert runs == [1]


@pytest.mark.full
@ON_ASYNCIO
@pytest.mark.parametrize("times", [1, 2])
def test_handler_whose_own_task_is_cancelled_in_a_block_leaves_no_child_alive(
    db: Database, run: Run, times: int
) -> None:
    """By asyncio itself, past every scope: the attempt has failed, and its children are cancelled."""
    left: list[Any] = []

    async def parent(job: RunningJob[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", ["long", "long"])
                for number in range(times):
                    asyncio.get_running_loop().call_later(0.05 * (number + 1), task.cancel)
                await anyio.sleep(LONG)
        finally:
            left.append(live(db))

    async def main() -> None:
        async with open_scheduler(db, workers_with(parent, max_attempts=1), **QUICK) as scheduler:
            job = await scheduler.enqueue("parent")
            with pytest.raises(JobFailedError):
                await scheduler.wait_job(job, timeout=40)
            await until(lambda: not live(db))

    run(main)
    assert left == [0]


@ON_ASYNCIO
@pytest.mark.parametrize("times", [1, 3])
def test_program_whose_task_is_cancelled_ends_its_children_and_leaves_no_job(
    db: Database, run: Run, times: int
) -> None:
    async def parent(job: RunningJob[Any]) -> None: ...

    async def main() -> None:
        began = asyncio.Event()

        async def program() -> None:
            async with open_job_nursery(Monque(db)) as nursery:
                await nursery.map("child", ["long", "long"])
                began.set()
                await asyncio.sleep(LONG)

        async with open_scheduler(db, workers_with(parent), **QUICK):
            task = asyncio.create_task(program())
            await began.wait()
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0.01)
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: not live(db))
            assert statuses(db, PROGRAM) == []

    run(main)


@ON_ASYNCIO
def test_program_whose_task_is_cancelled_waits_for_its_children_as_long_as_it_may_clean_up(
    db: Database, run: Run
) -> None:
    """By asyncio itself, as `asyncio.wait_for` does: the children that go on are left to the fleet."""
    may_end = anyio.Event()

    async def stubborn(job: RunningJob[Any]) -> None:
        with anyio.CancelScope(shield=True):
            await may_end.wait()

    async def main() -> None:
        began = asyncio.Event()
        workers = Workers()
        workers.register("child", stubborn, max_attempts=1)

        async def program(scheduler: Monque) -> None:
            async with open_job_nursery(scheduler) as nursery:
                await nursery.start("child")
                await until(lambda: statuses(db, "child") == ["processing"])
                began.set()
                await asyncio.sleep(LONG)

        async with open_scheduler(db, workers, **{**QUICK, "cleanup_timeout": 0.2}) as scheduler:
            task = asyncio.create_task(program(scheduler))
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            left = statuses(db, "child"), statuses(db, PROGRAM)
            may_end.set()
            await until(lambda: not live(db))
        assert left == (["processing"], [])

    run(main)
