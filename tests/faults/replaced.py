"""A process that runs jobs which are replaced all the time. Started by `processes.py`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import trio
from pymongo import MongoClient

from tests.support.fast_driver import fast_driver
from trio_monque import RunningJob, Workers, run_until_signalled

from .records import Recorder


async def run(order: dict[str, Any]) -> None:
    recorder = Recorder(Path(order["records"]), order["name"])
    # Not closed: that would wait for a frozen server.
    client: MongoClient[Any] = MongoClient(order["uri"], tz_aware=True)
    db, workers = client[order["database"]], Workers()

    @workers.register("build", max_attempts=3)
    async def build(job: RunningJob[int]) -> None:
        run = {"key": job.unique_key, "number": job.data, "job": job.id, "attempt": job.attempt}
        await trio.to_thread.run_sync(db.runs.insert_one, run)
        await trio.sleep(0.02)
        if job.data % 10 == job.attempt % 10:
            raise ValueError("no luck")

    async with trio.open_nursery() as nursery:
        await nursery.start(
            partial(run_until_signalled, db, workers, instance_id=order["name"], **order["options"]),
        )
        recorder.write("ready")
    recorder.write("left")


def work(order: dict[str, Any]) -> None:
    with fast_driver():
        trio.run(run, order)
