"""A job that the server refuses to have claimed or changed is set aside alone; all others run."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from trio.testing import MockClock

from tests.support.full_documents import LARGEST, put_full
from tests.support.store import handle, insert
from trio_monque import JobError, JobFailed, JobStatus, Monque, RunningJob, Workers
from trio_monque.errors import DocumentRefusedError
from trio_monque.store import claiming
from trio_monque.store.claiming import Taken
from trio_monque.store.connection import JobCollection
from trio_monque.store.known import LOOK_AGAIN_AFTER
from trio_monque.store.types import Collection, Database
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


@pytest.mark.parametrize("room", [80, 110, 160])
async def test_job_without_room_for_a_claim_fails_with_the_reason_and_all_others_run(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock, room: int
) -> None:
    full = put_full(jobs, room)
    others = {insert(handle(db)).id for _ in range(7)}
    ran, told = Ran(), list[Any]()
    async with open_test_scheduler(ran.workers, listeners={JobFailed: told.append}) as scheduler:
        await drain(scheduler)
        assert set(ran.ids) == others
        document = jobs.find_one({"_id": full}, {"data": False})
        assert document is not None
        assert (document["status"], document["failCount"]) == ("failed", 0)
        assert document["failReason"].startswith("the server refuses")
        (event,) = told
        assert (event.job.id, event.job.status, event.will_retry) == (full, JobStatus.FAILED, False)
        assert event.job.fail_reason == document["failReason"]
        assert isinstance(event.error, DocumentRefusedError)
        assert (scheduler.statistics().set_aside, scheduler.statistics().failed) == (1, 0)
        assert scheduler.is_healthy()


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
    told: list[Any] = []
    for _ in range(2):
        caplog.clear()
        others = {insert(handle(db)).id for _ in range(7)}
        ran = Ran()
        async with open_test_scheduler(ran.workers, listeners={JobError: told.append}) as scheduler:
            await drain(scheduler)
            assert set(ran.ids) == others
            assert (scheduler.statistics().broken, scheduler.health().broken) == (1, 1)
            assert scheduler.is_healthy()
            await advance(3 * LOOK_AGAIN_AFTER)
            assert [str(full) in record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
                True
            ]
        assert told.pop().job.id == full
        assert told == []
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
        assert scheduler.statistics().set_aside == 3
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


async def test_job_that_is_claimed_by_its_id_and_refused_is_set_aside_as_well(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is due alone is claimed without a look."""
    by_id = []
    take_one = claiming.take_one

    def noted(store: JobCollection, job_id: ObjectId, *rest: Any) -> Taken:
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
