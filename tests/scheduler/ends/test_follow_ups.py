"""A worker's `then`: the job that is enqueued with the end of another one, exactly once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.interception import Recorder
from tests.support.node_peer import NodePeer
from tests.support.programs import ROOT
from tests.support.rescues import LEASE, PASS, dead_instance
from tests.support.standalone import standalone_server
from trio_monque import Discard, Job, JobStatus, NewJob, Retention, Retry, RunningJob, Workers, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.engine import pauses
from trio_monque.errors import InvalidOptionError
from trio_monque.jobs.follow_ups import PARKED_UNTIL, parked_for
from trio_monque.store.codec import Codec, document_of
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, crash, drain, fail_next, now, quiesce

Then = Callable[[Job[Any]], NewJob | None]


class Shipping:
    """Two workers: one ships what the other has packed."""

    def __init__(self, then: Then | None = None) -> None:
        self.workers = Workers()
        self.shipped: list[Any] = []
        self.seen: list[Job[Any]] = []
        self.workers.register("pack", self.pack, store_result=True, then=then or self.then, max_attempts=2)
        self.workers.register("ship", self.ship)

    async def pack(self, job: RunningJob[Any]) -> Any:
        if job.data == "broken":
            raise Discard("it is broken")
        if job.data == "heavy":
            raise Retry("again", after=1)
        return {"parcel": job.data}

    async def ship(self, job: RunningJob[Any]) -> None:
        self.shipped.append(job.data)

    def then(self, job: Job[Any]) -> NewJob | None:
        self.seen.append(job)
        if job.status is JobStatus.COMPLETED:
            return NewJob("ship", job.result)
        return NewJob("ship", {"failed": job.data, "why": job.fail_reason})


async def test_job_that_completes_is_followed_by_one_with_its_result(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    shipping = Shipping()
    async with open_test_scheduler(shipping.workers) as scheduler:
        packed = await scheduler.enqueue("pack", "book", meta={"tenant": "a"})
        await drain(scheduler)
        (shipped,) = jobs.find({"name": "ship"})
    assert shipping.shipped == [{"parcel": "book"}]
    assert [(job.id, job.status, job.data) for job in shipping.seen] == [(packed.id, "completed", "book")]
    assert (shipped["follows"], shipped["meta"], shipped["status"]) == (packed.id, {"tenant": "a"}, "completed")
    assert jobs.count_documents({"followUp": {"$exists": True}}) == 0


async def test_job_that_fails_for_good_is_followed_and_each_attempt_is_not(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    shipping = Shipping()
    async with open_test_scheduler(shipping.workers) as scheduler:
        for data in ("broken", "heavy"):
            await scheduler.enqueue("pack", data)
        await drain(scheduler)
        assert [one["failed"] for one in shipping.shipped] == ["broken"]
        assert shipping.shipped[0]["why"] == "it is broken"
        assert len(shipping.seen) == 1
        await advance(2)
        assert [one["failed"] for one in shipping.shipped] == ["broken", "heavy"]
    assert all(job.status == "failed" for job in shipping.seen)


async def test_no_follow_up_of_a_cancelled_job_and_where_then_returns_none(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler(Shipping(lambda _: None).workers) as scheduler:
        await scheduler.enqueue("pack", "book")
        later = await scheduler.enqueue("pack", "pen", delay=100)
        await drain(scheduler)
        await scheduler.cancel_job(later.id)
    assert jobs.count_documents({"name": "ship"}) == 0
    assert jobs.count_documents({"followUp": {"$exists": True}}) == 0


async def test_follow_up_has_its_own_delay(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler(Shipping(lambda _: NewJob("ship", 1, delay=60)).workers) as scheduler:
        await scheduler.enqueue("pack", "book")
        await drain(scheduler)
        (packed,), (ship,) = jobs.find({"name": "pack"}), jobs.find({"name": "ship"})
    assert ship["status"] == "pending"
    assert 60 <= (ship["nextRunAt"] - packed["finishedAt"]).total_seconds() < 61


# --- Kills ---

# The writes that follow the end of a job, by what the library says that they do.
WRITES: Final = (
    "enqueue the job",
    "choose follow-ups",
    "release follow-ups",
    "remove the marks of jobs with a follow-up",
)


@pytest.mark.full
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("write", WRITES)
async def test_exactly_one_follow_up_of_a_scheduler_that_crashes_at_any_write(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    write: str,
    when: Any,
) -> None:
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)
    shipping = Shipping()
    async with open_test_scheduler(shipping.workers) as killed:
        await killed.enqueue("pack", "book", delay=1)  # Not before the faults are there.
        # Each attempt at it fails: none succeeds between the first one and the crash.
        with fail_next(killed, AutoReconnect("killed"), when=when, command=f"^{write}$", times=None):
            await trio.sleep(1)
            await quiesce()
            await crash(killed)
    assert jobs.count_documents({"name": "pack", "status": "completed"}) == 1
    assert jobs.count_documents({"followUp": {"$exists": True}}) > 0 or when == "after"
    async with open_test_scheduler(shipping.workers) as scheduler:
        await drain(scheduler)
    assert shipping.shipped == [{"parcel": "book"}]
    assert jobs.count_documents({"name": "ship"}) == 1
    assert jobs.count_documents({"followUp": {"$exists": True}}) == 0


@pytest.mark.full
@pytest.mark.parametrize("write", WRITES)
async def test_lost_answer_makes_no_second_follow_up(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, write: str
) -> None:
    shipping = Shipping()
    async with open_test_scheduler(shipping.workers) as scheduler:
        await scheduler.enqueue("pack", "book", delay=1)  # Not before the fault is there.
        with fail_next(scheduler, AutoReconnect("lost"), when="after", command=f"^{write}$"):
            await trio.sleep(1)
            await drain(scheduler)
        await advance(2)
        assert shipping.shipped == [{"parcel": "book"}], "it is not left to another look"
    async with open_test_scheduler(shipping.workers) as scheduler:
        await drain(scheduler)
    assert shipping.shipped == [{"parcel": "book"}]
    assert jobs.count_documents({"name": "ship"}) == 1
    assert jobs.count_documents({"followUp": {"$exists": True}}) == 0


@pytest.mark.parametrize("write", [1, *(pytest.param(number, marks=pytest.mark.full) for number in range(2, 6))])
def test_exactly_one_follow_up_of_a_process_that_is_killed_before_a_write(
    mongod: EmbeddedServer, db: Database, jobs: Collection, write: int
) -> None:
    program = [sys.executable, "-m", "tests.scheduler.ends.follow_ups_process", mongod.uri, db.name]
    killed = subprocess.run([*program, str(write)], cwd=ROOT, check=False)
    # Five writes: the end, the insert, the choice, the release, and the removal of the mark.
    assert killed.returncode == -signal.SIGKILL
    if write == 1:
        jobs.update_many({"status": "processing"}, {"$set": {"heartbeatInterval": 50}})
    subprocess.run([*program, "0"], cwd=ROOT, check=True)
    (packed,), (shipped,) = jobs.find({"name": "pack"}), jobs.find({"name": "ship"})
    assert (packed["status"], shipped["status"], shipped["follows"]) == ("completed", "completed", packed["_id"])
    assert jobs.count_documents({"followUp": {"$exists": True}}) == 0


# --- Other ends ---


async def test_job_that_died_too_often_is_followed_although_its_rescuer_does_not_know_the_worker(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    shipping = Shipping()
    shipping.workers.register("pack", sleep, replace=True, then=shipping.then)
    async with open_test_scheduler(Workers(), max_rescues=0):
        async with dead_instance(open_test_scheduler, shipping.workers, "pack"):
            await advance(LEASE + PASS)
            (packed,) = jobs.find()
            assert (packed["status"], packed["followUp"]) == ("failed", True)
            async with open_test_scheduler(shipping.workers) as scheduler:
                await drain(scheduler)
    assert shipping.shipped == [{"failed": None, "why": "died 1 time while running"}]


async def test_job_that_died_too_often_is_followed_at_once_by_a_rescuer_that_knows_the_worker(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    shipping = Shipping()
    shipping.workers.register("pack", sleep, replace=True, then=shipping.then)
    async with dead_instance(open_test_scheduler, shipping.workers, "pack"):
        async with open_test_scheduler(shipping.workers, max_rescues=0) as living:
            await advance(LEASE + PASS)
            await drain(living)
    assert shipping.shipped == [{"failed": None, "why": "died 1 time while running"}]


async def test_transaction_that_ends_its_job_is_followed(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    shipping = Shipping()

    async def pack(job: RunningJob[Any]) -> None:
        await job.transaction(lambda _: "parcel")

    shipping.workers.register("pack", pack, replace=True, store_result=True, then=shipping.then)
    async with open_test_scheduler(shipping.workers) as scheduler:
        await scheduler.enqueue("pack")
        await drain(scheduler)
    assert shipping.shipped == ["parcel"]


@pytest.mark.full
def test_follow_ups_need_no_replica_set() -> None:
    shipping = Shipping()
    done = trio.Event()

    async def main(db: Database) -> None:
        async def ship(job: RunningJob[Any]) -> None:
            shipping.shipped.append(job.data)
            done.set()

        shipping.workers.register("ship", ship, replace=True)
        async with open_scheduler(db, shipping.workers, poll_interval=0.05) as scheduler:
            await scheduler.enqueue("pack", "book")
            await done.wait()

    with standalone_server() as uri, MongoClient[Any](uri) as client:
        trio.run(main, client["x"])
        assert shipping.shipped == [{"parcel": "book"}]
        assert client["x"]["monque_jobs"].count_documents({"followUp": {"$exists": True}}) == 0


# --- What the rest of the library does with parked and owing jobs ---


def owing(jobs: Collection, status: str = "completed", **fields: Any) -> ObjectId:
    moment = now() - timedelta(hours=1)
    document = {"name": "pack", "data": 1, "status": status, "failCount": 0, "attempts": 1, "followUp": True, **fields}
    dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), moment)
    job_id: ObjectId = jobs.insert_one({**document, **dates}).inserted_id
    return job_id


async def test_retention_spares_a_job_that_owes_and_no_cancelled_one(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    kept = [owing(jobs), owing(jobs, "failed"), owing(jobs, followUp=ObjectId())]
    owing(jobs, "cancelled")
    owing(jobs, followUp=None)
    async with open_test_scheduler(retention=Retention(completed=1, failed=1, cancelled=1)):
        await advance(1)
    assert [job["_id"] for job in jobs.find()] == kept


async def test_parked_job_is_claimed_by_no_library_and_deleted_once_it_cannot_be_chosen(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    shipping = Shipping()
    parent = owing(jobs, "pending")
    jobs.update_one({"_id": parent}, {"$set": {"nextRunAt": now() + timedelta(days=1)}})
    parked = parked_for(
        Job(id=ObjectId(), name="ship", next_run_at=now(), created_at=now(), updated_at=now()), parent_of(jobs)
    )
    jobs.insert_one(document_of(parked))
    async with open_test_scheduler(shipping.workers) as scheduler:
        await drain(scheduler)
        assert NodePeer(jobs).claim("ship") is None
        assert shipping.shipped == []
        assert jobs.count_documents({"_id": parked.id}) == 1  # It may still be chosen.
        assert await scheduler.delete_job(parent)
    async with open_test_scheduler(shipping.workers) as scheduler:
        await drain(scheduler)
    assert jobs.count_documents({}) == 0


def parent_of(jobs: Collection) -> Job:
    document = jobs.find_one({"name": "pack"})
    assert document is not None
    return Codec(jobs.codec_options).decode(document)


async def test_two_schedulers_that_pay_at_once_enqueue_one(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    shipping = Shipping()
    for _ in range(3):
        owing(jobs, result={"parcel": 1})
    # Both look at their start.
    async with open_test_scheduler(shipping.workers) as one, open_test_scheduler(shipping.workers):
        await drain(one)
    assert shipping.shipped == [{"parcel": 1}] * 3
    assert jobs.count_documents({"followUp": {"$exists": True}}) == 0


# --- A `then` that cannot be used ---


def raises(job: Job[Any]) -> NewJob:
    raise SystemExit("no")


BAD: Final[Mapping[str, Then]] = {
    "raises": raises,
    "no NewJob": lambda _: "ship",  # type: ignore[dict-item, return-value]
    "unique key": lambda _: NewJob("ship", unique_key="k"),
    "cannot be stored": lambda _: NewJob("ship", object()),
}


@pytest.mark.full
@pytest.mark.parametrize("bad", BAD)
async def test_then_that_fails_harms_no_other_job_and_is_tried_again(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    bad: str,
) -> None:
    shipping = Shipping(lambda job: BAD[bad](job) if job.data == "bad" else NewJob("ship", job.data))
    async with open_test_scheduler(shipping.workers) as scheduler:
        for data in ("good", "bad", "good"):
            await scheduler.enqueue("pack", data)
        await drain(scheduler)
        assert jobs.count_documents({"name": "pack", "status": "completed"}) == 3
    assert shipping.shipped == ["good", "good"]
    assert [record.getMessage()[:38] for record in caplog.records if record.levelname == "ERROR"] == [
        "could not enqueue the follow-up of job"
    ]
    mended = Shipping()
    async with open_test_scheduler(mended.workers) as scheduler:
        await drain(scheduler)
    assert mended.shipped == [{"parcel": "bad"}]


async def later(job: Job[Any]) -> None: ...


@pytest.mark.parametrize("wrong", [later, "ship", 5])
def test_then_must_be_a_plain_function(wrong: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"then=.*must be a (plain )?function"):
        Workers().register("pack", lambda _: None, then=wrong)


# --- What it costs ---


async def test_only_jobs_with_a_then_pay_for_it(
    mongod: EmbeddedServer, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    recorder, shipping = Recorder(), Shipping()
    shipping.workers.register("plain", shipping.ship)
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        async with SchedulerOpener(client[db.name])(shipping.workers) as scheduler:
            await quiesce()
            costs = []
            for name in ("plain", "pack"):
                recorder.commands.clear()
                await scheduler.enqueue(name, "book")
                await drain(scheduler)
                sent = Counter(kind for kind, command in recorder.commands if command.get(kind) == jobs.name)
                costs.append((sent["insert"], sent["update"] + sent["findAndModify"]))
    # Of the second, the follow-up itself is an insert, a claim and an end. The rest is the choice, the release, and the
    # removal of the mark.
    assert costs == [(1, 2), (2, 2 + 3 + 2)]
    fields = {frozenset(job) for job in jobs.find({"name": {"$in": ["plain", "pack"]}})}
    assert {"follows", "followUp"}.isdisjoint(frozenset().union(*fields))


async def sleep(job: RunningJob[Any]) -> None:
    await trio.sleep_forever()


async def test_middleware_sees_which_job_another_one_follows(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    seen: list[tuple[str, ObjectId | None, Mapping[str, str]]] = []

    async def watching(job: RunningJob[Any], run: Callable[[], Awaitable[Any]]) -> None:
        seen.append((job.name, job.job.follows, job.meta))
        await run()

    workers = Workers(middleware=[watching])
    workers.register("pack", ends, then=lambda job: NewJob("wrap", meta={"tenant": "b"}))
    workers.register("wrap", ends, then=lambda job: NewJob("ship"))
    workers.register("ship", ends)
    async with open_test_scheduler(workers) as scheduler:
        packed = await scheduler.enqueue("pack", meta={"tenant": "a"})
        await drain(scheduler)
    assert [(name, meta) for name, _, meta in seen] == [
        ("pack", {"tenant": "a"}),
        ("wrap", {"tenant": "b"}),
        ("ship", {"tenant": "b"}),
    ]
    assert seen[1][1] == packed.id
    assert None not in (seen[1][1], seen[2][1])


async def ends(job: RunningJob[Any]) -> None: ...


async def test_worker_with_a_then_that_is_registered_later(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    shipping = Shipping()
    owing(jobs, result="left")
    async with open_test_scheduler() as scheduler:
        await drain(scheduler)
        scheduler.register("ship", shipping.ship)
        scheduler.register("pack", shipping.pack, store_result=True, then=shipping.then)
        await scheduler.enqueue("pack", "book")
        await drain(scheduler)
    assert len(shipping.shipped) == 2
    assert "left" in shipping.shipped


async def test_result_is_of_the_declared_type(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    seen: list[Any] = []
    workers = Workers()

    @workers.register("measure", result=Size, then=lambda job: seen.append(job.result))
    async def measure(job: RunningJob[Any]) -> Size:
        return Size(3, 4)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue(measure, None)
        await drain(scheduler)
    assert seen == [Size(3, 4)]


@dataclass
class Size:
    width: int
    height: int


# --- What is refused, or does not answer ---


async def test_follow_up_is_enqueued_at_once_and_not_by_the_next_look(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    shipping = Shipping()
    async with open_test_scheduler(shipping.workers) as scheduler:
        await quiesce()
        began_at = trio.current_time()
        await scheduler.enqueue("pack", "book")
        await drain(scheduler)
        assert shipping.shipped == [{"parcel": "book"}]
        assert trio.current_time() - began_at < 1


@pytest.mark.full
@pytest.mark.parametrize(
    "refused",
    [{"name": "ship"}, {"name": "ship", "nextRunAt": {"$lt": PARKED_UNTIL}}],
    ids=["the insert", "the release"],
)
async def test_follow_up_that_the_server_refuses_stays_owed(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock, refused: Any
) -> None:
    """Of a release, the next look meets it, and that of another scheduler."""
    shipping = Shipping()
    async with open_test_scheduler(shipping.workers) as scheduler:
        await quiesce()
        db.command("collMod", jobs.name, validator={"$nor": [refused]})
        packed = await scheduler.enqueue("pack", "book")
        await drain(scheduler)
        await advance(60)
    async with open_test_scheduler(shipping.workers) as scheduler:
        await drain(scheduler)
    assert shipping.shipped == []
    assert "followUp" in (jobs.find_one({"_id": packed.id}) or {})
    db.command("collMod", jobs.name, validator={})
    async with open_test_scheduler(shipping.workers) as scheduler:
        await drain(scheduler)
    assert shipping.shipped == [{"parcel": "book"}]
    assert jobs.count_documents({"name": "ship"}) == 1
    assert jobs.count_documents({"followUp": {"$exists": True}}) == 0


async def test_scheduler_leaves_although_follow_ups_cannot_be_enqueued(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Another instance finds them."""
    shipping = Shipping()
    async with open_test_scheduler(shipping.workers) as scheduler:
        await quiesce()
        fault = fail_next(scheduler, AutoReconnect("gone"), command="^look for jobs that owe a follow-up$", times=None)
        await scheduler.enqueue("pack", "book")
        await quiesce()
        began_at = trio.current_time()
    assert trio.current_time() - began_at < 10
    fault.remove()
    assert jobs.count_documents({"name": "ship"}) == 0
    async with open_test_scheduler(shipping.workers) as scheduler:
        await drain(scheduler)
    assert shipping.shipped == [{"parcel": "book"}]
