"""Races whose windows are held open on purpose: between two commands of one instance, others act."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Interceptor, is_claim, is_settlement
from tests.support.node_peer import NodePeer, now
from tests.support.store import claim_due, handle, stamp
from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.events import JobClaimLost, JobCompleted, JobStarted
from trio_monque.jobs import transitions
from trio_monque.jobs.conditional_write import Transition
from trio_monque.jobs.job import Job
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import settling
from trio_monque.store.jobs.settling import Fate
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain, quiesce, run_virtual


@pytest.fixture
def interceptor() -> Interceptor:
    return Interceptor()


@pytest.fixture
def watched(mongod: EmbeddedServer, db: Database, interceptor: Interceptor) -> Iterator[Database]:
    """The same database, through a client whose commands are intercepted."""
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        yield client[db.name]


def another_instance_claims(db: Database) -> Job:
    """By the library's own functions, on a connection of its own."""
    at = now() + timedelta(seconds=1)
    (job,) = claim_due(handle(db), {"contended": 1}, stamp("another", at), at)
    return job


def another_instance_settles(db: Database, settled: Transition) -> None:
    fates = settling.settle(handle(db), settling.grouped([settled], "another"))
    assert list(fates.values()) == [Fate.WRITTEN]


async def test_job_that_was_run_and_put_off_between_look_and_write_is_not_claimed(
    db: Database, watched: Database, jobs: Collection, interceptor: Interceptor, autojump_clock: MockClock
) -> None:
    job_id = NodePeer(jobs).enqueue("contended")
    tomorrow = now() + timedelta(days=1)

    def another_instance_runs_it_and_puts_it_off() -> None:
        job = another_instance_claims(db)
        another_instance_settles(db, transitions.snooze(job, now(), tomorrow))

    interceptor.before(is_claim, another_instance_runs_it_and_puts_it_off)
    started: list[RunningJob[Any]] = []
    workers = Workers()
    workers.register("contended", started.append)
    async with open_scheduler(watched, workers):
        await advance(60)

    assert interceptor.times == 1
    assert started == []
    document = jobs.find_one({"_id": job_id})
    assert document is not None
    assert (document["status"], document["nextRunAt"], document["attempts"]) == ("pending", tomorrow, 1)


async def test_attempt_is_exact_although_another_instance_claimed_and_released_between_look_and_write(
    db: Database, watched: Database, jobs: Collection, interceptor: Interceptor, autojump_clock: MockClock
) -> None:
    job_id = NodePeer(jobs).enqueue("contended", {"version": 1})

    def another_instance_claims_and_releases_it() -> None:
        for _ in range(3):
            another_instance_settles(db, transitions.release(another_instance_claims(db), now()))
        # And a client brings its data up to date.
        jobs.update_one({"_id": job_id}, {"$inc": {"rev": 1}, "$set": {"data": {"version": 2}}})

    interceptor.before(is_claim, another_instance_claims_and_releases_it)
    got: list[tuple[int, Any, Any]] = []
    workers = Workers()

    @workers.register("contended")
    async def handler(job: RunningJob[Any]) -> None:
        document = jobs.find_one({"_id": job_id})
        assert document is not None
        got.append((job.attempt, document["attempts"], job.data))

    async with open_scheduler(watched, workers) as scheduler:
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)

    assert interceptor.times == 1
    assert got == [(4, 4, {"version": 2})]


async def test_job_that_another_scheduler_claimed_between_look_and_write_runs_once(
    open_test_scheduler: SchedulerOpener,
    watched: Database,
    jobs: Collection,
    interceptor: Interceptor,
    autojump_clock: MockClock,
) -> None:
    """Two real schedulers: the second runs the job to its end while the first one's guarded write is held open."""
    ran: list[tuple[str, int]] = []
    workers = Workers()
    NodePeer(jobs).enqueue("contended")

    @workers.register("contended")
    async def handler(job: RunningJob[Any]) -> None:
        ran.append((job.scheduler.id, job.attempt))

    async def second_runs_it() -> None:
        async with open_test_scheduler(workers, instance_id="second") as second:
            await drain(second)
            await assert_enqueued(second, status="completed", count=1)

    # In the thread that is about to send the write; the first scheduler's time stands still meanwhile.
    interceptor.before(is_claim, partial(run_virtual, second_runs_it))
    async with open_scheduler(watched, workers, instance_id="first") as first:
        await drain(first)
        await assert_enqueued(first, status="completed", count=1)
        await advance(10)
    assert ran == [("second", 1)]


async def test_run_whose_job_node_recovered_and_claimed_settles_nothing(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    peer = NodePeer(jobs)
    lost: list[JobClaimLost] = []
    others: list[JobCompleted] = []
    ended: list[str] = []
    workers = Workers()

    @workers.register("shared")
    async def handler(job: RunningJob[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(str(job.cancel_reason))

    async with open_test_scheduler(
        workers, heartbeat_interval=10, listeners={JobClaimLost: lost.append, JobCompleted: others.append}
    ) as scheduler:
        job = await scheduler.enqueue("shared")
        await quiesce()
        await assert_enqueued(scheduler, status="processing", count=1)
        assert peer.recover(timedelta(seconds=-1000)) == 1
        claimed = peer.claim("shared", now() + timedelta(seconds=1000))
        assert claimed is not None
        assert claimed["claimToken"]  # Ours, left in place: a fence on the token alone would still hold.
        await trio.sleep(10)  # The next beat finds the claim gone.
        await quiesce()
        assert ended == ["lost"]
        assert jobs.find_one({"_id": job.id}) == claimed

    assert jobs.find_one({"_id": job.id}) == claimed
    assert [event.job.id for event in lost] == [job.id]
    assert others == []
    assert peer.complete(job.id)


@pytest.mark.parametrize("outcome", ["success", "failure", "cut short"])
async def test_end_of_a_run_whose_job_node_holds_is_not_written(
    db: Database, watched: Database, jobs: Collection, interceptor: Interceptor, autojump_clock: MockClock, outcome: str
) -> None:
    """The claim is taken at the last moment: after the run's end was decided, before it is sent."""
    peer = NodePeer(jobs)
    claimed: list[Any] = []

    def node_takes_it() -> None:
        # Due for Node, whose clock runs ahead, and not for our own claimer, which is quick to look again.
        jobs.update_one({}, {"$set": {"nextRunAt": now() + timedelta(seconds=500)}})
        peer.recover(timedelta(seconds=-1000))
        claimed.append(peer.claim("shared", now() + timedelta(seconds=1000)))

    interceptor.before(is_settlement, node_takes_it)
    workers = Workers()

    @workers.register("shared")
    async def handler(job: RunningJob[Any]) -> None:
        if outcome == "failure":
            raise ValueError("no")
        if outcome == "cut short":
            await trio.sleep_forever()

    lost: list[JobClaimLost] = []
    async with open_scheduler(watched, workers, shutdown_timeout=0, listeners={JobClaimLost: lost.append}) as scheduler:
        job = await scheduler.enqueue("shared")
        await quiesce()
        await assert_enqueued(scheduler, status="processing", count=1)
    assert interceptor.times == 1
    assert jobs.find_one({"_id": job.id}) == claimed[0]
    assert [event.job.id for event in lost] == [job.id]
    assert scheduler.report is not None
    assert (scheduler.report.completed, scheduler.report.failed, scheduler.report.released) == (0, 0, 0)


async def test_node_and_python_work_one_collection_each_job_once(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    peer = NodePeer(jobs)
    made = {peer.enqueue("shared") for _ in range(60)}
    by_us: list[Any] = []
    by_node: list[Any] = []
    workers = Workers()

    @workers.register("shared", concurrency=3)
    async def handler(job: RunningJob[Any]) -> None:
        by_us.append(job.id)
        await trio.sleep(1)

    async def node() -> None:
        while (claimed := await trio.to_thread.run_sync(partial(peer.claim, "shared"))) is not None:
            by_node.append(claimed["_id"])
            assert peer.complete(claimed["_id"])
            await trio.sleep(0.5)

    async with (
        open_test_scheduler(workers, listeners={JobStarted: lambda event: None}) as scheduler,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(node)
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=60)
    assert set(by_us) | set(by_node) == made
    assert len(by_us) + len(by_node) == 60
    assert by_us
    assert by_node
