"""A claimed job costs as much beside a long history as without one: what the server examines is counted, not timed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from tests.support import many_jobs
from tests.support.examined import Examined, examined
from tests.support.many_jobs import BEGIN
from tests.support.store import handle, stamp
from trio_monque.jobs import transitions
from trio_monque.store.driver.types import Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import claiming, due, indexes, settling

DUE = 10_000
NAME = "due"
NOW = BEGIN + timedelta(days=1)
BATCH = 100
CLAIMS = 5


@contextmanager
def queue(client: MongoClient[Any], *, beside: int) -> Iterator[tuple[Database, JobCollection]]:
    """Ten thousand due jobs of one name among many others, also of that name, which ended, run, or are due later."""
    database = client[f"monque_test_{secrets.token_hex(6)}"]
    jobs = database["monque_jobs"]
    if beside:
        many_jobs.insert(jobs, beside)
        one_third = {"name": many_jobs.NAMES[0]}
        jobs.update_many({**one_third, "status": {"$ne": "pending"}}, {"$set": {"name": NAME}})
        jobs.update_many({**one_third, "status": "pending"}, {"$set": {"name": NAME, "nextRunAt": NOW + timedelta(1)}})
    jobs.insert_many(
        [
            {
                "_id": ObjectId(),
                "name": NAME,
                "data": {"number": number},
                "status": "pending",
                "failCount": 0,
                "nextRunAt": BEGIN + timedelta(milliseconds=number),
                "createdAt": BEGIN,
                "updatedAt": BEGIN,
            }
            for number in range(DUE)
        ],
        ordered=False,
    )
    store = handle(database, operation_timeout=20.0)
    indexes.ensure(store)
    yield database, store
    client.drop_database(database)


def one_claim(store: JobCollection, moment: datetime) -> int:
    """Look, claim and settlement of a batch: all that jobs without events cost the server."""
    taken = claiming.take(store, due.survey(store, {NAME: BATCH}, moment).jobs, moment, stamp(at=moment)).jobs
    ends = [transitions.complete(job, moment) for job in taken]
    fates = settling.settle(store, settling.grouped(ends, secrets.token_hex(4)))
    assert set(fates.values()) == {settling.Fate.WRITTEN}
    return len(taken)


def claims(store: JobCollection) -> Callable[[], int]:
    return lambda: sum(one_claim(store, NOW + timedelta(milliseconds=number)) for number in range(CLAIMS))


def of_each(client: MongoClient[Any], *, beside: int) -> Examined:
    with queue(client, beside=beside) as (database, store):
        count, cost = examined(database, claims(store))
    assert count == CLAIMS * BATCH
    assert len(cost.plans) == 3 * CLAIMS
    return cost


@pytest.mark.full
@pytest.mark.parametrize(
    "beside", [90_000, pytest.param(990_000, marks=(pytest.mark.thorough, pytest.mark.timeout(600)))]
)
def test_claimed_job_examines_as_much_beside_a_long_history_as_without(client: MongoClient[Any], beside: int) -> None:
    alone, among_many = of_each(client, beside=0), of_each(client, beside=beside)
    # The look reads each job once, by the index alone in order; the claim and the settlement find it by its id.
    count = CLAIMS * BATCH
    assert alone.documents == among_many.documents == 3 * count
    assert alone.keys <= among_many.keys <= 3 * count + 3 * CLAIMS + CLAIMS
    assert not alone.sorted
    assert not among_many.sorted
    assert {plan.split(" ")[0] for plan in among_many.plans} == {"IXSCAN"}
    assert set(among_many.plans) == {"IXSCAN { name: 1, status: 1, nextRunAt: 1, _id: 1 }", "IXSCAN { _id: 1 }"}
