"""The costs of job nurseries: jobs without them pay nothing, and children cost as much as plain jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import bson
import pytest
import trio
from pymongo import MongoClient
from trio.testing import MockClock

from tests.nursery.flows import Flow, live, statuses
from tests.support.interception import Recorder
from trio_monque import RunningJob, Workers, open_job_nursery
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.fields import FIELD
from trio_monque.testing import SchedulerOpener, advance, crash, quiesce

HELD = "_id status claimedBy lockedAt claimToken"
CLAIM = "status claimedBy lockedAt claimToken lastHeartbeat heartbeatInterval renewedAt updatedAt"
CLAIMED = "claimedBy lockedAt claimToken lastHeartbeat heartbeatInterval renewedAt cancelRequestedAt"

STATEMENTS = {
    # The fields in the condition, and those that are set, removed and added, in the order of sending.
    "insert": ("", "_id name status nextRunAt failCount createdAt updatedAt data", "", ""),
    "schedule": (
        "name uniqueKey status",
        "_id name status nextRunAt failCount repeatInterval uniqueKey createdAt updatedAt data",
        "",
        "",
    ),
    "claim": (
        "_id name status nextRunAt claimedBy attempts failCount rescues rev",
        CLAIM,
        "cancelRequestedAt",
        "attempts",
    ),
    "claim a recurring one": (
        "_id name status nextRunAt claimedBy rescues attempts",
        CLAIM,
        "cancelRequestedAt",
        "attempts",
    ),
    "renew": (f"{HELD} cancelRequestedAt", "lastHeartbeat renewedAt updatedAt", "", ""),
    "complete": (
        f"{HELD} repeatInterval",
        "status updatedAt startedAt finishedAt receipt",
        f"{CLAIMED} failReason rescues saved",
        "",
    ),
    "complete with a result": (
        f"{HELD} repeatInterval",
        "status updatedAt startedAt finishedAt receipt result",
        f"{CLAIMED} failReason rescues saved",
        "",
    ),
    "retry": (
        f"{HELD} cancelRequestedAt",
        "status nextRunAt updatedAt startedAt finishedAt failReason errors receipt",
        f"{CLAIMED} rescues",
        "failCount",
    ),
    "fail": (
        f"{HELD} cancelRequestedAt repeatInterval",
        "status updatedAt startedAt finishedAt failReason errors receipt",
        f"{CLAIMED} rescues",
        "failCount",
    ),
    "go on": (
        f"{HELD} cancelRequestedAt repeatInterval timezone",
        "status nextRunAt failCount updatedAt startedAt finishedAt receipt",
        f"{CLAIMED} rescues saved savedFor occurrence resumesAt failReason",
        "",
    ),
    "rescue": (
        f"{HELD} rescues cancelRequestedAt renewedAt",
        "status nextRunAt updatedAt rescues resumesAt receipt",
        CLAIMED,
        "",
    ),
    "release": (f"{HELD} cancelRequestedAt", "status updatedAt receipt", CLAIMED, ""),
}

STORED = {
    "completed": "_id name status nextRunAt failCount createdAt updatedAt data attempts finishedAt receipt startedAt",
    "failed": "_id name status nextRunAt failCount createdAt updatedAt data attempts errors failReason finishedAt "
    "receipt startedAt",
}


@contextmanager
def recorded(mongod: EmbeddedServer, name: str) -> Iterator[tuple[Database, Recorder]]:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        yield client[name], recorder


def written(recorder: Recorder) -> Iterator[tuple[str, str, str, str]]:
    """Yield the fields of each write to the jobs."""
    for name, command in recorder.commands:
        if command.get(name) != "monque_jobs":
            continue
        if name == "insert":
            yield from (("", " ".join(one), "", "") for one in command["documents"])
        elif name == "update":
            yield from (_fields(one["q"], one["u"]) for one in command["updates"])
        elif name == "findAndModify":
            yield _fields(command["query"], command["update"])


def _fields(asked: Mapping[str, Any], update: Mapping[str, Any]) -> tuple[str, str, str, str]:
    of = {operator: " ".join(fields) for operator, fields in update.items()}
    both = [of[one] for one in ("$max", "$set", "$setOnInsert") if one in of]
    return " ".join(asked), " ".join(both), of.get("$unset", ""), of.get("$inc", "")


@pytest.mark.full
async def test_jobs_without_nurseries_send_and_store_what_they_did_before_there_were_any(
    mongod: EmbeddedServer, monque_db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("plain", max_attempts=2, backoff=10)
    async def plain(job: RunningJob[Any]) -> int:
        if job.data == "fails":
            raise OSError
        if job.data == "sleeps" and job.attempt == 1:
            await trio.sleep_forever()
        if job.data != "at once":
            await trio.sleep(100)
        return 1

    workers.register("stored", plain, store_result=True)
    with recorded(mongod, monque_db.name) as (db, recorder):
        async with SchedulerOpener(db)(workers) as scheduler:
            for name, data in (("plain", "at once"), ("stored", "at once"), ("plain", "fails"), ("plain", "long")):
                await scheduler.enqueue(name, data)
                await advance(200)
            await scheduler.schedule("0 * * * *", "plain", "at once", unique_key="k")
            await advance(3700)
            await scheduler.enqueue("plain", "sleeps")
            await trio.sleep(5)
            await quiesce()
            await crash(scheduler)
        async with SchedulerOpener(db)(workers, shutdown_timeout=1) as scheduler:
            await advance(300)
            await scheduler.enqueue("plain", "cut short")
            await trio.sleep(5)
    assert set(written(recorder)) == set(STATEMENTS.values())
    ended = [(one["status"], " ".join(one)) for one in jobs.find({"data": {"$in": ["at once", "fails", "long"]}})]
    assert {(status, fields) for status, fields in ended if status != "pending"} >= set(STORED.items())
    # Reads, too, do not name a field of a nursery.
    named = repr(recorder.commands)
    for attribute, field in FIELD.items():
        if attribute.startswith(("nursery.", "child.")) and field not in ("scope", "parent", "block", "steps"):
            assert f"'{field}'" not in named, field


@pytest.mark.parametrize("count", [1_100, pytest.param(10_000, marks=pytest.mark.full)])
async def test_parent_is_constant_and_two_statements_cancel_all_of_its_children(
    mongod: EmbeddedServer, monque_db: Database, jobs: Collection, autojump_clock: MockClock, count: int
) -> None:
    sizes: dict[int, int] = {}

    async def body(job: RunningJob[Any]) -> None:
        assert isinstance(job.data, int)
        with pytest.raises(ExceptionGroup):
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", range(job.data), delay=5000)
                (parent,) = jobs.find({"_id": job.id})
                sizes[job.data] = len(bson.encode(parent))
                recorder.commands.clear()
                raise KeyError
        assert live(jobs) == 0

    with recorded(mongod, monque_db.name) as (db, recorder):
        async with SchedulerOpener(db)(Flow(body).workers) as scheduler:
            for number in (10, count):
                await scheduler.wait_job(await scheduler.enqueue("parent", number))
    updates = [command["updates"] for name, command in recorder.commands if name == "update"]
    passes = [one for (one,) in updates if "scopeCancel" in one["u"].get("$set", {})]
    assert len(passes) == 2
    assert statuses(jobs) == {"cancelled": 10 + count}
    assert sizes[10] == sizes[count] < 400


@pytest.mark.full
async def test_ten_thousand_children_cost_as_many_commands_as_plain_jobs(
    mongod: EmbeddedServer, monque_db: Database, jobs: Collection
) -> None:
    """In real time. A claim takes as many children as there are slots, so a busy machine needs hardly more commands."""

    async def body(job: RunningJob[Any]) -> int:
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", range(10_000))
        return sum(child.result for child in children)

    async def child(job: RunningJob[Any]) -> Any:
        return job.data

    flow = Flow(body)
    flow.workers.register("child", child, replace=True, concurrency=200)
    with recorded(mongod, monque_db.name) as (db, recorder):
        async with SchedulerOpener(db)(flow.workers, concurrency=200, lock_timeout=None) as scheduler:
            parent = await scheduler.enqueue("parent")
            assert (await scheduler.wait_job(parent, timeout=300)).result == sum(range(10_000))
    sent = recorder.count(lambda name, _: name not in ("hello", "ismaster", "getMore"))
    print(f"{sent / 10_000:.3f} commands a child")  # noqa: T201
    assert sent < 0.2 * 10_000
