"""Management with lost answers: a second sending and a majority read find the outcome, or it is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.jobs_in_memory import flat
from tests.support.lossy_proxy import Loss, LossyProxy, lossy_proxy
from trio_monque import Job, JobStatus, Monque
from trio_monque.errors import MonqueConnectionError
from trio_monque.events import Event, JobCancelled, JobDeleted, JobRetried
from trio_monque.store.driver.types import Collection, Database

TOMORROW = datetime(2046, 1, 2, tzinfo=UTC)

CALLS: dict[str, tuple[str, Callable[[Monque, ObjectId], Any]]] = {
    # From which status, and how.
    "cancel": ("pending", lambda monque, job_id: monque.cancel_job(job_id)),
    "retry": ("failed", lambda monque, job_id: monque.retry_job(job_id)),
    "reschedule": ("pending", lambda monque, job_id: monque.reschedule_job(job_id, TOMORROW)),
}
REPORTED: dict[str, Callable[[Job], list[Event]]] = {
    "cancel": lambda job: [JobCancelled(job)],
    "retry": lambda job: [JobRetried(job, JobStatus.FAILED)],
    "reschedule": lambda job: [],
}


@pytest.fixture
def proxy(client: MongoClient[Any]) -> Iterator[LossyProxy]:
    address = client.address or pytest.fail("no primary")
    with lossy_proxy(address) as proxy:
        yield proxy


@pytest.fixture
def monque(proxy: LossyProxy, db: Database) -> Iterator[Monque]:
    with MongoClient[Any](proxy.uri) as client:
        yield Monque(client[db.name])


async def job_in(monque: Monque, jobs: Collection, status: str) -> ObjectId:
    job = await monque.enqueue("greet", {"n": 1})
    jobs.update_one({"_id": job.id}, {"$set": {"status": status}})
    return job.id


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("action", CALLS)
async def test_change_with_a_lost_message_is_made_once_and_announced(
    monque: Monque, proxy: LossyProxy, jobs: Collection, action: str, loss: Loss
) -> None:
    status, call = CALLS[action]
    job_id = await job_in(monque, jobs, status)
    reported: list[Event] = []
    monque.on(Event, reported.append)
    proxy.lose("findAndModify", loss)
    job = await call(monque, job_id)
    assert len(proxy.lost) == 1
    assert job == await monque.get_job(job_id)
    assert reported == REPORTED[action](job)
    if action != "cancel":
        assert job.internals.rev == 1


@pytest.mark.parametrize("action", CALLS)
async def test_lost_change_of_a_job_changed_since_raises_unknown_outcome(
    monque: Monque, proxy: LossyProxy, jobs: Collection, action: str
) -> None:
    """A worker was faster than the second sending: its failing guard does not prove that the first one failed."""
    status, call = CALLS[action]
    job_id = await job_in(monque, jobs, status)
    reported: list[Event] = []
    monque.on(Event, reported.append)
    claimed = {"status": "processing", "updatedAt": TOMORROW}
    proxy.lose("findAndModify", after=lambda: jobs.update_one({"_id": job_id}, {"$set": claimed}))
    with pytest.raises(MonqueConnectionError) as caught:
        await call(monque, job_id)
    assert caught.value.unknown_outcome
    assert reported == []


@pytest.mark.parametrize("action", CALLS)
async def test_lost_change_is_not_made_twice_in_a_job_that_allows_it_again(
    monque: Monque, proxy: LossyProxy, jobs: Collection, action: str
) -> None:
    """The first sending was applied, and the job has run since, for example. A second one would let it run again."""
    status, call = CALLS[action]
    job_id = await job_in(monque, jobs, status)
    run_since = {"status": status, "updatedAt": TOMORROW, "nextRunAt": TOMORROW + timedelta(days=1)}
    proxy.lose("findAndModify", after=lambda: jobs.update_one({"_id": job_id}, {"$set": run_since}))
    with pytest.raises(MonqueConnectionError) as caught:
        await call(monque, job_id)
    assert caught.value.unknown_outcome
    assert jobs.count_documents({"_id": job_id, **run_since}) == 1


@pytest.mark.parametrize("action", ["retry", "reschedule"])
async def test_lost_change_is_not_made_twice_in_one_millisecond_of_virtual_time(
    monque: Monque, proxy: LossyProxy, jobs: Collection, action: str, autojump_clock: MockClock
) -> None:
    status, call = CALLS[action]
    job_id = await job_in(monque, jobs, status)
    run_since = {"status": status, "nextRunAt": TOMORROW + timedelta(days=1)}
    proxy.lose("findAndModify", after=lambda: jobs.update_one({"_id": job_id}, {"$set": run_since}))
    with pytest.raises(MonqueConnectionError) as caught:
        await call(monque, job_id)
    assert caught.value.unknown_outcome
    document = jobs.find_one({"_id": job_id}) or {}
    assert document["createdAt"] == document["updatedAt"]
    assert document["rev"] == 1


@pytest.mark.parametrize("action", [*CALLS, "delete"])
async def test_unresolvable_change_raises_unknown_outcome(
    monque: Monque, proxy: LossyProxy, jobs: Collection, action: str
) -> None:
    status, call = CALLS.get(action, ("pending", lambda monque, job_id: monque.delete_job(job_id)))
    job_id = await job_in(monque, jobs, status)
    proxy.lose("delete" if action == "delete" else "findAndModify", Loss.REQUEST, times=2)
    with pytest.raises(MonqueConnectionError) as caught:
        await call(monque, job_id)
    assert caught.value.unknown_outcome
    assert len(proxy.lost) == 2
    assert jobs.count_documents({"_id": job_id, "status": status}) == 1


async def test_lost_delete_that_had_not_been_made_is_made(monque: Monque, proxy: LossyProxy, jobs: Collection) -> None:
    job_id = await job_in(monque, jobs, "completed")
    reported: list[Event] = []
    monque.on(Event, reported.append)
    proxy.lose("delete", Loss.REQUEST)
    assert await monque.delete_job(job_id)
    assert reported == [JobDeleted(job_id)]
    assert jobs.count_documents({}) == 0


async def test_lost_delete_of_a_missing_job_raises_unknown_outcome(
    monque: Monque, proxy: LossyProxy, jobs: Collection
) -> None:
    """The client cannot know whether this call deleted it."""
    job_id = await job_in(monque, jobs, "completed")
    proxy.lose("delete")
    with pytest.raises(MonqueConnectionError) as caught:
        await monque.delete_job(job_id)
    assert caught.value.unknown_outcome
    assert jobs.count_documents({}) == 0


async def test_lost_request_to_cancel_a_run_is_made_once(monque: Monque, proxy: LossyProxy, jobs: Collection) -> None:
    job = await monque.enqueue("greet")
    locked = datetime(2026, 1, 1, tzinfo=UTC)
    token = f"us:{round(locked.timestamp() * 1000)}:abc"
    claim = {"status": "processing", "claimedBy": "us", "lockedAt": locked, "claimToken": token}
    jobs.update_one({"_id": job.id}, {"$set": claim})
    request: Callable[[dict[str, Any]], bool] = partial(_sets, "cancelRequestedAt")
    proxy.lose("findAndModify", matches=request)
    asked = await monque.cancel_job(job.id)
    assert asked is not None
    assert len(proxy.lost) == 1
    assert (asked.status, flat(asked).cancel_requested_at) == (JobStatus.PROCESSING, asked.updated_at)


def _sets(field: str, command: dict[str, Any]) -> bool:
    return field in command["update"].get("$set", {})
