"""Bulk actions with lost answers: a second sending and a majority read find the outcome, or it is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from tests.support.bulk_calls import AFTER, CALLS, DAY, EVENT, put, statuses
from tests.support.lossy_proxy import Loss, LossyProxy, lossy_proxy
from trio_monque import Monque
from trio_monque.client import bulk
from trio_monque.errors import PartialBulkError
from trio_monque.events import Event
from trio_monque.jobs import BulkResult
from trio_monque.store.driver.types import Collection, Database

FROM = {"cancel": "pending", "retry": "failed", "delete": "completed"}


@pytest.fixture
def proxy(client: MongoClient[Any]) -> Iterator[LossyProxy]:
    with lossy_proxy(client.address or pytest.fail("no primary")) as proxy:
        yield proxy


@pytest.fixture
def monque(proxy: LossyProxy, db: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Monque]:
    monkeypatch.setattr(bulk, "MOST_IN_A_BATCH", 4)
    with MongoClient[Any](proxy.uri) as client:
        monque = Monque(client[db.name])
        monque.sync.delete_jobs(everything=True)  # Its indexes, and its clock.
        yield monque


def write_of(action: str) -> str:
    return "delete" if action == "delete" else "update"


def listening(monque: Monque) -> list[Event]:
    reported: list[Event] = []
    monque.on(Event, reported.append)
    return reported


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("action", ["cancel", "retry"])
async def test_lost_batch_is_made_once_and_counted(
    monque: Monque, proxy: LossyProxy, jobs: Collection, action: str, loss: Loss
) -> None:
    for _ in range(6):
        put(jobs, FROM[action])
    reported = listening(monque)
    proxy.lose("update", loss)
    assert await CALLS[action](monque) == BulkResult(6)
    assert len(proxy.lost) == 1
    assert statuses(jobs) == {AFTER[action]: 6}
    assert reported == [EVENT[action](6, {"greet": 6})]
    if action == "retry":
        assert {one["rev"] for one in jobs.find()} == {1}


async def test_lost_deletion_that_was_never_made_is_made(monque: Monque, proxy: LossyProxy, jobs: Collection) -> None:
    for _ in range(6):
        put(jobs, "completed")
    reported = listening(monque)
    proxy.lose("delete", Loss.REQUEST)
    assert await monque.delete_jobs(status="completed") == BulkResult(6)
    assert reported == [EVENT["delete"](6, {"greet": 6})]


async def test_of_a_lost_deletion_what_is_gone_is_unknown_and_the_rest_is_known(
    monque: Monque, proxy: LossyProxy, jobs: Collection
) -> None:
    for _ in range(6):
        put(jobs, "completed")
    reported = listening(monque)
    proxy.lose("delete", after=lambda: put(jobs, "completed"))
    assert await monque.delete_jobs(status="completed") == BulkResult(2, unknown=4)
    assert reported == [EVENT["delete"](2, {"greet": 2})]
    assert jobs.count_documents({}) == 1  # It came after the beginning.


def ended(jobs: Collection, job_id: ObjectId, status: str) -> Callable[[], object]:
    """It was claimed, and a run of it ended and was settled."""
    change = {"status": status, "receipt": "of a run", "updatedAt": DAY + timedelta(days=9000)}
    return lambda: jobs.update_one({"_id": job_id}, {"$set": change})


@pytest.mark.parametrize("status", ["failed", "completed"])
async def test_job_that_was_retried_and_has_ended_again_is_unknown_and_not_retried_twice(
    monque: Monque, proxy: LossyProxy, jobs: Collection, status: str
) -> None:
    ids = [put(jobs, "failed") for _ in range(3)]
    reported = listening(monque)
    proxy.lose("update", after=ended(jobs, ids[1], status))
    assert await monque.retry_jobs(spread=0) == BulkResult(2, unknown=1)
    assert statuses(jobs) == {"pending": 2, status: 1}
    assert {one["rev"] for one in jobs.find()} == {1}
    assert reported == [EVENT["retry"](2, {"greet": 2})]


@pytest.mark.parametrize("action", ["cancel", "retry"])
async def test_job_that_is_gone_after_a_lost_batch_is_unknown(
    monque: Monque, proxy: LossyProxy, jobs: Collection, action: str
) -> None:
    ids = [put(jobs, FROM[action]) for _ in range(3)]
    proxy.lose("update", after=lambda: jobs.delete_one({"_id": ids[1]}))
    assert await CALLS[action](monque) == BulkResult(2, unknown=1)


async def test_job_that_was_claimed_before_a_lost_batch_is_known_to_be_left_alone(
    monque: Monque, proxy: LossyProxy, jobs: Collection
) -> None:
    ids = [put(jobs, "pending") for _ in range(3)]
    proxy.lose(
        "update",
        Loss.REQUEST,
        after=lambda: jobs.update_one({"_id": ids[1]}, {"$set": {"status": "processing"}}),
    )
    assert await monque.cancel_jobs() == BulkResult(2)
    assert statuses(jobs) == {"cancelled": 2, "processing": 1}


async def test_key_in_use_is_reported_after_a_lost_answer(monque: Monque, proxy: LossyProxy, jobs: Collection) -> None:
    first, second = (put(jobs, "failed", uniqueKey="k") for _ in range(2))
    proxy.lose("update")
    result = await monque.retry_jobs()
    assert (result.count, result.refused, result.unknown) == (1, 1, 0)
    assert [error.job_id for error in result.errors] == [str(second)]
    assert jobs.count_documents({"_id": first, "status": "pending"}) == 1


@pytest.mark.parametrize("action", CALLS)
async def test_unresolvable_batch_counts_as_unknown_and_earlier_batches_are_announced(
    monque: Monque, proxy: LossyProxy, jobs: Collection, action: str
) -> None:
    for _ in range(6):
        put(jobs, FROM[action])
    reported = listening(monque)

    def then_lose(result: BulkResult) -> None:
        proxy.lose(write_of(action), Loss.REQUEST, times=2)

    with pytest.raises(PartialBulkError) as caught:
        await CALLS[action](monque, status=FROM[action], on_progress=then_lose)
    assert (caught.value.count, caught.value.unknown, caught.value.unknown_outcome) == (4, 2, True)
    assert reported == [EVENT[action](4, {"greet": 4})]


@pytest.mark.parametrize("action", CALLS)
async def test_first_batch_that_may_have_been_done_is_counted_as_unknown(
    monque: Monque, proxy: LossyProxy, jobs: Collection, action: str
) -> None:
    for _ in range(3):
        put(jobs, FROM[action])
    reported = listening(monque)
    proxy.lose(write_of(action), Loss.REQUEST, times=2)
    with pytest.raises(PartialBulkError) as caught:
        await CALLS[action](monque, status=FROM[action])
    assert (caught.value.count, caught.value.unknown, caught.value.unknown_outcome) == (0, 3, True)
    assert reported == []
