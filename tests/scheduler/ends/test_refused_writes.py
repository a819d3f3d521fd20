"""A job that the server refuses to have claimed or changed is set aside alone; all others run."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import bson
import pytest
import trio
from bson import ObjectId
from trio.testing import MockClock

from tests.support.full_documents import LARGEST, put_full
from tests.support.store import claimed_by_a_dead_one, handle, insert
from tests.support.thoroughly import one_in
from trio_monque import JobStatus, Monque, RunningJob, Workers
from trio_monque.errors import DocumentRefusedError, InvalidPayloadError
from trio_monque.events import JobClaimLost, JobFailed, SchedulerErrorOccurred
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import claiming
from trio_monque.store.jobs.claiming import TakenJobs
from trio_monque.store.jobs.refused_claims import RefusedClaim
from trio_monque.store.skipped_documents import LOOK_AGAIN_AFTER
from trio_monque.testing import SchedulerOpener, advance, drain, now, quiesce


class Ran:
    """Handlers that note what they ran."""

    def __init__(self, *names: str) -> None:
        self.ids: list[ObjectId] = []
        self.workers = Workers()
        for name in names or ("greet",):
            self.workers.register(name, self.run)

    async def run(self, job: RunningJob[Any]) -> None:
        self.ids.append(job.id)


@pytest.mark.full
@pytest.mark.parametrize("room", one_in(3, [80, 110, 160]))
async def test_job_without_room_for_a_claim_fails_with_the_reason_and_all_others_run(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock, room: int
) -> None:
    full = put_full(jobs, room)
    others = {insert(handle(db)).id for _ in range(7)}
    ran, reported = Ran(), list[Any]()
    async with open_test_scheduler(ran.workers, listeners={JobFailed: reported.append}) as scheduler:
        await drain(scheduler)
        assert set(ran.ids) == others
        document = jobs.find_one({"_id": full}, {"data": False})
        assert document is not None
        assert (document["status"], document["failCount"]) == ("failed", 0)
        assert document["failReason"].startswith("the server refuses")
        (event,) = reported
        assert (event.job.id, event.job.status, event.will_retry) == (full, JobStatus.FAILED, False)
        assert event.job.fail_reason == document["failReason"]
        assert isinstance(event.error, DocumentRefusedError)
        assert (scheduler.statistics().unclaimable, scheduler.statistics().failed) == (1, 0)
        assert scheduler.is_healthy()


@pytest.mark.full
async def test_job_that_cannot_even_be_failed_is_listed_as_broken_and_all_others_run(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    db: Database,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also after a restart, and for one who asks a client that has met nothing."""
    full = put_full(jobs, room=0)
    reported: list[Any] = []
    for _ in range(2):
        caplog.clear()
        others = {insert(handle(db)).id for _ in range(7)}
        ran = Ran()
        async with open_test_scheduler(ran.workers, listeners={SchedulerErrorOccurred: reported.append}) as scheduler:
            await drain(scheduler)
            assert set(ran.ids) == others
            assert (scheduler.statistics().broken, scheduler.health().broken) == (1, 1)
            assert scheduler.is_healthy()
            await advance(3 * LOOK_AGAIN_AFTER)
            assert [str(full) in record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
                True
            ]
        assert reported.pop().job.id == full
        assert reported == []
    (listed,) = await monque.get_broken_documents()
    assert listed.document_id == full
    assert f"{LARGEST} bytes" in listed.reason
    assert jobs.count_documents({"_id": full, "status": "pending"}) == 1


async def test_job_that_a_validator_refuses_fails_and_all_others_run(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    refused = {insert(handle(db), data="guarded").id for _ in range(3)}
    others = {insert(handle(db)).id for _ in range(7)}
    db.command("collMod", jobs.name, validator={"$nor": [{"data": "guarded", "claimedBy": {"$exists": True}}]})
    ran = Ran()
    async with open_test_scheduler(ran.workers) as scheduler:
        await drain(scheduler)
        assert set(ran.ids) == others
        assert scheduler.statistics().unclaimable == 3
    found = jobs.find({"status": "failed"})
    assert {document["_id"]: "validation" in document["failReason"] for document in found} == dict.fromkeys(
        refused, True
    )


async def test_validator_that_refuses_every_claim_fails_no_job_and_they_run_when_it_is_gone(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    waiting = {insert(handle(db)).id for _ in range(20)}
    db.command("collMod", jobs.name, validator={"claimedBy": {"$exists": False}})
    ran = Ran()
    async with open_test_scheduler(ran.workers) as scheduler:
        await quiesce()
        assert jobs.count_documents({"status": "pending"}) == 20
        assert scheduler.health().broken == 20
        listed = await scheduler.get_broken_documents()
        assert {one.document_id for one in listed} == waiting
        assert all("validation" in one.reason for one in listed)
        db.command("collMod", jobs.name, validator={})
        await advance(LOOK_AGAIN_AFTER)
        await advance(1)
        await drain(scheduler)
        assert set(ran.ids) == waiting
        assert scheduler.health().broken == 0


@pytest.mark.full
async def test_job_that_is_claimed_by_its_id_and_refused_is_set_aside_as_well(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is due alone is claimed without a look."""
    by_id = []
    take_one = claiming.take_one

    def noted(store: JobCollection, job_id: ObjectId, *rest: Any) -> TakenJobs:
        by_id.append(job_id)
        return take_one(store, job_id, *rest)

    monkeypatch.setattr(claiming, "take_one", noted)
    full = put_full(jobs, room=100, nextRunAt=now() + timedelta(seconds=10))
    ran = Ran()
    async with open_test_scheduler(ran.workers) as scheduler:
        await quiesce()
        await advance(20)
        assert by_id == [full]
        await scheduler.enqueue("greet")
        await drain(scheduler)
        assert len(ran.ids) == 1
        assert jobs.count_documents({"_id": full, "status": "failed"}) == 1
        assert [loop.last_error for loop in scheduler.health().loops if loop.last_error] == [], "it is not an outage"


def test_reason_that_the_server_gives_for_a_refusal_is_bounded(db: Database) -> None:
    """Some servers quote the document in it, and it is stored in that document, which is full."""
    refused = RefusedClaim(insert(handle(db)), 17419, "it is too large: " + "x" * 1_000_000)
    assert len(refused.reason) < 600


# --- The ends of runs, and what is written by hand, in documents with little room ---


@pytest.mark.full
@pytest.mark.parametrize("room", one_in(6, [230, 260, 300, 400, 700, 1000]))
async def test_job_that_fails_in_a_full_document_ends_as_failed_and_all_others_run(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock, room: int
) -> None:
    full = put_full(jobs, room)
    others = {insert(handle(db)).id for _ in range(5)}
    ran: set[ObjectId] = set()
    reported: list[Any] = []
    workers = Workers()

    @workers.register("greet", max_attempts=3, backoff=5)
    async def greet(job: RunningJob[Any]) -> None:
        if job.id == full:
            raise ValueError("y" * 200)
        ran.add(job.id)

    listeners = dict.fromkeys((JobFailed, JobClaimLost), reported.append)
    async with open_test_scheduler(workers, instance_id="a-host-of-some-name-1", listeners=listeners) as scheduler:
        await drain(scheduler)
        for _ in range(5):
            await scheduler.enqueue("greet")
            await advance(5)
        await drain(scheduler)
        assert others < ran
        assert scheduler.is_healthy()
    document = jobs.find_one({"_id": full}, {"data": False})
    assert document is not None
    assert document["status"] == "failed"
    assert document["failReason"].startswith(("ValueError: yyy", "the server refuses every claim"))
    assert {type(event) for event in reported} == {JobFailed}
    assert [event.will_retry for event in reported] == [True] * (len(reported) - 1) + [False]


@pytest.mark.full
async def test_checkpoint_without_room_is_the_handlers_error_and_what_gives_way_is_older(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    full = put_full(jobs, 1000, errors=[{"error": "e" * 500}], progress="p" * 500)
    raised: list[Exception] = []
    workers = Workers()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        await job.save("s" * 1500)
        for report in (job.save, job.set_progress):
            try:
                await report("t" * 5000)
            except InvalidPayloadError as error:
                raised.append(error)
        stored = jobs.find_one({"_id": job.id}, {"data": False})
        assert stored is not None
        assert stored["saved"] == "s" * 1500
        assert "errors" not in stored

    async with open_test_scheduler(workers) as scheduler:
        await drain(scheduler)
        assert scheduler.statistics().completed == 1
    assert ["checkpoint" in str(error) for error in raised] == [True, False]
    assert str(full) in str(raised[0])


@pytest.mark.full
async def test_full_job_is_cancelled_and_retried_by_hand(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection
) -> None:
    kept = {"errors": [{"error": "e" * 100}]}
    pending, failed = put_full(jobs, 0, **kept), put_full(jobs, 0, **{**kept, "status": "failed"})
    assert (await monque.cancel_job(pending)).status is JobStatus.CANCELLED  # type: ignore[union-attr]
    assert (await monque.retry_job(failed)).status is JobStatus.PENDING  # type: ignore[union-attr]
    without_room = put_full(jobs, 0)
    with pytest.raises(DocumentRefusedError, match="full"):
        await monque.cancel_job(without_room)


@pytest.mark.full
async def test_full_job_whose_holders_died_too_often_is_given_up(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    claimed_by_a_dead_one(handle(db), 2, "greet", 30.0)
    (stored, _) = jobs.find()
    grown = {**stored, "maxRescues": 0, "data": ""}
    jobs.replace_one({"_id": stored["_id"]}, {**grown, "data": "x" * (LARGEST - 10 - len(bson.encode(grown)))})
    ran = Ran()
    async with open_test_scheduler(ran.workers) as scheduler:
        await advance(200)
        await drain(scheduler)
        assert len(ran.ids) == 1
        document = jobs.find_one({"_id": stored["_id"]}, {"data": False})
        assert document is not None
        assert (document["status"], document["failReason"]) == ("failed", "died 1 time while running")


async def test_run_whose_renewal_the_server_refuses_ends_before_its_lease(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    """It still has the claim, which nothing keeps from expiring: another instance may take the job after that."""
    workers, cancelled_at = Workers(), list[float]()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled_at.append(trio.current_time() - began)

    insert(handle(db))
    async with open_test_scheduler(workers, heartbeat_interval=10, recover_stale_jobs=False):
        await quiesce()
        began = trio.current_time()
        jobs.update_one({}, {"$set": {"closed": True}})
        db.command("collMod", jobs.name, validator={"closed": {"$exists": False}})
        await advance(100)
        db.command("collMod", jobs.name, validator={})
        assert len(cancelled_at) == 1
        assert 0 < cancelled_at[0] < 30
