"""A test on asyncio of a schedule whose handler uses pymongo's AsyncMongoClient, over a change of the clocks.

Why it exists: it shows how a test opens a client that belongs to asyncio, and how four nights take milliseconds.
Run it: `python -m pytest examples/test_nightly_report.py`. In this checkout, add `-o trio_mode=false`.
"""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.database import Database

from trio_monque import RunningJob, Workers
from trio_monque.embedded import EmbeddedServer
from trio_monque.testing import SchedulerOpener, drain

pytestmark = pytest.mark.anyio

BERLIN = ZoneInfo("Europe/Berlin")

workers = Workers[AsyncDatabase[Any]](loop="asyncio")


@workers.cron("30 2 * * *", "report", timezone="Europe/Berlin")
async def report(job: RunningJob[None, AsyncDatabase[Any]]) -> None:
    await job.resources["reports"].insert_one({"_id": job.occurrence})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def shop(mongod: EmbeddedServer, monque_db: Database[Any]) -> AsyncIterator[AsyncDatabase[Any]]:
    async with AsyncMongoClient[Any](mongod.uri, tz_aware=True) as client:
        yield client[monque_db.name]


async def test_report_is_written_every_night(open_test_scheduler: SchedulerOpener, shop: AsyncDatabase[Any]) -> None:
    begin = datetime(2040, 3, 23, tzinfo=BERLIN)
    async with open_test_scheduler(workers, resources=shop, starts_at=begin) as scheduler:
        assert (await drain(scheduler, until=begin + timedelta(days=4))).completed == 4
    nights = [one["_id"].astimezone(BERLIN) async for one in shop["reports"].find().sort("_id")]
    # On the 25th there is no 02:30: at two, the clocks are set to three.
    assert [(night.day, night.hour, night.minute) for night in nights] == [
        (23, 2, 30),
        (24, 2, 30),
        (25, 3, 0),
        (26, 2, 30),
    ]
