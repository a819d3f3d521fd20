"""A job that is replaced while it runs: it runs once more afterwards, with the data of the last call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from threading import Barrier
from typing import Any

import anyio
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.support.node_peer import NodePeer
from tests.support.store import handle
from trio_monque import Discard, Job, JobStatus, Monque, NewJob, Retry, RunningJob, Snooze, Workers, open_scheduler
from trio_monque.events import JobFailed
from trio_monque.store.driver.types import ClientSession, Collection, Database
from trio_monque.store.jobs import retention
from trio_monque.testing import SchedulerOpener, advance, crash, drain, now, quiesce

REPLACE: dict[str, Any] = {"unique_key": "k", "on_conflict": "replace"}

Ran = list[tuple[Any, float]]


def working(ran: Ran, end: Callable[[RunningJob[Any]], object] = lambda job: None, **options: Any) -> Workers:
    """A worker whose runs take a minute, and end by `end`."""
    workers = Workers()

    @workers.register("build", store_result=True, **options)
    async def build(job: RunningJob[Any]) -> object:
        ran.append((job.data, trio.current_time()))
        await trio.sleep(60)
        return end(job)

    return workers


async def test_run_ends_with_its_own_data_and_another_has_those_of_the_last_call(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    ran: Ran = []
    start = trio.current_time()
    async with open_test_scheduler(working(ran, lambda job: f"built {job.data}")) as scheduler:
        job = await scheduler.enqueue("build", 1, **REPLACE)
        await advance(10)
        for data in (2, {"$literal": ["$3"]}):
            again = await scheduler.enqueue_with_outcome("build", data, **REPLACE, delay=600)
            assert (again.outcome, again.job.id, again.job.data) == ("again", job.id, 1)
        ended = await scheduler.wait_job(job)
        assert [data for data, _ in ran] == [1, {"$literal": ["$3"]}]
        assert 610 <= ran[1][1] - start < 615
        # A caller that waits learns the end of the last run.
        assert ended.result == "built {'$literal': ['$3']}"
        assert scheduler.statistics().completed == 2
    (document,) = jobs.find()
    assert document["status"] == "completed"
    assert not [field for field in document if field.startswith("again")]


@pytest.mark.full
async def test_run_that_fails_for_good_is_followed_by_one_with_the_newer_data_and_all_attempts(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    ran, failed = Ran(), list[JobFailed]()

    def end(job: RunningJob[Any]) -> None:
        if job.data == 1:
            raise ValueError("no luck")

    workers = working(ran, end, max_attempts=2)
    async with open_test_scheduler(workers, listeners={JobFailed: failed.append}) as scheduler:
        job = await scheduler.enqueue("build", 1, **REPLACE)
        await advance(10)
        await scheduler.enqueue("build", 2, **REPLACE)
        await scheduler.wait_job(job)
        # The retry belongs to the data that have failed once.
        assert [data for data, _ in ran] == [1, 1, 2]
        stored = await scheduler.get_job(job.id)
        assert stored is not None
        assert (stored.status, stored.fail_count, stored.fail_reason) == ("completed", 0, None)
        assert len(failed) == 2


@pytest.mark.parametrize("error", [Discard("no use"), Snooze(after=5)], ids=["discard", "snooze"])
async def test_other_ends_lead_to_the_newer_data_too(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, error: Exception
) -> None:
    ran: Ran = []

    def end(job: RunningJob[Any]) -> None:
        if len(ran) == 1:
            raise error

    async with open_test_scheduler(working(ran, end)) as scheduler:
        job = await scheduler.enqueue("build", 1, **REPLACE)
        await advance(10)
        await scheduler.enqueue("build", 2, **REPLACE)
        await scheduler.wait_job(job)
        assert [data for data, _ in ran] == ([1, 2] if isinstance(error, Discard) else [1, 1, 2])


class _Unusable(Retry):
    """Its `after` is that of no date, and no check has seen it."""

    after = 1e300

    def __init__(self) -> None:
        pass


async def test_end_that_cannot_be_decided_leads_to_the_newer_data_too(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    ran: Ran = []

    def end(job: RunningJob[Any]) -> None:
        if job.data == 1:
            raise _Unusable

    async with open_test_scheduler(working(ran, end)) as scheduler:
        job = await scheduler.enqueue("build", 1, **REPLACE)
        await advance(10)
        await scheduler.enqueue("build", 2, **REPLACE)
        await scheduler.wait_job(job)
        assert [data for data, _ in ran] == [1, 2]


async def test_cancellation_drops_what_was_left_before_it(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    ran: Ran = []
    async with open_test_scheduler(working(ran)) as scheduler:
        job = await scheduler.enqueue("build", 1, **REPLACE)
        await advance(10)
        await scheduler.enqueue("build", 2, **REPLACE)
        await scheduler.cancel_job(job.id)
        await advance(120)
        assert [data for data, _ in ran] == [1]
        (document,) = jobs.find()
        assert (document["status"], "again" in document, "againData" in document) == ("cancelled", False, False)


async def test_job_that_kills_its_holders_runs_with_the_newer_data_once_it_is_given_up(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    ran: Ran = []
    async with open_test_scheduler(working(ran), heartbeat_interval=10) as dying:
        job = await dying.enqueue("build", 1, **REPLACE, max_rescues=0)
        await advance(10)
        await dying.enqueue("build", 2, **REPLACE)
        await crash(dying)
        async with open_test_scheduler(working(ran), heartbeat_interval=10) as other:
            ended = await other.wait_job(job)
            assert (ended.data, ended.rescues) == (2, 0)
            assert [entry["error"] for entry in ended.errors] == ["died 1 time while running"]
            assert [data for data, _ in ran] == [1, 2]


async def test_transaction_ends_the_run_and_leaves_the_newer_data_pending(
    open_test_scheduler: SchedulerOpener, db: Database, autojump_clock: MockClock
) -> None:
    workers, effects = Workers(), db["effects"]

    @workers.register("transfer")
    async def transfer(job: RunningJob[Any]) -> None:
        def write(session: ClientSession) -> None:
            effects.insert_one({"of": job.data}, session=session)

        if job.data == 1:
            await job.scheduler.enqueue("transfer", 2, **REPLACE)
        await job.transaction(write)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("transfer", 1, **REPLACE)
        await scheduler.wait_job(job)
        assert [effect["of"] for effect in effects.find()] == [1, 2]


async def test_start_by_of_the_call_is_that_of_the_other_run(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    ran: Ran = []
    async with open_test_scheduler(working(ran)) as scheduler:
        job = await scheduler.enqueue("build", 1, **REPLACE)
        await advance(10)
        await scheduler.enqueue("build", 2, **REPLACE, start_by=now() + timedelta(seconds=20))
        await advance(120)
        stored = await scheduler.get_job(job.id)
        assert stored is not None
        assert stored.status is JobStatus.CANCELLED
        assert str(stored.fail_reason).startswith("start_by")
        assert len(ran) == 1


async def test_released_run_and_its_other_run_survive_a_shutdown(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    ran: Ran = []
    async with open_test_scheduler(working(ran), shutdown_timeout=5) as scheduler:
        await scheduler.enqueue("build", 1, **REPLACE)
        await advance(10)
        await scheduler.enqueue("build", 2, **REPLACE)
    async with open_test_scheduler(working(ran)) as scheduler:
        await drain(scheduler)
    assert [data for data, _ in ran] == [1, 1, 2]


async def test_replaced_job_that_waits_for_a_retry_has_only_the_last_data(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    ran: Ran = []

    def end(job: RunningJob[Any]) -> None:
        if job.data == 1:
            raise ValueError("no luck")

    async with open_test_scheduler(working(ran, end, backoff=3600)) as scheduler:
        await scheduler.enqueue("build", 1, **REPLACE)
        await advance(10)
        await scheduler.enqueue("build", 2, **REPLACE)
        await advance(60)
        await scheduler.enqueue("build", 3, **REPLACE)
        await drain(scheduler)
        assert [data for data, _ in ran] == [1, 3]


async def test_handler_that_replaces_its_own_job_runs_again(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers, ran = Workers(), list[int]()

    @workers.register("count")
    async def count(job: RunningJob[int]) -> None:
        ran.append(job.data)
        if job.data < 3:
            outcome = (await job.scheduler.enqueue_with_outcome("count", job.data + 1, **REPLACE)).outcome
            assert outcome == "again"

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("count", 1, **REPLACE)
        await drain(scheduler)
        assert ran == [1, 2, 3]


async def test_follow_up_comes_after_the_last_run(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    ran, followed = Ran(), list[Any]()

    def then(job: Job) -> NewJob:
        return NewJob("after", job.data)

    workers = working(ran, then=then)

    @workers.register("after")
    async def after(job: RunningJob[Any]) -> None:
        followed.append(job.data)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("build", 1, **REPLACE)
        await advance(10)
        await scheduler.enqueue("build", 2, **REPLACE)
        await drain(scheduler)
        await quiesce()
        assert ([data for data, _ in ran], followed) == ([1, 2], [2])


@pytest.mark.full
async def test_job_that_node_ended_runs_again_when_a_scheduler_looks(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    node, ran = NodePeer(jobs), Ran()
    job = await monque.enqueue("build", 1, **REPLACE, run_at=now() - timedelta(seconds=5))
    assert node.claim("build")
    assert (await monque.enqueue_with_outcome("build", 2, **REPLACE)).outcome == "again"
    assert node.complete(job.id)
    async with open_test_scheduler(working(ran)) as scheduler:
        await drain(scheduler)
        await scheduler.wait_job(job)
    assert [data for data, _ in ran] == [2]


async def test_retention_spares_a_job_that_node_ended_and_that_is_to_run_again(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Otherwise the last call would be lost where no scheduler has lived for longer than ended jobs are kept."""
    node, ran = NodePeer(jobs), Ran()
    job = await monque.enqueue("build", 1, **REPLACE, run_at=now() - timedelta(seconds=5))
    assert node.claim("build")
    assert (await monque.enqueue_with_outcome("build", 2, **REPLACE)).outcome == "again"
    assert node.complete(job.id)
    jobs.update_one({"_id": job.id}, {"$set": {"updatedAt": now() - timedelta(days=2)}})
    expired = retention.ended_before(JobStatus.COMPLETED, now() - timedelta(days=1))
    assert retention.delete_if_expired(handle(jobs.database), expired, [job.id]) == 0
    async with open_test_scheduler(working(ran)) as scheduler:
        await drain(scheduler)
    assert [data for data, _ in ran] == [2]
    jobs.update_one({"_id": job.id}, {"$set": {"updatedAt": now() - timedelta(days=2)}})
    assert retention.delete_if_expired(handle(jobs.database), expired, [job.id]) == 1


@pytest.mark.full
def test_racing_calls_on_a_job_that_runs_lose_no_last_word_and_never_overlap(db: Database, jobs: Collection) -> None:
    workers, ran, at_once, most_at_once = Workers(), list[int](), 0, 0

    @workers.register("build", concurrency=10)
    async def build(job: RunningJob[int]) -> None:
        nonlocal at_once, most_at_once
        at_once += 1
        most_at_once = max(at_once, most_at_once)
        ran.append(job.data)
        await trio.lowlevel.checkpoint()
        at_once -= 1

    calls, threads = 1000, 4
    barrier, monque = Barrier(threads), Monque(db)

    def call(first: int) -> Counter[str]:
        barrier.wait()
        numbers = range(first, calls, threads)
        return Counter(monque.sync.enqueue_with_outcome("build", number, **REPLACE).outcome for number in numbers)

    async def main() -> Counter[str]:
        outcomes = Counter[str]()
        async with open_scheduler(db, workers), trio.open_nursery() as nursery:

            async def add(first: int) -> None:
                outcomes.update(await trio.to_thread.run_sync(call, first))

            for first in range(threads):
                nursery.start_soon(add, first)
            while sum(outcomes.values()) < calls or jobs.count_documents({"status": {"$ne": "completed"}}):
                await anyio.sleep(0.01)
        return outcomes

    outcomes = trio.run(main)
    # What each thread wrote last was written after all that it wrote before.
    assert ran[-1] >= calls - threads
    assert len(ran) == len(set(ran))
    assert most_at_once == 1
    assert outcomes["again"] > 0
    assert outcomes["created"] == jobs.count_documents({})
    assert jobs.count_documents({"again": {"$exists": True}}) == 0
