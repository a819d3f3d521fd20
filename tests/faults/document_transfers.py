"""A process that moves money between accounts, each time in the transaction of a claim. Started by `processes.py`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from pymongo import MongoClient

from tests.support.fast_driver import fast_driver
from trio_monque import Claim, run_claims

from .records import Recorder
from .transfers import move

COLLECTION: Final = "orders"
WANTED: Final = {"state": "new"}


async def run(order: dict[str, Any]) -> None:
    recorder = Recorder(Path(order["records"]), order["name"])
    # Not closed: that would wait for a frozen server.
    client: MongoClient[Any] = MongoClient(order["uri"], tz_aware=True)
    db = client[order["database"]]

    async def transfer(claim: Claim[Any]) -> None:
        recorder.write("start", str(claim.id), claim.attempt)
        made = {"$set": {"state": "done"}, "$inc": {"results": 1}}
        await claim.transaction(partial(move, db, claim.id, claim.document), made)

    async with trio.open_nursery() as nursery:
        options = {"wait": False, "instance_id": order["name"], **order["options"]}
        await nursery.start(partial(run_claims, db[COLLECTION], WANTED, transfer, **options))
        recorder.write("ready")
    recorder.write("left")


def work(order: dict[str, Any]) -> None:
    with fast_driver():
        trio.run(run, order)
