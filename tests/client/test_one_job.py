"""Management of one job: cancel, retry, put off and delete it, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
import trio
from bson import ObjectId
from trio.testing import MockClock

from tests.support.node_peer import NodePeer
from tests.support.store import claim, claim_due, handle
from trio_monque import JobStatus, Monque, RunningJob, Workers
from trio_monque.errors import InvalidOptionError, JobStateError
from trio_monque.events import Event, JobCancelled, JobDeleted, JobRetried
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import job_changes
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain, quiesce

UNKNOWN = (ObjectId("0" * 24), "f" * 24, "no id at all", "")


async def job_in(monque: Monque, jobs: Collection, status: str, **fields: Any) -> ObjectId:
    job = await monque.enqueue("greet", {"kept": True})
    jobs.update_one({"_id": job.id}, {"$set": {"status": status, **fields}})
    return job.id


async def test_pending_job_is_cancelled_with_one_event(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    reported: list[Event] = []
    monque.on(Event, reported.append)
    job = await monque.enqueue("greet")
    cancelled = await monque.cancel_job(job.id)
    assert cancelled is not None
    assert cancelled.status is JobStatus.CANCELLED
    assert cancelled == await monque.get_job(job.id)
    assert reported == [JobCancelled(cancelled)]
    assert await monque.cancel_job(str(job.id)) == cancelled
    assert len(reported) == 1


async def test_running_job_is_left_alone_if_only_a_pending_one_is_to_be_cancelled(
    db: Database, jobs: Collection
) -> None:
    monque = Monque(db)
    (running,) = claim(handle(db), 1)
    with pytest.raises(JobStateError, match=f"cannot cancel job {running.id}: its status is 'processing'"):
        await monque.cancel_job(running.id, running=False)
    assert "cancelRequestedAt" not in (jobs.find_one({"_id": running.id}) or {})
    pending = await monque.enqueue("other")
    for _ in range(2):
        cancelled = await monque.cancel_job(pending.id, running=False)
        assert cancelled is not None
        assert cancelled.status is JobStatus.CANCELLED


async def test_job_that_begins_to_run_before_the_write_is_left_alone_too(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monque = Monque(db)
    job = await monque.enqueue("greet")
    apply = job_changes.apply_if_allowed

    def apply_late(*arguments: Any) -> Any:
        """Another instance claims the job between the look and the write."""
        claim_due(handle(db), {"greet": 1}, now=datetime.now(UTC) + timedelta(hours=1))
        return apply(*arguments)

    monkeypatch.setattr(job_changes, "apply_if_allowed", apply_late)
    with pytest.raises(JobStateError, match="its status is 'processing'"):
        await monque.cancel_job(job.id, running=False)
    assert "cancelRequestedAt" not in (jobs.find_one({"_id": job.id}) or {})


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_ended_job_cannot_be_cancelled(db: Database, jobs: Collection, status: str) -> None:
    monque = Monque(db)
    job_id = await job_in(monque, jobs, status)
    with pytest.raises(JobStateError, match=f"cannot cancel job {job_id}: its status is '{status}'") as caught:
        await monque.cancel_job(job_id)
    assert (caught.value.job_id, caught.value.status, caught.value.action) == (str(job_id), status, "cancel")


async def test_claim_of_another_library_cannot_be_cancelled(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    job = await monque.enqueue("greet")
    jobs.update_one({"_id": job.id}, {"$set": {"claimToken": "an old one of ours"}})
    theirs = NodePeer(jobs).claim("greet", job.next_run_at)
    with pytest.raises(JobStateError, match="another library"):
        await monque.cancel_job(job.id)
    assert jobs.find_one({"_id": job.id}) == theirs


@pytest.mark.parametrize("job_id", UNKNOWN)
async def test_unknown_ids_are_not_errors(db: Database, job_id: Any) -> None:
    monque = Monque(db)
    assert await monque.cancel_job(job_id) is None
    assert await monque.retry_job(job_id) is None
    assert await monque.reschedule_job(job_id, datetime.now(UTC)) is None
    assert await monque.delete_job(job_id) is False


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_ended_job_gets_new_tries_and_runs_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, status: str
) -> None:
    workers = Workers()
    ran: list[int] = []

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        ran.append(job.attempt)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("greet", delay=7200)
        left_over = {"failCount": 7, "failReason": "before", "attempts": 7, "rescues": 2}
        jobs.update_one({"_id": job.id}, {"$set": {"status": status, **left_over}})
        reported: list[JobRetried] = []
        scheduler.on(JobRetried, reported.append)
        await advance(10)
        retried = await scheduler.retry_job(job.id)
        assert retried is not None
        assert (retried.status, retried.fail_count, retried.fail_reason) == (JobStatus.PENDING, 0, None)
        assert (retried.attempts, retried.rescues) == (7, 0)
        assert retried.next_run_at == retried.updated_at
        await quiesce()  # The scheduler nearby was woken.
        await assert_enqueued(scheduler, status="completed", count=1)
    assert ran == [8]
    assert [(event.job, event.previous_status) for event in reported] == [(retried, status)]


@pytest.mark.parametrize("status", ["pending", "processing", "completed"])
async def test_job_that_has_tries_left_or_is_done_cannot_be_retried(
    db: Database, jobs: Collection, status: str
) -> None:
    monque = Monque(db)
    job_id = await job_in(monque, jobs, status)
    before = jobs.find_one({"_id": job_id})
    with pytest.raises(JobStateError, match=f"cannot retry .* '{status}'"):
        await monque.retry_job(job_id)
    assert jobs.find_one({"_id": job_id}) == before


async def test_retry_of_a_job_whose_key_is_in_use_is_a_state_error(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    old = await monque.enqueue("greet", unique_key="k")
    jobs.update_one({"_id": old.id}, {"$set": {"status": "failed"}})
    await monque.enqueue("greet", unique_key="k")
    with pytest.raises(JobStateError, match="unique key"):
        await monque.retry_job(old.id)
    assert jobs.count_documents({"_id": old.id, "status": "failed"}) == 1


async def test_pending_job_is_moved_and_starts_then(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    started: list[float] = []

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        started.append(trio.current_time())

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("greet", delay=1000)
        moved = await scheduler.reschedule_job(job.id, job.created_at + timedelta(seconds=50))
        assert moved is not None
        assert moved == await scheduler.get_job(job.id)
        await trio.sleep(50)
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=1)
    assert started == [50]


@pytest.mark.parametrize("status", ["processing", "completed", "failed", "cancelled"])
async def test_job_that_is_not_pending_cannot_be_moved(db: Database, jobs: Collection, status: str) -> None:
    monque = Monque(db)
    job_id = await job_in(monque, jobs, status)
    with pytest.raises(JobStateError, match=f"cannot reschedule .* '{status}'"):
        await monque.reschedule_job(job_id, datetime.now(UTC))
    # Also if it would be too late for a pending one.
    jobs.update_one({"_id": job_id}, {"$set": {"startBy": datetime(2020, 1, 1, tzinfo=UTC)}})
    with pytest.raises(JobStateError, match=f"cannot reschedule .* '{status}'"):
        await monque.reschedule_job(job_id, datetime.now(UTC))
    with pytest.raises(InvalidOptionError, match="run_at"):
        await monque.reschedule_job(job_id, datetime(2030, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("status", ["pending", "processing", "completed", "failed", "cancelled", "no status at all"])
async def test_job_in_any_state_is_deleted_with_an_event(db: Database, jobs: Collection, status: str) -> None:
    monque = Monque(db)
    reported: list[Event] = []
    monque.on(JobDeleted, reported.append)
    job_id = await job_in(monque, jobs, status)
    assert await monque.delete_job(job_id) is True
    assert await monque.delete_job(job_id) is False
    assert reported == [JobDeleted(job_id)]


async def test_state_that_changes_between_write_and_read_is_reported_as_it_is(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monque = Monque(db)
    job_id = await job_in(monque, jobs, "completed")
    apply = job_changes.apply_if_allowed

    def then_deleted(*arguments: Any) -> Any:
        result = apply(*arguments)
        jobs.delete_one({"_id": job_id})
        return result

    monkeypatch.setattr(job_changes, "apply_if_allowed", then_deleted)
    assert await monque.retry_job(job_id) is None


async def test_action_that_became_possible_meanwhile_is_done(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monque = Monque(db)
    job_id = await job_in(monque, jobs, "processing")
    apply = job_changes.apply_if_allowed
    calls: list[int] = []

    def then_failed(*arguments: Any) -> Any:
        result = apply(*arguments)
        calls.append(1)
        jobs.update_one({"_id": job_id, "status": "processing"}, {"$set": {"status": "failed"}})
        return result

    monkeypatch.setattr(job_changes, "apply_if_allowed", then_failed)
    retried = await monque.retry_job(job_id)
    assert retried is not None
    assert retried.status is JobStatus.PENDING
    assert len(calls) == 2


def test_blocking_calls_and_other_loops_manage_as_well(db: Database) -> None:
    monque = Monque(db)
    reported: list[str] = []
    monque.on(Event, lambda event: reported.append(type(event).__name__))

    async def hears(event: Event) -> None:
        reported.append(f"async {type(event).__name__}")

    monque.on(JobRetried, hears)
    job = monque.sync.enqueue("greet")
    assert monque.sync.cancel_job(job.id) is not None

    async def main() -> None:
        async with monque.events(JobRetried, JobDeleted) as stream:
            assert await monque.retry_job(job.id) is not None
            assert await monque.delete_job(job.id)
            assert [type(await anext(stream)).__name__ for _ in range(2)] == ["JobRetried", "JobDeleted"]

    anyio.run(main, backend="asyncio")
    assert reported == ["JobCancelled", "JobRetried", "async JobRetried", "JobDeleted"]


async def test_stream_of_a_scheduler_tells_in_order_and_ends_with_it(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("greet", lambda job: None)
    reported: list[str] = []

    async with trio.open_nursery() as nursery, open_test_scheduler(workers) as scheduler:
        entered = trio.Event()

        async def listen() -> None:
            async with scheduler.events(Event) as stream:
                entered.set()
                async for event in stream:
                    reported.append(type(event).__name__)  # noqa: PERF401  # As it happens.
                reported.append("the end")

        nursery.start_soon(listen)
        await entered.wait()
        job = await scheduler.enqueue("greet")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
        await scheduler.delete_job(job.id)
        scheduler.sync_in_loop.enqueue("other")
        other = scheduler.sync_in_loop.get_jobs(name="other")[0]
        scheduler.sync_in_loop.cancel_job(other.id)
        await quiesce()
    assert reported == ["JobStarted", "JobCompleted", "JobDeleted", "JobCancelled", "the end"]
