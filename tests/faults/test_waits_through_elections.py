"""Five hundred callers wait for jobs while the set loses its primary, in four ways in turn: each answer is true."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import anyio
import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient, UpdateOne
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from tests.support.waiting import wait_until
from trio_monque import Job, JobCancelledError, JobDeletedError, JobFailedError, Monque
from trio_monque.store.driver.types import Database

from .members import ReplicaSet
from .torments import IN_TURN

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

NUMBER: Final = 500
AT_ONCE: Final = 10
ENDS: Final = ("completed", "failed", "cancelled", "deleted")


def insert(db: Database) -> list[ObjectId]:
    now = datetime.now(UTC)
    common: dict[str, Any] = {
        "name": "x",
        "data": None,
        "failCount": 0,
        "nextRunAt": now,
        "createdAt": now,
        "updatedAt": now,
    }
    ids = [ObjectId() for _ in range(NUMBER)]
    Monque(db, operation_timeout=60.0).sync.enqueue("elsewhere")  # Makes the indexes.
    db.get_collection("monque_jobs", write_concern=WriteConcern("majority")).insert_many(
        {"_id": job_id, "status": "pending", **common} for job_id in ids
    )
    return ids


def end_in_turn(uri: str, name: str, ids: Sequence[ObjectId], goes_on: threading.Semaphore, ended: list[int]) -> None:
    """Ends the jobs, a few at a time, each in its own way; again as often as the database does not answer.

    Half of the writes ask for no majority, as another program may do: an election may undo them.
    """
    with MongoClient[dict[str, Any]](uri + "&timeoutMS=2000", tz_aware=True) as client:
        for first in range(0, NUMBER, AT_ONCE):
            goes_on.acquire()
            chosen = list(enumerate(ids))[first : first + AT_ONCE]
            concerns: Iterable[int | str] = itertools.chain([1], itertools.repeat("majority"))
            for concern in concerns:
                jobs = client[name].get_collection("monque_jobs", write_concern=WriteConcern(concern))
                with suppress(PyMongoError):
                    jobs.bulk_write(
                        [
                            UpdateOne({"_id": job_id}, {"$set": {"status": end, "result": number}})
                            for number, job_id in chosen
                            if (end := ENDS[number % 4]) != "deleted"
                        ]
                    )
                    jobs.delete_many({"_id": {"$in": [job_id for number, job_id in chosen if number % 4 == 3]}})
                    if concern == "majority":
                        break
            ended[0] += len(chosen)


async def all_ends(monque: Monque, ids: Sequence[ObjectId]) -> Mapping[ObjectId, Job | None]:
    ends: dict[ObjectId, Job | None] = {}

    async def one(job_id: ObjectId) -> None:
        try:
            ends[job_id] = await monque.wait_job(job_id)
        except (JobFailedError, JobCancelledError) as error:
            ends[job_id] = error.job
        except JobDeletedError:
            ends[job_id] = None

    async with anyio.create_task_group() as group:
        for job_id in ids:
            group.start_soon(one, job_id)
    return ends


def test_each_answer_is_what_the_set_holds_in_the_end(three_members: ReplicaSet, three_db: Database) -> None:
    ids = insert(three_db)
    goes_on, ended = threading.Semaphore(0), [0]

    def more(by: int = NUMBER // 10) -> None:
        enough = min(ended[0] + by, NUMBER)
        goes_on.release(by // AT_ONCE)
        wait_until(lambda: ended[0] >= enough, "jobs end", seconds=90)

    with (
        ThreadPoolExecutor(3) as pool,
        MongoClient[dict[str, Any]](three_members.uri, tz_aware=True) as client,
    ):
        monque = Monque(client[three_db.name])
        on_trio = pool.submit(trio.run, partial(all_ends, monque, ids[::2]))
        on_asyncio = pool.submit(asyncio.run, all_ends(monque, ids[1::2]))
        ending = pool.submit(end_in_turn, three_members.uri, three_db.name, ids, goes_on, ended)
        wait_until(lambda: "monque-follower" in {one.name for one in threading.enumerate()}, "they wait")
        for torment in IN_TURN:
            more()
            goes_on.release(NUMBER // 10 // AT_ONCE)  # In the middle of it.
            torment(three_members, three_db.name, more)
        goes_on.release(NUMBER)
        ending.result(90)
        answers = {**on_trio.result(60), **on_asyncio.result(60)}
    stored = {one["_id"]: one for one in three_db["monque_jobs"].find()}
    for number, job_id in enumerate(ids):
        answer = answers[job_id]
        if answer is None:
            assert job_id not in stored
        else:
            assert (answer.status, answer.result) == (stored[job_id]["status"], number)
            assert answer.status == ENDS[number % 4]
