"""An instance never claims a job beside a run of its own, whatever others have made of the document.

A Node peer with a `lockTimeout` below ours takes our claims by its own recovery; people delete, insert and retry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any

import pytest
import trio
from bson import ObjectId
from trio.testing import MockClock

from tests.support.documents import Gauge
from tests.support.internals import engine_of, look_for_jobs, sources_of
from tests.support.node_peer import NodePeer, now
from tests.support.thoroughly import one_in
from trio_monque import Claim, NewJob, RunningJob, Workers, open_scheduler, run_claims
from trio_monque.engine.demand import Demand, Granted, KnownItem
from trio_monque.errors import ClaimLostError
from trio_monque.events import JobClaimLost
from trio_monque.jobs.job import Job
from trio_monque.scheduler.job_finder import JobKey
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, quiesce

AT_ONCE = timedelta(seconds=-5)
"""A `lockTimeout` by which every claim is too old."""

LESS_THAN_A_BEAT = 20.0


def node_recovers(jobs: Collection) -> None:
    assert NodePeer(jobs).recover(AT_ONCE) >= 1


def node_recovers_cancels_and_retries(jobs: Collection) -> None:
    node_recovers(jobs)
    job = jobs.find_one({"status": "pending"})
    assert job is not None
    node = NodePeer(jobs)
    assert node.cancel(job["_id"], now())
    assert node.retry(job["_id"], now(), now())


def delete_and_insert_again(jobs: Collection) -> None:
    job = jobs.find_one_and_delete({"status": "processing"})
    assert job is not None
    jobs.insert_one(
        {name: job[name] for name in ("_id", "name", "data", "nextRunAt", "createdAt", "updatedAt")}
        | {"status": "pending", "failCount": 0}
    )


FREED_BY = [node_recovers, node_recovers_cancels_and_retries, delete_and_insert_again]


class Gated:
    """A worker whose first try of each job goes on until it is let go, whether it is cancelled or not."""

    def __init__(self, concurrency: int = 10) -> None:
        self.gauges: dict[Any, Gauge] = {}
        self.starts: list[Any] = []
        self.let_go = trio.Event()
        self.workers = Workers()
        self.workers.register("job", self.handler, concurrency=concurrency)

    @asynccontextmanager
    async def let_go_at_the_end(self) -> AsyncIterator[None]:
        """A test that fails must not wait for a handler of its own."""
        try:
            yield
        finally:
            self.let_go.set()

    async def handler(self, job: RunningJob[Any]) -> None:
        self.starts.append(job.data)
        with self.gauges.setdefault(job.id, Gauge()):
            if self.starts.count(job.data) == 1 and job.data != "behind":
                with trio.CancelScope(shield=True):
                    await self.let_go.wait()

    @property
    def most_at_once(self) -> int:
        return max(gauge.most for gauge in self.gauges.values())


@pytest.mark.parametrize("free", one_in(3, list(FREED_BY)))
async def test_job_that_others_freed_is_claimed_as_soon_as_our_own_run_of_it_has_ended(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    free: Callable[[Collection], None],
) -> None:
    gated, lost = Gated(), list[JobClaimLost]()
    async with (
        open_test_scheduler(gated.workers, listeners={JobClaimLost: lost.append}) as scheduler,
        gated.let_go_at_the_end(),
    ):
        job = await scheduler.enqueue("job", "first")
        await quiesce()
        free(jobs)
        freed = jobs.find_one()
        # As the change stream would, of a job that is pending again: in virtual time there is none.
        engine_of(scheduler).waker.expect(trio.current_time(), KnownItem(JobKey(job.id, job.next_run_at, 1), "job"))
        await quiesce()
        await advance(LESS_THAN_A_BEAT)
        assert gated.starts == ["first"]
        assert jobs.find_one() == freed, "nobody has claimed it meanwhile"
        gated.let_go.set()
        await engine_of(scheduler).wait_changed()
        await quiesce()
        assert gated.starts == ["first", "first"]
        assert gated.most_at_once == 1
        assert jobs.count_documents({"_id": job.id, "status": "completed"}) == 1
    assert [event.job.id for event in lost] == [job.id]


async def test_handler_that_does_not_obey_is_not_joined_by_another_after_its_claim_was_found_lost(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    gated = Gated()
    async with open_test_scheduler(gated.workers) as scheduler, gated.let_go_at_the_end():
        await scheduler.enqueue("job", "first")
        await quiesce()
        node_recovers(jobs)
        await advance(10 * LESS_THAN_A_BEAT)
        assert gated.starts == ["first"]
        gated.let_go.set()
        await engine_of(scheduler).wait_changed()
        await quiesce()
    assert (gated.starts, gated.most_at_once) == (["first", "first"], 1)


@pytest.mark.parametrize("count", [1, 7])
async def test_jobs_behind_those_that_are_withheld_start(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, count: int
) -> None:
    """Those stand at the head of the queue, and one slot is free."""
    gated = Gated(concurrency=count + 1)
    async with open_test_scheduler(gated.workers) as scheduler, gated.let_go_at_the_end():
        for number in range(count):
            await scheduler.enqueue("job", number)
        await quiesce()
        assert NodePeer(jobs).recover(AT_ONCE) == count
        behind = await scheduler.enqueue_many([NewJob(name="job", data="behind") for _ in range(3)])
        await quiesce()
        assert Counter(gated.starts) == Counter([*range(count), *["behind"] * 3])
        assert jobs.count_documents({"_id": {"$in": [job.id for job in behind]}, "status": "completed"}) == 3
        gated.let_go.set()
        await engine_of(scheduler).wait_changed()
        await quiesce()
    assert gated.most_at_once == 1
    assert jobs.count_documents({"status": "completed"}) == count + 3


async def test_thread_that_goes_on_is_not_joined_by_another(db: Database, jobs: Collection) -> None:
    """On the real clock, with a change stream, which reports that the job is pending."""
    workers, let_go, gauge, starts, behind = Workers(), Event(), Gauge(), list[int](), trio.Event()

    @workers.register("job")
    def job(job: RunningJob[None]) -> None:
        with gauge:
            starts.append(job.attempt)
            if len(starts) == 1:
                let_go.wait(50)

    @workers.register("behind")
    async def later(job: RunningJob[None]) -> None:
        behind.set()

    async with open_scheduler(db, workers, poll_interval=0.05) as scheduler:
        await scheduler.enqueue("job")
        await until(lambda: bool(starts))
        node_recovers(jobs)
        await scheduler.enqueue("behind")  # Its claim is a look, or is followed by one.
        await behind.wait()
        assert starts == [1]
        let_go.set()
        await until(lambda: jobs.count_documents({"name": "job", "status": "completed"}) == 1)
    assert (starts, gauge.most) == ([1, 2], 1)


@pytest.mark.parametrize("first_answer", ["first", "last"])
async def test_of_two_claims_in_flight_on_one_job_one_starts(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, first_answer: str
) -> None:
    """The first has been granted and its answer is on the way, while a Node peer recovers it and we claim again."""
    gated = Gated()
    async with open_test_scheduler(gated.workers) as scheduler, gated.let_go_at_the_end():
        await quiesce()
        claims = sources_of(scheduler).claims
        claim, claim_one, answers = claims.claim, claims.claim_one, [trio.Event(), trio.Event()]
        granted: list[int] = []

        async def hold_up(answer: Granted[Job]) -> Granted[Job]:
            if answer.claims and len(granted) < 2:
                granted.append(answer.claims[0].attempts)
                await answers[len(granted) - 1].wait()
            return answer

        async def claim_slowly(demand: Demand) -> Granted[Job]:
            return await hold_up(await claim(demand))

        async def claim_one_slowly(item: KnownItem, demand: Demand) -> Granted[Job]:
            return await hold_up(await claim_one(item, demand))

        claims.claim, claims.claim_one = claim_slowly, claim_one_slowly
        try:
            # An idle scheduler claims a new job by its id, which leaves slots for another claim.
            await scheduler.enqueue("job", "first")
            await until(lambda: len(granted) == 1)
            node_recovers(jobs)
            look_for_jobs(scheduler)
            await until(lambda: len(granted) == 2)
        finally:
            for answer in answers if first_answer == "first" else reversed(answers):
                answer.set()
                await trio.testing.wait_all_tasks_blocked()
        await quiesce()
        assert (granted, gated.starts) == ([1, 2], ["first"])
        gated.let_go.set()
        await engine_of(scheduler).wait_changed()
        await quiesce()
        assert gated.most_at_once == 1
    assert jobs.count_documents({"status": "completed"}) == 1


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await trio.sleep(0.01)


# --- Documents ---


@pytest.mark.parametrize("document_id", [ObjectId(), "text", {"a": 1}])
async def test_document_with_a_removed_lock_is_claimed_as_soon_as_our_own_run_of_it_ends(
    db: Database, document_id: Any
) -> None:
    things, gauge, starts, let_go, behind = db["things"], Gauge(), list[Any](), trio.Event(), trio.Event()
    things.insert_one({"_id": document_id})
    ends = list[str]()

    async def work(claim: Claim[Any]) -> None:
        if claim.id == "behind":
            behind.set()
            await claim.finish({"$set": {"done": True}})
            return
        with gauge:
            starts.append(claim.id)
            if len(starts) == 1:
                with trio.CancelScope(shield=True):
                    await let_go.wait()
            try:
                await claim.finish({"$set": {"done": True}})
            except ClaimLostError:
                ends.append("lost")
                raise
            ends.append("finished")

    async def claim_all() -> None:
        await run_claims(things, {"done": None}, work, concurrency=2, poll_interval=0.02, wait=False)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(claim_all)
        await until(lambda: bool(starts))
        things.update_one({"_id": {"$eq": document_id}}, {"$unset": {"lock": ""}})
        things.insert_one({"_id": "behind"})
        await behind.wait()
        assert len(starts) == 1
        let_go.set()
    assert (gauge.most, ends) == (1, ["lost", "finished"])
    assert things.count_documents({"done": True}) == 2


async def test_handler_that_goes_on_after_its_claim_was_found_lost_keeps_its_document(db: Database) -> None:
    things, starts, let_go, behind = db["things"], list[Any](), trio.Event(), trio.Event()
    things.insert_one({"_id": "one"})
    refused = trio.Event()

    async def work(claim: Claim[Any]) -> None:
        starts.append(claim.id)
        if starts == ["one"]:
            things.update_one({"_id": "one"}, {"$unset": {"lock": ""}})
            with pytest.raises(ClaimLostError), trio.CancelScope(shield=True):
                await claim.finish({"$set": {"done": True}})
            refused.set()
            with trio.CancelScope(shield=True):
                await let_go.wait()
            return
        await claim.finish({"$set": {"done": True}})
        if claim.id == "behind":
            behind.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_claims, things, {"done": None}, work, concurrency=3, poll_interval=0.02))
        try:
            await refused.wait()
            things.insert_one({"_id": "behind"})
            await behind.wait()
            assert starts == ["one", "behind"]
        finally:
            let_go.set()
        await until(lambda: things.count_documents({"done": True}) == 2)
        nursery.cancel_scope.cancel()
    assert starts == ["one", "behind", "one"]
