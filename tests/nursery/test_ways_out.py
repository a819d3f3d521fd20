"""Blocks that end before their children do: by a cancellation, a time limit, a shutdown, or an early failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

from tests.nursery.flows import Flow, live, only, run_parent, statuses, taken_back
from trio_monque import CancelReason, RunningJob, Snooze, open_job_nursery
from trio_monque.events import Event, JobCancelled, JobFailed
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, crash, drain, quiesce


@contextmanager
def noting_what_lives(jobs: Collection, job: RunningJob[Any], into: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        into.append((job.cancel_reason, live(jobs)))


@pytest.mark.parametrize("why", ["request", "time limit"])
async def test_cancelled_run_ends_its_children_before_its_handler_goes_on(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, why: str
) -> None:
    """N13: the block ends them, and not the fleet after the end of the job."""
    left: list[Any] = []

    async def body(job: RunningJob[Any]) -> None:
        with noting_what_lives(jobs, job, left):
            async with open_job_nursery(job) as nursery:
                await nursery.start("child", 5000, delay=5000)
                await nursery.start("child", 5000)

    flow = Flow(body, max_attempts=1, **({} if why == "request" else {"timeout": 100}))
    async with open_test_scheduler(flow.workers, lock_timeout=None, cleanup_timeout=60) as scheduler:
        parent = await scheduler.enqueue("parent")
        await trio.sleep(50)
        if why == "request":
            await scheduler.cancel_job(parent.id)
        await trio.sleep(200)
        await quiesce()
    assert left == [(CancelReason.USER if why == "request" else CancelReason.TIMEOUT, 0)]
    assert statuses(jobs) == {"cancelled": 2}


async def test_children_that_do_not_end_hold_a_cancelled_run_for_its_clean_up_time_only(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """N13."""
    left: list[Any] = []

    async def stubborn(job: RunningJob[Any]) -> None:
        with anyio.CancelScope(shield=True):
            await trio.sleep(500)

    async def body(job: RunningJob[Any]) -> None:
        began = 0.0
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.start("stubborn")
                try:
                    await trio.sleep_forever()
                finally:
                    began = trio.current_time()
        finally:
            left.append(trio.current_time() - began)

    flow = Flow(body)
    flow.workers.register("stubborn", stubborn)
    async with open_test_scheduler(flow.workers, lock_timeout=None, cleanup_timeout=20) as scheduler:
        parent = await scheduler.enqueue("parent")
        await trio.sleep(50)
        await scheduler.cancel_job(parent.id)
        await trio.sleep(100)
        await quiesce()
        assert only(jobs)["status"] == "cancelled"
        assert live(jobs) == 1
        await crash(scheduler)
    assert left == [pytest.approx(20, abs=1)]
    assert "the fleet cancels the rest" in caplog.text


@pytest.mark.full
async def test_block_in_a_healthy_run_waits_for_children_that_take_their_time_to_end(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N13: no child outlives the block."""

    async def stubborn(job: RunningJob[Any]) -> None:
        with anyio.CancelScope(shield=True):
            await trio.sleep(500)

    async def body(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.start("stubborn")
                await trio.sleep(1)
                raise KeyError
        except ExceptionGroup:
            return live(jobs)

    flow = Flow(body)
    flow.workers.register("stubborn", stubborn)
    async with open_test_scheduler(flow.workers, lock_timeout=None, cleanup_timeout=20) as scheduler:
        parent = await scheduler.enqueue("parent")
        assert (await scheduler.wait_job(parent)).result == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("why", "phase"),
    [
        *((why, phase) for why in ("lost", "shut down") for phase in ("in the body", "while it waits")),
        ("handed over", "while it waits"),  # In the body, that is a time limit.
        ("snoozed", "in the body"),
    ],
)
async def test_run_that_another_one_continues_leaves_its_children_as_they_are(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, phase: str, why: str
) -> None:
    """N13."""
    left: list[Any] = []

    async def body(job: RunningJob[Any]) -> None:
        with noting_what_lives(jobs, job, left):
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", [50_000, 60_000], delay=100)
                if why == "lost":
                    taken_back(jobs)
                if why == "snoozed":
                    raise Snooze(after=10_000)
                if phase == "in the body":
                    await trio.sleep_forever()

    flow = Flow(body)
    lock_timeout = 200 if why == "handed over" else None
    async with open_test_scheduler(flow.only_children, lock_timeout=None) as other:
        async with open_test_scheduler(flow.only_parents, lock_timeout=lock_timeout, shutdown_timeout=5) as scheduler:
            await other.enqueue("parent")
            await trio.sleep(50)
            if why in ("lost", "handed over"):
                await trio.sleep(150)
                await quiesce()
                scheduler.drain()
        await quiesce()
        reasons = {"lost": CancelReason.LOST, "snoozed": None}
        assert left[0] == (reasons.get(why, CancelReason.SHUTDOWN), 2)
        assert jobs.count_documents({"name": "child", "scopeCancel": {"$exists": True}}) == 0
        assert only(jobs)["status"] == "pending"
        await crash(other)


async def test_cancelled_run_ends_the_children_of_an_earlier_run_also_before_its_block(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N19: the run ends them itself, before its end is written."""
    lived: list[int] = []

    async def body(job: RunningJob[Any]) -> None:
        if job.attempt == 1:
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", [5000, 6000])
                await trio.sleep(10)
                raise Snooze(after=10)
        await trio.sleep_forever()

    async def hear(event: Event) -> None:
        if isinstance(event, JobCancelled) and event.job.name == "parent":
            lived.append(live(jobs))

    flow = Flow(body)
    async with open_test_scheduler(flow.workers, lock_timeout=None, listeners={JobCancelled: hear}) as scheduler:
        parent = await scheduler.enqueue("parent")
        await trio.sleep(60)
        await scheduler.cancel_job(parent.id)
        await trio.sleep(100)
        await quiesce()
    assert lived == [0]
    assert flow.attempts == [1, 2]


async def test_run_that_fails_before_its_block_leaves_the_children_to_the_next_attempt(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N19 applies only to runs that end the job."""

    async def body(job: RunningJob[Any]) -> Any:
        if job.attempt == 2:
            raise OSError
        async with open_job_nursery(job) as nursery:
            child = await nursery.start("child", 500)
            if job.attempt == 1:
                raise Snooze(after=10)
        return child.result

    flow = Flow(body, backoff=10)
    assert (await run_parent(open_test_scheduler, flow)).result == 500
    assert flow.runs == {"500": 1}


async def test_failed_run_of_a_parent_is_over_before_its_children_are(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N22: a parent fails for good before it opens its block, and the fleet ends its children."""
    ends: list[str] = []

    async def body(job: RunningJob[Any]) -> None:
        if job.attempt == 2:
            raise OSError
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [5000, 6000])
            raise Snooze(after=10)

    async def hear(event: Event) -> None:
        ends.append(type(event).__name__)

    flow = Flow(body, max_attempts=1)
    async with open_test_scheduler(flow.workers, listeners={JobFailed: hear}) as scheduler:
        await scheduler.enqueue("parent")
        await advance(60)
        await drain(scheduler)
        assert live(jobs) == 0
    assert ends == ["JobFailed"]
    assert statuses(jobs) == {"cancelled": 2}
