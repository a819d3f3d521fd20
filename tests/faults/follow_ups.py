"""A process that packs, and ships what is packed by follow-ups. Started by `processes.py`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import trio
from pymongo import MongoClient

from tests.support.fast_driver import fast_driver
from trio_monque import Discard, Job, NewJob, Retention, RunningJob, Workers, run_until_signalled

from .records import Recorder


def then(job: Job[Any]) -> NewJob:
    return NewJob("ship", {"parent": job.id, "status": str(job.status)})


async def run(order: dict[str, Any]) -> None:
    recorder = Recorder(Path(order["records"]), order["name"])
    # Not closed: that would wait for a frozen server.
    client: MongoClient[Any] = MongoClient(order["uri"], tz_aware=True)
    db, workers = client[order["database"]], Workers()

    @workers.register("pack", then=then)
    async def pack(job: RunningJob[int]) -> None:
        if job.data % 3 == 0:
            raise Discard("it is broken")

    @workers.register("ship")
    def ship(job: RunningJob[dict[str, Any]]) -> None:
        # By its id: a handler may run twice for one job, and that is not a second follow-up.
        db.shipped.update_one({"_id": job.id}, {"$set": job.data}, upsert=True)

    async with trio.open_nursery() as nursery:
        await nursery.start(
            partial(
                run_until_signalled,
                db,
                workers,
                instance_id=order["name"],
                # An insert that arrives late must not find what it doubles.
                retention=Retention(completed=0, failed=0, interval=1.0),
                **order["options"],
            )
        )
        recorder.write("ready")
    recorder.write("left")


def work(order: dict[str, Any]) -> None:
    with fast_driver():
        trio.run(run, order)
