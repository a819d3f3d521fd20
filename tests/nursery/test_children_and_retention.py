"""Retention and children: a parent that still has its scope needs its children, whether it has ended or not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import trio
from bson import ObjectId
from trio.testing import MockClock

from tests.nursery.flows import AT, Flow, statuses
from trio_monque import JobFailedError, Monque, Retention, RunningJob, open_job_nursery
from trio_monque.client.monque import context_of
from trio_monque.jobs.job import JobStatus
from trio_monque.store.driver.types import Collection
from trio_monque.store.jobs import indexes, retention
from trio_monque.testing import SchedulerOpener, advance

AT_ONCE = Retention(completed=1, failed=None, cancelled=1, interval=60)


@pytest.mark.full
async def test_failed_parent_that_is_retried_by_hand_finds_the_results_of_its_children(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N23."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            got = await nursery.run("child", "done")
        if job.attempt == 1:
            raise OSError
        return got

    flow = Flow(body, max_attempts=1)
    async with open_test_scheduler(flow.workers, retention=AT_ONCE) as scheduler:
        parent = await scheduler.enqueue("parent")
        plain = await scheduler.enqueue("child", "no child")
        with pytest.raises(JobFailedError):
            await scheduler.wait_job(parent)
        await advance(1000)
        assert await scheduler.get_job(plain.id) is None
        await scheduler.retry_job(parent.id)
        assert (await scheduler.wait_job(parent)).result == "done"
        assert flow.runs["done"] == 1
        await advance(1000)
        assert jobs.count_documents({}) == 0, "a completed parent needs them no longer"


@pytest.mark.full
@pytest.mark.parametrize("goes", ["deleted", "another scope"])
async def test_children_that_no_parent_needs_any_more_are_deleted(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, goes: str
) -> None:
    """N23."""

    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [1, 2, 3])
        raise OSError

    async with open_test_scheduler(Flow(body, max_attempts=1).workers, retention=AT_ONCE) as scheduler:
        parent = await scheduler.enqueue("parent")
        await advance(1000)
        assert statuses(jobs) == {"completed": 3}
        if goes == "deleted":
            await scheduler.delete_job(parent.id)
        else:
            jobs.update_one({"name": "parent"}, {"$set": {"ownScope": ObjectId()}})
        await advance(1000)
    assert statuses(jobs) == {}


@pytest.mark.full
@pytest.mark.parametrize("keep_last", [None, 3])
async def test_thousands_of_spared_children_do_not_stop_retention_behind_them(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    keep_last: int | None,
) -> None:
    """N23: also if they, and the jobs behind them, have ended in the same millisecond."""
    context_of(monque).ensure_indexes(indexes.SCOPES)
    scope = ObjectId()
    common = {"data": None, "nextRunAt": AT, "failCount": 0, "createdAt": AT}
    parent = jobs.insert_one({**common, "name": "parent", "status": "failed", "updatedAt": AT, "ownScope": scope})
    child = {"name": "child", "status": "completed", "scope": scope, "parent": parent.inserted_id, "block": "0"}
    ids = sorted(ObjectId() for _ in range(2_600))

    def ended(number: int, milliseconds: int, **fields: Any) -> dict[str, Any]:
        at = AT + timedelta(milliseconds=milliseconds)
        return {"_id": ids[number], **common, **child, "updatedAt": at, "finishedAt": at, **fields}

    plain = dict.fromkeys(("scope", "parent", "block"))
    documents = [ended(number, 5) for number in range(2_500)]
    for number, at in ((2_500, 5), (2_501, 5), (2_502, 6), (2_503, 7)):
        one = ended(number, at)
        documents.append({field: value for field, value in one.items() if field not in plain})
    documents += [ended(number, 8) for number in range(2_504, 2_600)]
    jobs.insert_many(documents)
    wanted = Retention(completed=1, keep_last=keep_last, interval=60)
    async with open_test_scheduler(retention=wanted):
        with trio.fail_after(600):
            await advance(130)
    assert jobs.count_documents({"name": "child", "scope": scope}) == 2_596
    assert jobs.count_documents({"name": "child", "scope": {"$exists": False}}) == 0


def test_child_is_kept_as_long_as_it_is_not_known_that_there_are_children(monque: Monque, jobs: Collection) -> None:
    """N23: an instance that has not read the indexes yet does not delete children."""
    common = {"name": "child", "data": None, "nextRunAt": AT, "failCount": 0, "createdAt": AT, "updatedAt": AT}
    both = [{**common, "_id": ObjectId(), "status": "completed"} for _ in range(2)]
    both[0].update(scope=ObjectId(), parent=ObjectId(), block="0")
    jobs.insert_many(both)
    expired = retention.ended_before(JobStatus.COMPLETED, AT + timedelta(seconds=1))
    ids = [one["_id"] for one in both]
    assert retention.delete_if_expired(context_of(monque).jobs, expired, ids) == 1
    assert [one["_id"] for one in jobs.find()] == ids[:1]
    assert retention.delete_if_expired(context_of(monque).jobs, expired, ids, children=True) == 1
