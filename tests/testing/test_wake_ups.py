"""In virtual time no scheduler polls: each way to make a job must wake those that can run it. Each was missed once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel
from bson.datetime_ms import DatetimeMS
from pymongo.errors import AutoReconnect
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.interception import Recorder
from tests.support.run_log import Log
from trio_monque import Monque, NewJob, RunningJob, Workers
from trio_monque.errors import MonqueConnectionError
from trio_monque.events import JobRetried
from trio_monque.store.driver.types import Collection, Database, MongoClient
from trio_monque.testing import SchedulerOpener, advance, drain, fail_next, now, quiesce, stalled_time

GONE = AutoReconnect("gone")


@pytest.mark.parametrize("how", ["enqueue", "enqueue_many", "schedule", "sync"])
async def test_job_whose_answer_was_lost_for_good_runs_all_the_same(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, how: str
) -> None:
    log = Log()
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "enqueue": partial(monque.enqueue, "job"),
        "enqueue_many": partial(monque.enqueue_many, [NewJob(name="job")]),
        "schedule": partial(monque.schedule, "* * * * *", "job"),
        "sync": partial(trio.to_thread.run_sync, monque.sync.enqueue, "job"),
    }
    async with open_test_scheduler(log.workers):
        await monque.get_queue_stats()
        with fail_next(monque, GONE, when="after", times=None), pytest.raises(MonqueConnectionError):
            await calls[how]()
        await trio.sleep(100)
    assert log.starts


async def test_retry_whose_answer_was_lost_runs_all_the_same(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    log = Log()
    job = await monque.enqueue("job", delay=1000)
    await monque.cancel_job(job.id)
    async with open_test_scheduler(log.workers):
        lost = fail_next(monque, GONE, when="after", command="change the job|outcome of a change", times=None)
        with lost, pytest.raises(MonqueConnectionError):
            await monque.retry_job(job.id)
        await trio.sleep(1)
    assert log.starts == [0.0]


async def test_retry_by_a_cancelled_caller_is_announced_and_the_job_runs(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    log, reported = Log(), list[JobRetried]()

    async def hear(event: JobRetried) -> None:
        await trio.lowlevel.checkpoint()
        reported.append(event)

    monque.on(JobRetried, hear)
    job = await monque.enqueue("job", delay=1000)
    await monque.cancel_job(job.id)
    async with open_test_scheduler(log.workers):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(monque.retry_job, job.id)
                await wait_all_tasks_blocked()
                scope.cancel()
        await trio.sleep(1)
    assert [event.job.id for event in reported] == [job.id]
    assert log.starts == [0.0]


async def test_schedule_declared_at_the_start_of_a_scheduler_wakes_the_others(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    log, declaring = Log(), Workers()

    @declaring.cron("* * * * *", "job")
    async def job(job: RunningJob[Any]) -> None: ...

    async with open_test_scheduler(log.workers):
        async with open_test_scheduler(declaring):
            pass
        await trio.sleep(600)
    assert len(log.starts) == 10


@pytest.mark.full
async def test_backlog_goes_on_when_settlements_that_had_failed_are_written(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    log = Log()
    await monque.enqueue_many([NewJob(name="job") for _ in range(2000)])
    async with open_test_scheduler(log.workers, concurrency_per_name=100) as scheduler:
        with fail_next(scheduler, GONE, command="settle jobs", times=3):
            await trio.sleep(3600)
    assert len(log.starts) == 2000


@pytest.mark.parametrize("concurrency", [1, 5, 200])
async def test_malformed_documents_at_the_head_of_the_queue_delay_no_job(
    open_test_scheduler: SchedulerOpener, jobs: Collection, monque: Monque, autojump_clock: MockClock, concurrency: int
) -> None:
    log = Log()
    good = await monque.document("job")
    broken = [{**good, "_id": number, "failCount": False} for number in range(300)]
    jobs.insert_many([*broken, good])
    log.workers.register("job", log.handler, concurrency=concurrency, replace=True)
    async with open_test_scheduler(log.workers):
        await quiesce()
    assert len(log.starts) == 1


@pytest.mark.full
@pytest.mark.parametrize("virtual", [True, False])
def test_job_due_after_the_year_9999_is_ignored(monque_db: Database, jobs: Collection, virtual: bool) -> None:
    log = Log()

    async def main() -> None:
        document = await Monque(monque_db).document("job")
        jobs.insert_one({**document, "nextRunAt": DatetimeMS(8640000000000000)})
        async with SchedulerOpener(monque_db)(log.workers) as scheduler:
            await scheduler.enqueue("job")
            await drain(scheduler)

    trio.run(main, clock=MockClock(autojump_threshold=0) if virtual else None)
    assert len(log.starts) == 1


@pytest.mark.full
async def test_what_falls_due_for_a_full_group_costs_nothing_until_there_is_room(
    mongod: Any, monque_db: Database, autojump_clock: MockClock
) -> None:
    log = Log(sleeps=10_000.0)
    log.workers.register("other", lambda _: None)
    log.workers.register("job", log.handler, concurrency=1, replace=True)
    recorder = Recorder()
    with MongoClient(mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        monque = Monque(monque_db)
        async with SchedulerOpener(client[monque_db.name])(log.workers, lock_timeout=None) as scheduler:
            await scheduler.enqueue("job")
            await advance(1)
            await monque.enqueue_many([NewJob(name="job", delay=10.0 + number) for number in range(500)])
            await advance(5)
            recorder.commands.clear()
            await trio.sleep(1000)
            finds = [name for name, _ in recorder.commands if name in {"find", "aggregate"}]
            assert len(finds) <= 5
            await trio.sleep(10_000)
            assert len(log.starts) == 2  # And yet it is taken when there is room.


async def test_neighbours_that_run_jobs_are_waited_for(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    log = Log(sleeps=50.0)
    async with open_test_scheduler(log.workers):
        async with open_test_scheduler() as other:
            await other.enqueue("job")
            await drain(other)
            assert log.ends == [50.0]
            assert jobs.count_documents({"status": "completed"}) == 1


# --- A drain that never ends raises ---


async def test_scheduler_whose_database_goes_on_failing_can_be_left(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_monque.engine.pauses.REAL_TIME_BUDGET", 0.2)
    log = Log()
    async with open_test_scheduler(log.workers, shutdown_timeout=1, cleanup_timeout=1) as scheduler:
        fault = fail_next(scheduler, GONE, command="settle jobs", times=None)
        await scheduler.enqueue("job")
        with trio.fail_after(60):
            while not log.ends:
                await trio.sleep(0.01)
    fault.remove()
    assert scheduler.report is not None
    assert len(scheduler.report.unfinished) == 1


@pytest.mark.full
@pytest.mark.parametrize("why", ["database", "handlers"])
async def test_drain_that_cannot_end_raises(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(stalled_time, "STALLED_AFTER", 0.5)
    monkeypatch.setattr(stalled_time, "LOOK_INTERVAL", 0.1)
    workers = Workers()
    enough = trio.Event()

    @workers.register("job")
    async def again(job: RunningJob[Any]) -> None:
        if why == "handlers" and not enough.is_set():
            await job.scheduler.enqueue("job")

    async with open_test_scheduler(workers) as scheduler:
        fault = fail_next(scheduler, GONE, command="look for due jobs|next due", times=None)
        if why == "handlers":
            fault.remove()
        await scheduler.enqueue("job")
        with pytest.raises(AssertionError, match=r"stood still for 0\.5 s while it was to drain"):
            await drain(scheduler, within=5)
        enough.set()
        fault.remove()


def test_two_simultaneous_advances_both_arrive_on_a_clock_moved_by_hand() -> None:
    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(advance, 10)
            await wait_all_tasks_blocked()
            nursery.start_soon(advance, 20)
        return trio.current_time()

    clock = MockClock()
    assert trio.run(main, clock=clock) == 20.0
    assert clock.autojump_threshold == float("inf")


async def test_one_of_several_that_is_due_later_starts_on_time_although_another_is_due_now(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    log = Log()
    async with open_test_scheduler(log.workers):
        await trio.sleep(1)
        await monque.enqueue_many([NewJob(name="job"), NewJob(name="job", run_at=now() + timedelta(seconds=60))])
        await trio.sleep(1000)
    assert log.starts == [1.0, 61.0]
