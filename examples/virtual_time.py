"""A test of retries over fourteen hours that takes milliseconds, against a real server.

Why it exists: under trio's MockClock the scheduler's time is the test's, so nothing has to be waited for
or mocked. Run it: `pytest examples/virtual_time.py`.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from pymongo.database import Database
from trio.testing import MockClock

from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod


@pytest.fixture(scope="session")
def client() -> Iterator[MongoClient[Any]]:
    with embedded_mongod() as server, MongoClient[Any](server.uri) as client:
        yield client


@pytest.fixture
def db(client: MongoClient[Any]) -> Iterator[Database[Any]]:
    db = client.get_default_database("virtual_time")
    yield db
    client.drop_database(db.name)


@pytest.mark.trio
async def test_payment_is_tried_again_over_hours(db: Database[Any], autojump_clock: MockClock) -> None:
    workers = Workers()
    hours: list[float] = []
    paid = trio.Event()

    @workers.register("pay")
    async def pay(job: RunningJob[dict[str, int]]) -> None:
        hours.append(trio.current_time() / 3600)
        if job.fail_count < 3:
            raise ConnectionError("the bank is closed")
        paid.set()

    # Waits of 2, 4 and 8 hours; each try begins at the first poll after it is due.
    async with open_scheduler(db, workers, base_retry_interval=3600, retry_jitter=0, poll_interval=360) as scheduler:
        await scheduler.enqueue(pay, {"cents": 100})
        await paid.wait()

    assert hours == pytest.approx([0, 2, 6, 14], abs=0.3)
    assert scheduler.report is not None
    assert (scheduler.report.failed, scheduler.report.completed) == (3, 1)
