"""The last look before a handler is called: whether its job may still start, and whether the claim is still held."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import Shelf, engine_of, running
from trio_monque import JobStatus, Monque, RunningJob, Workers
from trio_monque.errors import ShortageError
from trio_monque.events import JobCancelled
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, drain, now, quiesce
from trio_monque.threads_and_frozen_time import call_in_thread


async def test_job_behind_a_handler_that_blocks_the_loop_does_not_start_after_its_limit(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Both are claimed in one look. The first handler blocks the loop until the limit of the second is over."""
    workers, ran, cancelled = Workers(), list[Any](), list[JobCancelled]()

    @workers.register("greet", concurrency=5)
    async def greet(job: RunningJob[Any]) -> None:
        ran.append(job.data)
        if len(ran) == 1:
            autojump_clock.jump(10)

    limit = now() + timedelta(seconds=5)
    both = [await monque.enqueue(greet, number, start_by=limit) for number in (1, 2)]
    async with open_test_scheduler(workers, listeners={JobCancelled: cancelled.append}) as scheduler:
        await drain(scheduler)
        assert len(ran) == 1
        late = next(job for job in both if job.data not in ran)
        assert [event.job.id for event in cancelled] == [late.id]
        assert (scheduler.statistics().completed, scheduler.statistics().cancelled) == (1, 1)
    stored = jobs.find_one({"_id": late.id})
    assert stored is not None
    assert (stored["status"], stored.get("failCount", 0)) == ("cancelled", 0)
    assert stored["failReason"].startswith("start_by: not started by")


@pytest.mark.parametrize("in_middleware", [False, True])
async def test_plain_handler_whose_thread_starts_too_late_is_not_called(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    in_middleware: bool,
) -> None:
    """The process is short of threads until the limit is over. A middleware that was called has begun the run."""

    async def around(job: RunningJob[Any], run: Any) -> None:
        await run()

    workers, ran = Workers(middleware=[around] if in_middleware else []), list[Any]()
    workers.register("greet", lambda job: ran.append(job.data))
    is_short = [True]
    async with open_test_scheduler(workers) as scheduler:
        await quiesce()
        monkeypatch.setattr("trio_monque.scheduler.job_run.call_in_thread", short_of_threads(is_short))
        job = await scheduler.enqueue("greet", 1, start_by=now() + timedelta(seconds=2))
        await trio.sleep(60)
        is_short[0] = False
        await drain(scheduler)
        await trio.sleep(60)
    stored = await monque.get_job(job.id)
    assert stored is not None
    assert (ran, stored.status) == (([1], JobStatus.COMPLETED) if in_middleware else ([], JobStatus.CANCELLED))


def short_of_threads(is_short: list[bool]) -> Any:
    async def call(function: Any, **options: Any) -> Any:
        if is_short[0]:
            raise ShortageError("can't start new thread")
        return await call_in_thread(function, **options)

    return call


async def test_time_before_the_handler_is_called_does_not_count_for_its_time_limit(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers, ran = Workers(), list[Any]()

    @workers.register("greet", concurrency=5, timeout=5, max_attempts=1)
    async def greet(job: RunningJob[Any]) -> None:
        ran.append(job.data)
        if len(ran) == 1:
            autojump_clock.jump(10)

    for number in (1, 2):
        await monque.enqueue(greet, number)
    async with open_test_scheduler(workers) as scheduler:
        await drain(scheduler)
        assert (sorted(ran), scheduler.statistics().completed) == ([1, 2], 2)


async def test_item_whose_start_limit_is_over_is_concluded_without_a_call(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], start_limits={1: 3.0}, claim_takes=5.0)
    engine = engine_of(shelf)
    async with running(engine):
        await trio.sleep(100)
    (end,) = shelf.settled.values()
    assert (end.value, end.cancelled, end.reason, end.has_begun) == (None, True, None, False)
    assert shelf.heard("run_started") == []
