"""A value of every BSON type in the collection beside the jobs: in entries of instances, pauses and locks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import pytest
import trio
from pymongo.errors import BulkWriteError

from tests.support.malformed import ELEMENTS, text, with_field
from trio_monque import Job, JobStatus, Monque, RunningJob, Workers
from trio_monque.store.codec import LENIENT
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener

BEAT: Final = 0.2


@pytest.fixture
def beside(db: Database) -> Collection:
    return db["monque_jobs.instances"]


async def greet(job: RunningJob[Any]) -> None:
    """Does nothing."""


def workers() -> Workers:
    made = Workers()
    made.register("greet", greet)
    return made


def fill(beside: Collection, pattern: Mapping[str, Any]) -> None:
    documents = []
    for kind, element in ELEMENTS.items():
        entries = ({**pattern, "_id": f"{kind}, {field}"} for field in pattern if field != "_id")
        documents += [with_field(one, field, element) for one, field in zip(entries, list(pattern)[1:], strict=True)]
        documents += [
            with_field({**pattern, "_id": 1}, "_id", element),
            with_field({"_id": f"pause:{kind}"}, "pausedAt", element),
            with_field({"_id": f"lock:{kind}"}, "until", element),
        ]
    documents.append(with_field({}, "_id", text(b"pause:\xff")))
    with suppress(BulkWriteError):  # Not every value can be an `_id`.
        beside.with_options(codec_options=LENIENT).insert_many(documents, ordered=False)


@pytest.mark.full
async def test_malformed_entries_and_pauses_are_passed_over(
    open_test_scheduler: SchedulerOpener, monque: Monque, beside: Collection
) -> None:
    """In real time: in virtual time there are no beats."""
    async with open_test_scheduler(workers(), heartbeat_interval=BEAT) as scheduler:
        (pattern,) = beside.find()
        assert next(iter(pattern)) == "_id"
        fill(beside, pattern)
        own = {"_id": pattern["_id"]}
        assert {one.id for one in await monque.instances()} >= {pattern["_id"]}
        assert len(await monque.paused()) == len(ELEMENTS) + 1
        job = await monque.enqueue("greet")
        # Each beat looks at all entries.
        seen: set[Any] = set()
        while len(seen) < 4 or not await is_completed(monque, job):
            entry = beside.find_one(own)
            assert entry is not None
            seen.add(entry["heartbeatAt"])
            await trio.sleep(BEAT / 4)
        assert scheduler.is_healthy(), scheduler.health().reasons


async def is_completed(monque: Monque, job: Job) -> bool:
    stored = await monque.get_job(job.id)
    return stored is not None and stored.status is JobStatus.COMPLETED
