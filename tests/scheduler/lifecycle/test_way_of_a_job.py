"""From an enqueuing program over a real server to a handler and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from bson import ObjectId
from trio.testing import MockClock

from trio_monque import JobStatus, Monque, RunningJob, Workers, run_scheduler
from trio_monque.errors import WorkerRegistrationError
from trio_monque.events import JobCompleted, JobFailed, JobStarted
from trio_monque.host.host import LAST_WORDS
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain, now, quiesce, start_virtual_time

START = datetime(2026, 3, 1, 12, 20, tzinfo=UTC)
CLAIM_FIELDS = {"claimedBy", "lockedAt", "lastHeartbeat", "heartbeatInterval", "claimToken"}


async def test_async_handler_gets_its_job_and_it_is_completed(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    seen: list[RunningJob[Any]] = []

    @workers.register("greet")
    async def greet(job: RunningJob[dict[str, str]]) -> None:
        seen.append(job)

    async with open_test_scheduler(workers, resources="the pool") as scheduler:
        job = await scheduler.enqueue("greet", {"to": "a@b.c"})
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)

    (running,) = seen
    assert running.id == job.id
    assert running.name == "greet"
    assert running.data == {"to": "a@b.c"}
    assert running.attempt == 1
    assert running.fail_count == 0
    assert running.resources == "the pool"
    assert running.scheduler is scheduler
    document = jobs.find_one({"_id": job.id})
    assert document is not None
    assert not CLAIM_FIELDS & document.keys()
    assert document["attempts"] == 1
    assert document["startedAt"] <= document["finishedAt"]
    assert scheduler.report is not None
    assert (scheduler.report.completed, scheduler.report.failed, scheduler.report.released) == (1, 0, 0)


async def test_plain_handler_runs_in_a_thread(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    in_trio: list[bool] = []

    @workers.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        in_trio.append(trio.lowlevel.in_trio_run() and trio.lowlevel.in_trio_task())
        job.scheduler.sync.enqueue("other", {"from": str(job.id)})

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue(plain)
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)

    assert in_trio == [False]
    assert jobs.count_documents({"name": "other", "status": "pending"}) == 1


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_failure_is_retried_with_backoff_until_it_succeeds(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, asynchronous: bool
) -> None:
    workers = Workers()
    tries: list[tuple[float, int, int, str | None]] = []
    began = now()

    def attempt(job: RunningJob[Any]) -> None:
        tries.append(((now() - began).total_seconds(), job.attempt, job.fail_count, job.fail_reason))
        if job.fail_count < 2:
            raise ValueError(f"no {job.fail_count}")

    async def attempt_async(job: RunningJob[Any]) -> None:
        attempt(job)

    workers.register("shaky", attempt_async if asynchronous else attempt)
    failed: list[JobFailed] = []
    completed: list[JobCompleted] = []
    async with open_test_scheduler(
        workers, retry_jitter=0.0, listeners={JobFailed: failed.append, JobCompleted: completed.append}
    ) as scheduler:
        job = await scheduler.enqueue("shaky")
        await trio.sleep(6)
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=1)

    # 2 ** 1 and 2 ** 2 times a base of one second.
    assert tries == [(0, 1, 0, None), (2, 2, 1, "ValueError: no 0"), (6, 3, 2, "ValueError: no 1")]
    assert [(event.job.fail_count, event.will_retry) for event in failed] == [(1, True), (2, True)]
    assert failed[0].job.next_run_at - failed[0].job.updated_at == timedelta(seconds=2)
    assert failed[1].job.next_run_at - failed[1].job.updated_at == timedelta(seconds=4)
    assert str(failed[0].error) == "no 0"
    assert [event.job.status for event in completed] == [JobStatus.COMPLETED]
    stored = await monque.get_job(job.id)
    assert stored == completed[0].job  # The event carries what the database holds.
    assert stored.fail_reason is None


async def test_last_failure_ends_the_job(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("hopeless", max_attempts=2)
    async def hopeless(job: RunningJob[Any]) -> None:
        raise RuntimeError("never")

    failed: list[JobFailed] = []
    async with open_test_scheduler(workers, listeners={JobFailed: failed.append}) as scheduler:
        kept = await scheduler.enqueue("hopeless", {"a": 1})
        once = await scheduler.enqueue("hopeless", max_attempts=1)
        await advance(60)
        await assert_enqueued(scheduler, status="failed", count=2)

    stored = await monque.get_job(str(kept.id))
    assert stored is not None
    assert (stored.fail_count, stored.fail_reason, stored.data) == (2, "RuntimeError: never", {"a": 1})
    assert jobs.find_one({"_id": once.id}, {"failCount": 1, "_id": 0}) == {"failCount": 1}
    assert [event.will_retry for event in failed].count(False) == 2
    assert failed[-1].job == stored


async def test_delayed_job_starts_when_it_is_due(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    started: list[float] = []

    @workers.register("later")
    async def later(job: RunningJob[Any]) -> None:
        started.append(trio.current_time())

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("later", delay=600)
        assert job.next_run_at - job.created_at == timedelta(minutes=10)
        await trio.sleep(599)
        assert not started
        await trio.sleep(1)
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=1)

    assert started == [600]


async def test_recurring_job_goes_on_at_its_next_occurrence(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    runs: list[datetime] = []
    start_virtual_time(START)

    @workers.register("tick")
    async def tick(job: RunningJob[Any]) -> None:
        runs.append(job.next_run_at)

    async with open_test_scheduler(workers) as scheduler:
        first = await scheduler.enqueue("tick", delay=1)
        jobs.update_one({"_id": first.id}, {"$set": {"repeatInterval": "0 * * * *"}})
        await trio.sleep(3 * 3600)

    assert runs == [
        START + timedelta(seconds=1),
        *(datetime(2026, 3, 1, hour, tzinfo=UTC) for hour in (13, 14, 15)),
    ]
    stored = await monque.get_job(first.id)
    assert stored is not None
    assert stored.status is JobStatus.PENDING
    assert stored.next_run_at == datetime(2026, 3, 1, 16, tzinfo=UTC)


async def test_schedule_that_cannot_be_understood_ends_loudly(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("tick", lambda job: None)
    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("tick", delay=1)
        jobs.update_one({"_id": job.id}, {"$set": {"repeatInterval": "0 0 * * * *"}})
        await advance(1)
        await assert_enqueued(scheduler, status="failed", count=1)
    document = jobs.find_one({"_id": job.id})
    assert document is not None
    assert "6 fields" in document["failReason"]


async def test_schedule_changed_during_the_run_decides_the_next_occurrence(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    start_virtual_time(START)

    @workers.register("tick")
    async def tick(job: RunningJob[Any]) -> None:
        jobs.update_one({"_id": job.id}, {"$set": {"repeatInterval": "30 4 1 1 *"}})

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("tick", delay=1)
        jobs.update_one({"_id": job.id}, {"$set": {"repeatInterval": "* * * * *"}})
        await advance(1)
        assert jobs.count_documents({"status": "pending", "finishedAt": {"$exists": True}}) == 1
    stored = await monque.get_job(job.id)
    assert stored is not None
    assert stored.next_run_at == datetime(2027, 1, 1, 4, 30, tzinfo=UTC)


async def test_earliest_due_job_starts_first(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()
    order: list[int] = []

    @workers.register("ordered", concurrency=1)
    async def ordered(job: RunningJob[int]) -> None:
        order.append(job.data)

    base = datetime(2020, 1, 1, tzinfo=UTC)
    for number in (3, 1, 4, 0, 2):
        await monque.enqueue("ordered", number, run_at=base + timedelta(seconds=number))
    async with open_test_scheduler(workers) as scheduler:
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=5)
    assert order == [0, 1, 2, 3, 4]


async def test_concurrency_limits_hold_and_slots_are_refilled_at_once(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    running = {"a": 0, "b": 0}
    most = {"a": 0, "b": 0, "all": 0}

    async def work(job: RunningJob[Any]) -> None:
        running[job.name] += 1
        most[job.name] = max(most[job.name], running[job.name])
        most["all"] = max(most["all"], sum(running.values()))
        await trio.sleep(10)
        running[job.name] -= 1

    workers.register("a", work, concurrency=3)
    workers.register("b", work, concurrency=4)
    for _ in range(12):
        await monque.enqueue("a")
        await monque.enqueue("b")
    async with open_test_scheduler(workers, concurrency=5) as scheduler:
        # No poll comes meanwhile: only freed slots bring the next jobs.
        await trio.sleep(50)
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=24)
    assert most["all"] == 5
    assert most["a"] <= 3
    assert most["b"] <= 4


async def test_long_backlog_of_one_name_does_not_starve_another(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()
    order: list[str] = []

    async def work(job: RunningJob[Any]) -> None:
        order.append(job.name)
        await trio.sleep(1)

    workers.register("many", work)
    workers.register("few", work)
    for _ in range(40):
        await monque.enqueue("many")
    await monque.enqueue("few")
    async with open_test_scheduler(workers, concurrency=2) as scheduler:
        await trio.sleep(21)
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=41)
    assert order.index("few") <= 3


async def test_worker_registered_while_running_gets_jobs_and_a_name_has_one_worker(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    ran: list[str] = []
    async with open_test_scheduler() as scheduler:
        await scheduler.enqueue("late")
        await advance(5)
        assert jobs.count_documents({"status": "pending"}) == 1
        scheduler.register("late", lambda job: ran.append("first"))
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=1)
        with pytest.raises(WorkerRegistrationError, match="'late'"):
            scheduler.register("late", lambda job: None)
        scheduler.register("late", lambda job: ran.append("second"), replace=True)
        await scheduler.enqueue("late")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=2)
    assert ran == ["first", "second"]


async def test_runs_of_a_replaced_handler_still_count_and_are_awaited(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    ended: list[str] = []
    entered = trio.Event()

    async def slow(job: RunningJob[Any]) -> None:
        entered.set()
        await trio.sleep(20)
        ended.append("old")

    async def quick(job: RunningJob[Any]) -> None:
        ended.append("new")

    async with open_test_scheduler() as scheduler:
        scheduler.register("swap", slow, concurrency=1)
        await scheduler.enqueue("swap")
        await entered.wait()
        scheduler.register("swap", quick, concurrency=1, replace=True)
        await scheduler.enqueue("swap")
        await advance(10)
        assert ended == []  # The old run holds the only slot.
    assert ended == ["old"]  # And leaving waited for it.
    assert jobs.count_documents({"status": "pending"}) == 1


async def test_run_scheduler_is_a_task_of_ones_own_nursery(
    db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("greet", lambda job: None)
    async with trio.open_nursery() as nursery:
        scheduler = await nursery.start(run_scheduler, db, workers)
        await scheduler.enqueue("greet")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
        scheduler.drain()
        scheduler.drain()
        await scheduler.wait_drained()
    assert scheduler.report.completed == 1


async def test_document_with_only_the_fields_of_monque_is_claimed_and_completed(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    at = datetime.now(UTC)
    inserted = jobs.insert_one(
        {
            "name": "by-hand",
            "data": {"n": 1},
            "status": "pending",
            "nextRunAt": at,
            "failCount": 0,
            "createdAt": at,
            "updatedAt": at,
        }
    )
    workers = Workers()
    got: list[tuple[ObjectId, Any, int]] = []

    @workers.register("by-hand")
    async def by_hand(job: RunningJob[Any]) -> None:
        got.append((job.id, job.data, job.attempt))

    async with open_test_scheduler(workers) as scheduler:
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert got == [(inserted.inserted_id, {"n": 1}, 1)]


async def test_malformed_documents_at_the_head_of_the_queue_are_logged_and_delay_no_job(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    at = datetime(2020, 1, 1, tzinfo=UTC)
    for number in range(20):
        jobs.insert_one({"name": "greet", "status": "pending", "nextRunAt": at, "failCount": f"{number}"})
    workers = Workers()
    workers.register("greet", lambda job: None, concurrency=2)
    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("greet")
        await quiesce()
        assert jobs.count_documents({"status": "completed"}) == 1
    assert jobs.count_documents({"status": "pending"}) == 20
    assert caplog.text.count("is not a job") == 20


async def test_listeners_that_are_slow_or_raise_touch_no_job(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers()
    workers.register("greet", lambda job: None)
    heard: list[str] = []

    async def slow(event: JobStarted) -> None:
        await trio.sleep(1000)

    def raising(event: JobStarted) -> None:
        raise RuntimeError("a listener's own fault")

    def hears(event: JobCompleted) -> None:
        heard.append(str(event.job.id))

    async with open_test_scheduler(workers, listeners={JobStarted: [slow, raising], JobCompleted: hears}) as scheduler:
        remove = scheduler.on(JobCompleted, hears)
        remove()
        made = [await scheduler.enqueue("greet") for _ in range(5)]
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=5)
        assert trio.current_time() == 0
    assert sorted(heard) == sorted(str(job.id) for job in made)
    assert "a listener's own fault" in caplog.text
    # A listener that is far behind holds the end up no longer than for that.
    assert trio.current_time() == LAST_WORDS
