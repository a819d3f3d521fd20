"""A process that moves money between accounts, each time in the transaction of a job. Started by `processes.py`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import trio
from bson import ObjectId
from pymongo import MongoClient

from tests.support.fast_driver import fast_driver
from trio_monque import RunningJob, Workers, run_until_signalled
from trio_monque.store.driver.types import ClientSession, Database

from .records import Recorder

ACCOUNTS: Final = 40
"""So few that transfers meet: then one of them is a conflict."""

NAME: Final = "transfer"


def transfers(random: Random, number: int) -> list[dict[str, Any]]:
    """The data of this number of jobs."""
    return [
        {"from": one, "to": other, "amount": random.randint(1, 100), "is_plain": random.random() < 0.3}
        for one, other in (random.sample(range(ACCOUNTS), 2) for _ in range(number))
    ]


def fill(db: Database) -> None:
    db.accounts.insert_many([{"_id": one, "balance": 0} for one in range(ACCOUNTS)])
    db.effects.insert_one({"_id": "made"})  # Two first writes to a new collection would conflict.
    db.effects.delete_one({"_id": "made"})


def move(db: Database, job_id: ObjectId, data: dict[str, Any], session: ClientSession) -> int:
    """Move the money, and note that: a second note of one job is a doubled effect."""
    db.accounts.update_one({"_id": data["from"]}, {"$inc": {"balance": -data["amount"]}}, session=session)
    db.effects.insert_one({"job": job_id}, session=session)
    db.accounts.update_one({"_id": data["to"]}, {"$inc": {"balance": data["amount"]}}, session=session)
    return int(data["amount"])


async def run(order: dict[str, Any]) -> None:
    recorder = Recorder(Path(order["records"]), order["name"])
    # Not closed: that would wait for a frozen server.
    client: MongoClient[Any] = MongoClient(order["uri"], tz_aware=True)
    db, workers = client[order["database"]], Workers()

    def function(job: RunningJob[Any]) -> partial[int]:
        return partial(move, db, job.id, job.data)

    @workers.register(NAME, store_result=True)
    async def transfer(job: RunningJob[Any]) -> None:
        recorder.write("start", str(job.id), job.attempt)
        await job.transaction(function(job))
        recorder.write("committed", str(job.id), job.attempt)

    @workers.register(f"plain-{NAME}", store_result=True)
    def transfer_in_thread(job: RunningJob[Any]) -> None:
        job.from_thread(job.transaction, function(job))
        recorder.write("committed", str(job.id), job.attempt)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_until_signalled, db, workers, instance_id=order["name"], **order["options"]))
        recorder.write("ready")
    recorder.write("left")


def work(order: dict[str, Any]) -> None:
    with fast_driver():
        trio.run(run, order)
