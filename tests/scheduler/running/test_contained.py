"""What handlers give and do at the edges, contained: each test is a fault that was found and mended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from tests.support.jobs_in_memory import flat
from trio_monque import JobStatus, Monque, Retry, RunningJob, Snooze, Workers
from trio_monque.events import JobClaimLost, JobFailed
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain, quiesce
from trio_monque.threads_and_frozen_time import FreezingLimiter


async def test_results_that_are_equal_are_stored_as_what_each_is(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("echo", store_result=True, concurrency=20)
    async def echo(job: RunningJob[Any]) -> Any:
        return job.data

    values = [True, 1, 1.0, 0, False, 0.0, (1,), (True,)]
    for value in values:
        await monque.enqueue("echo", value)
    async with open_test_scheduler(workers) as scheduler:
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=len(values))
    for document in jobs.find():
        assert repr(document["result"]) == repr(document["data"])


async def test_result_is_what_it_was_when_the_handler_returned(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    shared: dict[str, Any] = {"n": 1}

    @workers.register("job", store_result=True)
    async def handler(job: RunningJob[Any]) -> Any:
        job.resources.start_soon(spoil)
        return shared

    async def spoil() -> None:
        shared["object"] = object()

    async with trio.open_nursery() as nursery, open_test_scheduler(workers, resources=nursery) as scheduler:
        await scheduler.enqueue("job")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    document = jobs.find_one()
    assert document is not None
    assert document["result"] == {"n": 1}


async def test_saved_state_is_what_was_stored_and_not_the_handlers_object(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    seen: list[Any] = []

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        state = {"n": 1}
        await job.save(state)
        state["n"] = 99
        seen.append(job.saved)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("job")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert seen == [{"n": 1}]


async def test_clean_up_that_began_before_the_cancellation_is_bounded_as_well(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    entered = trio.Event()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        with job.cleanup(600):
            entered.set()
            await trio.sleep(10_000)
        await trio.lowlevel.checkpoint()

    async with open_test_scheduler(workers, shutdown_timeout=0, cleanup_timeout=5) as scheduler:
        await scheduler.enqueue("job")
        await entered.wait()
        left = trio.current_time()
    assert trio.current_time() - left == 5
    assert jobs.count_documents({"status": "pending"}) == 1


class OwnRetry(Retry):
    def __init__(self, what: str) -> None:
        self.what = what


class OwnSnooze(Snooze):
    def __init__(self) -> None:
        pass


class Unreadable(dict[str, Any]):
    def items(self) -> Any:
        raise KeyError("not today")


class OwnGroup(ExceptionGroup[Exception]):
    def derive(self, excs: Any) -> Any:
        raise RuntimeError("no part of this")


class Exits(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("what", "status", "reason"),
    [
        (OwnRetry("busy"), "pending", "busy"),
        (OwnSnooze(), "pending", None),
        (OwnGroup("own", [ValueError("no")]), "pending", "ValueError: no"),
        (Exits(), "pending", "Exits: (its message cannot be shown)"),
        (Unreadable(a=1), "completed", None),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_whatever_a_handler_gives_its_own_job_is_all_it_decides(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    what: Any,
    status: str,
    reason: str | None,
) -> None:
    workers = Workers()

    @workers.register("job", store_result=True)
    async def handler(job: RunningJob[Any]) -> Any:
        if isinstance(what, Exception):
            raise what
        return what

    workers.register("innocent", lambda job: None)
    async with open_test_scheduler(workers, base_retry_interval=1000) as scheduler:
        guilty = await scheduler.enqueue("job")
        await drain(scheduler)
        assert jobs.count_documents({"name": "job", "finishedAt": {"$exists": True}}) == 1
        await scheduler.enqueue("innocent")
        await drain(scheduler)
        await assert_enqueued(scheduler, name="innocent", status="completed", count=1)
    stored = await monque.get_job(guilty.id)
    assert stored is not None
    assert (stored.status, stored.fail_reason) == (status, reason)


@pytest.mark.full
async def test_failure_that_does_not_fit_into_the_document_is_stored_lighter(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("job", max_attempts=1)
    async def handler(job: RunningJob[Any]) -> None:
        await job.save("y" * (7 * 1024 * 1024 - 700))
        raise ValueError("x" * 100)

    reported: list[Any] = []
    async with open_test_scheduler(
        workers, listeners=dict.fromkeys((JobFailed, JobClaimLost), reported.append)
    ) as scheduler:
        job = await scheduler.enqueue("job", "x" * (9 * 1024 * 1024))
        await drain(scheduler)
        await assert_enqueued(scheduler, status="failed", count=1)
    assert [type(event) for event in reported] == [JobFailed]
    stored = await monque.get_job(job.id)
    assert stored is not None
    # The history of errors gives way, and nothing else.
    assert stored.fail_reason == f"ValueError: {'x' * 100}"
    assert stored.saved == "y" * (7 * 1024 * 1024 - 700)
    assert list(stored.errors) == []


async def test_thread_of_an_async_handler_may_check_for_cancellation(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    entered = trio.Event()
    token = trio.lowlevel.current_trio_token()

    @workers.register("job", max_attempts=1)
    async def handler(job: RunningJob[Any]) -> None:
        def work() -> None:
            trio.from_thread.run_sync(entered.set, trio_token=token)
            while True:
                trio.from_thread.run(trio.lowlevel.checkpoint, trio_token=token)
                job.check_cancelled()

        await trio.to_thread.run_sync(work, limiter=cast("trio.CapacityLimiter", FreezingLimiter(1)))

    async with open_test_scheduler(workers, shutdown_timeout=0) as scheduler:
        await scheduler.enqueue("job")
        await entered.wait()
    assert jobs.count_documents({"status": "pending", "failCount": 0}) == 1
    assert scheduler.report is not None
    # A claim that was in flight may have taken it once more, and given it back.
    assert scheduler.report.released in (1, 2)
    assert scheduler.report.failed == 0


async def test_handler_that_cancels_the_engines_nursery_ends_the_scheduler_loudly(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        nursery = trio.lowlevel.current_task().parent_nursery
        assert nursery is not None
        nursery.cancel_scope.cancel()
        await trio.sleep_forever()

    with pytest.raises(RuntimeError, match="cancelled the nursery"):
        async with open_test_scheduler(workers) as scheduler:
            await scheduler.enqueue("job")
            await trio.sleep_forever()
    assert jobs.count_documents({"status": "processing"}) == 0


@pytest.mark.parametrize("foreign", ["a string", {"k": 1}, 7, True, ["x", {"error": "kept"}]])
async def test_foreign_error_history_does_not_prevent_a_retry(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock, foreign: Any
) -> None:
    workers = Workers()

    @workers.register("job", max_attempts=5)
    async def handler(job: RunningJob[Any]) -> None:
        raise ValueError("no")

    async with open_test_scheduler(workers, base_retry_interval=1000) as scheduler:
        job = await scheduler.enqueue("job", delay=1)
        jobs.update_one({"_id": job.id}, {"$set": {"errors": foreign}})
        await advance(1)
        assert jobs.count_documents({"failCount": 1}) == 1
    stored = await monque.get_job(job.id)
    assert stored is not None
    assert (stored.status, stored.fail_reason) == (JobStatus.PENDING, "ValueError: no")
    assert [entry["error"] for entry in stored.errors][-1] == "ValueError: no"


@pytest.mark.parametrize("edit", [{"repeatInterval": 5}, {"repeatInterval": "0 * * * *", "maxRetries": "x"}])
async def test_document_that_is_broken_by_hand_during_its_run_harms_no_other(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, edit: dict[str, Any]
) -> None:
    workers = Workers()

    @workers.register("tick")
    async def tick(job: RunningJob[Any]) -> None:
        jobs.update_one({"_id": job.id}, {"$set": edit})

    workers.register("innocent", lambda job: None)
    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("tick", delay=1)
        jobs.update_one({"_id": job.id}, {"$set": {"repeatInterval": "* * * * *"}})
        await advance(1)
        assert jobs.count_documents({"attempts": 1, "status": "pending"}) == 1
        await scheduler.enqueue("innocent")
        await drain(scheduler)
        await assert_enqueued(scheduler, name="innocent", status="completed", count=1)
    assert jobs.count_documents({"status": "processing"}) == 0


@pytest.mark.parametrize("ends", ["succeeds", "fails for good"])
async def test_schedule_declared_over_a_running_one_off_job_lives_on(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock, ends: str
) -> None:
    workers = Workers()
    declared = trio.Event()

    @workers.register("job", max_attempts=1)
    async def handler(job: RunningJob[Any]) -> None:
        await declared.wait()
        if ends != "succeeds" and job.attempt == 1:
            raise ValueError("no")

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("job", "old", unique_key="k")
        await quiesce()
        await assert_enqueued(scheduler, status="processing", count=1)
        await scheduler.schedule("30 4 1 1 *", "job", "new", unique_key="k", on_conflict="update")
        declared.set()
        await drain(scheduler)
        assert jobs.count_documents({"status": "pending", "finishedAt": {"$exists": True}}) == 1
    (stored,) = await monque.get_jobs()
    assert (flat(stored).repeat_interval, stored.data, stored.next_run_at.minute) == ("30 4 1 1 *", "new", 30)


@dataclass
class Item:
    name: str


@dataclass
class Order:
    main: Item
    total: int = field(init=False, default=0)


async def test_nested_dataclasses_come_back_as_what_they_were(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    got: list[Any] = []

    @workers.register("order", payload=Order)
    async def order(job: RunningJob[Order]) -> None:
        got.append(job.data)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue(order, Order(Item("b")))
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert got == [Order(Item("b"))]
