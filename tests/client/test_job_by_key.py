"""A job that has not ended is found by its unique key."""

from __future__ import annotations

import pytest

from tests.support.examined import examined
from trio_monque import Monque, RunningJob, Workers
from trio_monque.errors import BrokenDocumentError, InvalidJobIdentifierError
from trio_monque.store.driver.types import Collection, Database

workers = Workers()


@workers.register("sync")
async def sync(job: RunningJob[int]) -> None: ...


@pytest.fixture
def monque(db: Database) -> Monque:
    return Monque(db)


async def test_pending_or_processing_job_has_its_key(monque: Monque, jobs: Collection) -> None:
    job = await monque.enqueue(sync, 1, unique_key="user 7")
    assert await monque.get_job_by_key(sync, "user 7") == job
    assert await monque.get_job_by_key("sync", "user 7") == job
    jobs.update_one({"_id": job.id}, {"$set": {"status": "processing"}})
    found = await monque.get_job_by_key(sync, "user 7")
    assert found is not None
    assert found.id == job.id


async def test_other_names_and_ended_jobs_do_not(monque: Monque) -> None:
    job = await monque.enqueue(sync, 1, unique_key="user 7")
    assert await monque.get_job_by_key("elsewhere", "user 7") is None
    assert await monque.get_job_by_key(sync, "user 8") is None
    await monque.cancel_job(job.id)
    assert await monque.get_job_by_key(sync, "user 7") is None
    again = await monque.enqueue(sync, 2, unique_key="user 7")
    assert await monque.get_job_by_key(sync, "user 7") == again


@pytest.mark.parametrize(("name", "key"), [("", "k"), ("a b", "k"), ("sync", ""), ("sync", " "), ("sync", "a\nb")])
async def test_what_cannot_be_a_name_or_a_key_is_refused(monque: Monque, name: str, key: str) -> None:
    with pytest.raises(InvalidJobIdentifierError):
        await monque.get_job_by_key(name, key)


async def test_document_that_is_not_a_job_is_named(monque: Monque, jobs: Collection) -> None:
    jobs.insert_one({"name": "sync", "uniqueKey": "k", "status": "pending"})
    with pytest.raises(BrokenDocumentError):
        await monque.get_job_by_key(sync, "k")


def test_index_of_the_keys_finds_it(monque: Monque, db: Database) -> None:
    for number in range(50):
        monque.sync.enqueue(sync, number, unique_key=str(number))
    found, cost = examined(db, lambda: monque.sync.get_job_by_key(sync, "7"))
    assert found is not None
    assert found.data == 7
    assert (cost.keys, cost.documents) == (1, 1)
