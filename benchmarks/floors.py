"""Raw pymongo floors: what no scheduler on the same server can pass, each claiming and completing no-op jobs.

F1     one by one: find_one_and_update, then update_one, in ten threads
FB     batches of 100 in turn: ids, guarded update_many with a token, read back, unordered bulk of fenced update_one
P10, P100, P500   batches of that size, overlapping: one thread claims (whole documents, guarded update_many, no
       read-back) while another completes with one fenced update_many a batch

No tasks, scopes, events, heartbeats, receipts or attempts, and the two indexes that they need. Majority writes.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, IndexModel, UpdateOne, WriteConcern
from pymongo.collection import Collection

from .measuring import NAME, Db

Document = dict[str, Any]
Jobs = Collection[Document]

ME: Final = f"floor-{os.getpid()}"
BY_ID: Final = {"_id": 1}
EARLIEST: Final = [("nextRunAt", ASCENDING)]
CLAIM_FIELDS: Final = ("claimedBy", "claimToken", "lockedAt", "lastHeartbeat", "heartbeatInterval", "failReason")
LEAN: Final = (
    IndexModel([("name", ASCENDING), ("nextRunAt", ASCENDING)], partialFilterExpression={"status": "pending"}),
    IndexModel([("claimedBy", ASCENDING), ("lockedAt", ASCENDING)], partialFilterExpression={"status": "processing"}),
)


# For whoever waits for new jobs.
INSERTS: list[Mapping[str, Any]] = [{"$match": {"operationType": "insert"}}, {"$project": {"documentKey": True}}]


def jobs_of(database: Db) -> Jobs:
    return database.get_collection("monque_jobs", write_concern=WriteConcern("majority"))


def now() -> datetime:
    return datetime.now(UTC)


def due(at: datetime, name: str = NAME) -> Document:
    return {"name": name, "status": "pending", "nextRunAt": {"$lte": at}, "claimedBy": None}


def held(at: datetime, token: str) -> Document:
    return {
        "$set": {
            "status": "processing",
            "claimedBy": ME,
            "claimToken": token,
            "lockedAt": at,
            "lastHeartbeat": at,
            "heartbeatInterval": 30_000,
            "updatedAt": at,
        }
    }


def fence(token: str) -> Document:
    return {"status": "processing", "claimedBy": ME, "claimToken": token}


def completed() -> Document:
    return {"$set": {"status": "completed", "updatedAt": now()}, "$unset": dict.fromkeys(CLAIM_FIELDS, "")}


def new_document(number: int, due_at: datetime, created: datetime) -> Document:
    return {
        "name": NAME,
        "data": {"i": number},
        "status": "pending",
        "nextRunAt": due_at,
        "failCount": 0,
        "createdAt": created,
        "updatedAt": created,
    }


def backlog(number: int) -> Sequence[Document]:
    """Jobs that have been due for ten minutes at most, one a millisecond."""
    start = now() - timedelta(seconds=600)
    return [new_document(one, start + timedelta(milliseconds=one), start) for one in range(number)]


def fill(jobs: Jobs, number: int, indexes: Sequence[IndexModel] = LEAN) -> None:
    """Makes the indexes, and inserts a backlog."""
    jobs.create_indexes(list(indexes))
    jobs.insert_many(backlog(number), ordered=False)


def one_by_one(jobs: Jobs) -> None:
    def work() -> None:
        while (found := jobs.find_one_and_update(due(at := now()), held(at, "x"), sort=EARLIEST)) is not None:
            jobs.update_one({"_id": found["_id"], "status": "processing", "claimedBy": ME}, completed())

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_turn(jobs: Jobs, batch: int) -> None:
    while True:
        at, token = now(), str(ObjectId())
        ids = [found["_id"] for found in jobs.find(due(at), BY_ID, sort=EARLIEST, limit=batch, batch_size=batch + 1)]
        if not ids:
            return
        jobs.update_many({"_id": {"$in": ids}, **due(at)}, held(at, token), hint=BY_ID)
        mine = jobs.find({"_id": {"$in": ids}, "claimToken": token}, hint=BY_ID, batch_size=batch + 1)
        update = completed()
        jobs.bulk_write([UpdateOne({"_id": one["_id"], **fence(token)}, update) for one in mine], ordered=False)


def claim(jobs: Jobs, ids: Sequence[Any], name: str = NAME) -> str:
    """Returns the token of all of them."""
    at, token = now(), str(ObjectId())
    claimed = jobs.update_many({"_id": {"$in": ids}, **due(at, name)}, held(at, token), hint=BY_ID).modified_count
    assert claimed == len(ids), "somebody else works on this collection"
    return token


def complete(jobs: Jobs, token: str, ids: Sequence[Any]) -> None:
    ended = jobs.update_many({"_id": {"$in": ids}, **fence(token)}, completed(), hint=BY_ID).modified_count
    assert ended == len(ids), "somebody else works on this collection"


def overlapping(jobs: Jobs, batch: int, name: str = NAME) -> None:
    claimed: queue.Queue[tuple[str, list[Any]] | None] = queue.Queue(maxsize=2)

    def settle() -> None:
        while (taken := claimed.get()) is not None:
            complete(jobs, *taken)

    completer = threading.Thread(target=settle)
    completer.start()
    try:
        while True:
            found = list(jobs.find(due(now(), name), sort=EARLIEST, limit=batch, batch_size=batch + 1))
            if not found:
                break
            ids = [one["_id"] for one in found]
            claimed.put((claim(jobs, ids, name), ids))
    finally:
        claimed.put(None)
        completer.join()


FLOORS: Final[Mapping[str, Callable[[Jobs], None]]] = {
    "F1": one_by_one,
    "FB": partial(in_turn, batch=100),
    "P10": partial(overlapping, batch=10),
    "P100": partial(overlapping, batch=100),
    "P500": partial(overlapping, batch=500),
}


def rate(
    database: Db,
    floor: Callable[[Jobs], None],
    number: int,
    indexes: Sequence[IndexModel] = LEAN,
    *,
    counted: AbstractContextManager[None] | None = None,
) -> float:
    """Jobs a second of one floor on a fresh backlog; what is `counted` is only the work itself."""
    jobs = jobs_of(database)
    fill(jobs, number, indexes)
    with counted or nullcontext():
        begun = time.perf_counter()
        floor(jobs)
        took = time.perf_counter() - begun
    assert jobs.count_documents({"status": "completed"}) == number
    return number / took
