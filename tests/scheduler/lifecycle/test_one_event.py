"""One new job on an idle scheduler: claimed by its id, and no command more than that. Counted, not timed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import pytest
import trio
from pymongo import MongoClient
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.interception import Recorder, is_claim, is_look, is_settlement
from tests.support.node_peer import NodePeer
from tests.support.stream_events import Heard
from trio_monque import Monque, RunningJob, Scheduler, Workers
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, assert_enqueued, fail_next, quiesce


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def recorded(mongod: EmbeddedServer, db: Database, recorder: Recorder) -> Iterator[Database]:
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        yield client[db.name]


def sent(recorder: Recorder) -> list[str]:
    return [name for name, _ in recorder.commands if name not in ("getMore", "hello")]


async def test_one_enqueue_is_one_insert_one_claim_and_one_settlement(
    recorded: Database, recorder: Recorder, autojump_clock: MockClock
) -> None:
    workers, until_start = Workers(), list[list[str]]()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        until_start.append(sent(recorder))

    async with SchedulerOpener(recorded)(workers) as scheduler:
        await quiesce()
        for _ in range(3):
            recorder.commands.clear()
            await scheduler.enqueue("greet")
            await quiesce()
            assert until_start.pop() == ["insert", "findAndModify"]
            assert sent(recorder) == ["insert", "findAndModify", "update"]
            assert recorder.count(is_settlement) == 1


async def test_handler_gets_the_job_exactly_as_it_is_stored(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers, seen = Workers(), list[tuple[Any, int, Any]]()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        stored = jobs.find_one({"_id": job.id})
        assert stored is not None
        seen.append((stored["claimToken"], stored["attempts"], stored["data"]))
        assert (job.attempt, job.data) == (stored["attempts"], stored["data"])
        assert stored["claimedBy"] == job.scheduler.id

    async with open_test_scheduler(workers) as scheduler:
        await quiesce()
        await scheduler.enqueue("greet", {"to": "you"})
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=1)
    assert [(attempts, data) for _, attempts, data in seen] == [(1, {"to": "you"})]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_claim_of_one_whose_answer_was_lost_is_resolved(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, when: Literal["before", "after"]
) -> None:
    workers, attempts = Workers(), list[int]()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        attempts.append(job.attempt)

    async with open_test_scheduler(workers) as scheduler:
        await quiesce()
        with fail_next(scheduler, AutoReconnect("gone"), command="^claim jobs$", when=when):
            await scheduler.enqueue("greet")
            await trio.sleep(60)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert attempts == [1]


@asynccontextmanager
async def several(heard: Heard, recorded: Database, count: int) -> AsyncIterator[list[Scheduler]]:
    """Idle schedulers that learn of changes from the stream alone."""
    async with AsyncExitStack() as stack:
        schedulers = [await stack.enter_async_context(heard.open(recorded)) for _ in range(count)]
        await heard.wait_connected(count)
        # The looks that follow the start and the opening are over when what comes later is claimed by its id.
        yield schedulers


async def settled(recorder: Recorder, claims: int, settlements: int) -> None:
    while recorder.count(is_claim) < claims or recorder.count(is_settlement) < settlements:
        await trio.sleep(0.01)


async def idle(recorder: Recorder) -> None:
    """Until all that the start, or what was written before, causes is over. Only time or another change cause more."""
    await quiesce()
    recorder.commands.clear()


async def test_one_insert_of_another_costs_each_instance_one_command(
    recorded: Database, recorder: Recorder, jobs: Collection
) -> None:
    heard, node = Heard(), NodePeer(jobs)
    async with several(heard, recorded, 3):
        for _ in range(2):
            await idle(recorder)
            job = node.enqueue("greet")
            await heard.wait_started(job)
            await settled(recorder, claims=3, settlements=1)
            await quiesce()
            assert (recorder.count(is_claim), recorder.count(is_settlement), recorder.count(is_look)) == (3, 1, 0)


async def test_echo_of_an_own_enqueue_costs_nothing(recorded: Database, recorder: Recorder, jobs: Collection) -> None:
    heard, node = Heard(), NodePeer(jobs)
    async with several(heard, recorded, 1) as [scheduler]:
        for _ in range(2):
            await idle(recorder)
            job = await scheduler.enqueue("greet")
            await heard.wait_started(job.id)
            await settled(recorder, claims=1, settlements=1)
            # The stream reports in order: with this one, it has reported the echo, too.
            await heard.wait_started(node.enqueue("greet"))
            await settled(recorder, claims=2, settlements=2)
            await quiesce()
            # Either of the two may report first.
            assert (recorder.count(is_claim), recorder.count(is_look)) == (2, 0)


async def test_job_that_is_put_off_and_back_again_is_not_taken_for_its_own_echo(
    recorded: Database, recorder: Recorder
) -> None:
    heard, elsewhere = Heard("greet"), Monque(recorded)
    async with several(heard, recorded, 1) as [scheduler]:
        await idle(recorder)
        job = await scheduler.enqueue("greet", delay=1000)
        await elsewhere.reschedule_job(job.id, job.next_run_at)
        await elsewhere.reschedule_job(job.id, job.created_at)
        await heard.wait_started(job.id)


async def test_inserted_malformed_job_is_released_and_logged(
    recorded: Database, recorder: Recorder, jobs: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    heard, elsewhere = Heard(), Monque(recorded)
    async with several(heard, recorded, 1):
        await idle(recorder)
        document = await elsewhere.document("greet")
        broken = {**document, "createdAt": "yesterday"}
        jobs.insert_one(dict(broken))
        while "createdAt is 'yesterday'" not in caplog.text:
            await trio.sleep(0.01)
        good = NodePeer(jobs).enqueue("greet")
        await heard.wait_started(good)
        stored = jobs.find_one({"_id": document["_id"]})
        assert stored is not None
        assert (stored["status"], stored.get("claimedBy"), stored["nextRunAt"]) == (
            "pending",
            None,
            document["nextRunAt"],
        )


async def test_inserted_pending_job_with_an_owner_is_logged_and_left_alone(
    recorded: Database, recorder: Recorder, jobs: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    async with several(heard, recorded, 1):
        await idle(recorder)
        job = NodePeer(jobs).enqueue("greet", claimedBy="left over")
        while "left over" not in caplog.text:
            await trio.sleep(0.01)
        assert recorder.count(is_claim) == 0
    assert job not in heard.started
