"""The meta of jobs: which there may be, how it is stored, and that it stays with its job."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

import bson
import pytest
from bson import Code
from trio.testing import MockClock

from tests.support.node_peer import NodePeer
from trio_monque import Job, Monque, NewJob, Retry, RunningJob, Workers
from trio_monque.errors import InvalidOptionError
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain, now, run_job

META = {"tenant": "acme", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


# --- How it is stored ---


async def test_meta_is_stored_with_every_kind_of_new_job_and_read_again(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    given = dict(META)
    made = [
        await monque.enqueue("one", meta=given),
        await monque.enqueue("keyed", unique_key="k", meta=given),
        await monque.schedule("@daily", "daily", meta=given),
        *await monque.enqueue_many([NewJob("first", meta=given), NewJob("second", unique_key="k", meta=given)]),
        monque.sync_in_loop.enqueue("blocking", meta=given),
        monque.sync_in_loop.schedule("@daily", "blocking", meta=given),
        *monque.sync_in_loop.enqueue_many([NewJob("blocking", meta=given)]),
    ]
    document = await monque.document("other-driver", meta=given)
    jobs.insert_one(document)
    given["tenant"] = "changed after the call"
    assert all(job.meta == META for job in made)
    assert [job.meta for job in await monque.get_jobs()] == [META] * (len(made) + 1)
    assert all(stored["meta"] == META for stored in jobs.find())


def without_meta(db: Database) -> Mapping[str, Any]:
    """The documents of jobs without meta, by their names."""
    monque = Monque(db)
    monque.sync.enqueue("none", 1)
    monque.sync.enqueue("empty", 1, meta={})
    monque.sync.schedule("@daily", "schedule", meta={})
    return {document["name"]: document for document in db["monque_jobs"].find()}


def test_job_without_meta_costs_not_one_byte_more(db: Database) -> None:
    documents = without_meta(db)
    usual = {"_id", "name", "data", "status", "nextRunAt", "failCount", "createdAt", "updatedAt"}
    assert documents["none"].keys() == documents["empty"].keys() == usual
    assert documents["schedule"].keys() == {*usual, "repeatInterval"}
    assert len(bson.encode(documents["empty"])) - len("empty") == len(bson.encode(documents["none"])) - len("none")
    assert "meta" not in vars(Monque(db).sync.get_jobs()[0])


def test_meta_that_is_empty_stays_so(db: Database) -> None:
    without_meta(db)
    empty, _, other = Monque(db).sync.get_jobs()
    assert empty.meta == other.meta == {}
    changes: list[Callable[[Any], object]] = [
        lambda meta: meta.update(a="b"),
        lambda meta: meta.__setitem__("a", "b"),
        lambda meta: meta.setdefault("a", "b"),
        lambda meta: meta.__ior__({"a": "b"}),
    ]
    for change in changes:
        with pytest.raises(TypeError, match="pass meta= when you enqueue"):
            change(empty.meta)
    assert json.dumps([copy.deepcopy(empty).meta, dataclasses.asdict(other)["meta"]]) == "[{}, {}]"


# --- It stays with its job ---


async def test_handler_and_middleware_read_meta_at_every_attempt_and_occurrence(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    seen: list[tuple[str, Mapping[str, str]]] = []

    async def reading(job: RunningJob[Any], run: Any) -> None:
        seen.append((job.name, job.meta))
        await run()

    workers = Workers(middleware=[reading])

    @workers.register("retried", backoff=1)
    async def retried(job: RunningJob[Any]) -> None:
        if job.attempt < 3:
            raise Retry("again")

    @workers.register("recurring")
    def recurring(job: RunningJob[Any]) -> None:
        seen.append((job.name, job.job.meta))

    async with open_test_scheduler(workers) as scheduler:
        one = await scheduler.enqueue("retried", meta=META, delay=60)
        assert await monque.reschedule_job(one.id, now() + timedelta(seconds=5))
        await advance(30)
        await assert_enqueued(scheduler, name="retried", status="completed", meta=META)
        await scheduler.enqueue("retried")
        await drain(scheduler)
    assert seen[:4] == [("retried", META)] * 3 + [("retried", {})]
    async with open_test_scheduler(workers) as scheduler:
        seen.clear()
        await scheduler.schedule("* * * * *", "recurring", meta=META)
        await advance(120)  # Two full minutes, whatever second it is.
    assert [one for one in seen if one[0] == "recurring"] == [("recurring", META)] * 4


async def test_meta_stays_through_cancelling_retrying_and_a_run_of_node(
    monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    job = await monque.enqueue("greet", meta=META)
    await monque.cancel_job(job.id)
    await monque.retry_job(job.id)
    await monque.cancel_jobs(name="greet")
    await monque.retry_jobs(name="greet")
    await advance(60)
    node = NodePeer(jobs)
    claimed = node.claim("greet", now() + timedelta(hours=1))
    assert claimed is not None
    assert node.complete(claimed["_id"])
    stored = await monque.get_job(job.id)
    assert stored is not None
    assert (stored.status, stored.meta) == ("completed", META)


async def test_second_declaration_updates_meta_and_the_same_one_writes_nothing(monque: Monque) -> None:
    async def declare(meta: Mapping[str, str] | None) -> Job:
        return await monque.schedule("@daily", "daily", unique_key="k", on_conflict="update", meta=meta)

    revs = [(await declare(meta)).internals.rev for meta in ({"a": "1"}, {"a": "1"}, {"a": "2"}, {}, None)]
    assert revs == [0, 0, 1, 2, 2]
    (job,) = await monque.get_jobs()
    assert job.meta == {}
    kept = await monque.schedule("@daily", "daily", unique_key="k", meta=META)
    assert kept.meta == {}


# --- What is refused, and what other programs store ---


class Key(StrEnum):
    TENANT = "tenant"


def test_text_of_an_enum_is_stored_as_plain_text(db: Database) -> None:
    job = Monque(db).sync.enqueue("greet", meta={Key.TENANT: Key.TENANT})
    assert [(type(key), type(value)) for key, value in job.meta.items()] == [(str, str)]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("tenant", "must be a mapping of strings to strings"),
        ([("a", "b")], "must be a mapping"),
        ({"n": 1}, "the value of 'n' must be a string, not int: use the data"),
        ({"n": None}, "the value of 'n' must be a string, not NoneType"),
        ({"n": Code("x")}, "the value of 'n' must be a string, not Code"),
        ({"n": "\ud800"}, "the value of 'n' must be"),
        ({1: "a"}, "the key 1 must be a string"),
        ({"": "a"}, "the key '' must be a string, not empty"),
        ({"a.b": "a"}, "the key 'a.b' must be"),
        ({"$set": "a"}, "the key '\\$set' must be"),
        ({"a\0": "a"}, "must be a string"),
        ({"a": "é" * 2048}, "has 4097 bytes, and at most 4096 are allowed"),
        ({str(number): "" for number in range(33)}, "has 33 entries, and at most 32 are allowed"),
    ],
)
def test_meta_that_cannot_be_is_refused_before_anything_is_sent(
    db: Database, jobs: Collection, given: Any, problem: str
) -> None:
    monque = Monque(db)
    calls: list[Callable[[], object]] = [
        lambda: monque.sync.enqueue("greet", meta=given),
        lambda: monque.sync.enqueue_many([NewJob("greet"), NewJob("greet", meta=given)]),
        lambda: monque.sync.schedule("@daily", "greet", meta=given),
    ]
    for call in calls:
        with pytest.raises(InvalidOptionError, match=problem) as caught:
            call()
        assert caught.value.option == "meta"
    assert jobs.count_documents({}) == 0


def test_largest_meta_is_stored(db: Database) -> None:
    meta = {str(number): "x" * (128 - len(str(number))) for number in range(32)}
    job = Monque(db).sync.enqueue("greet", meta=meta)
    stored = Monque(db).sync.get_job(job.id)
    assert stored is not None
    assert stored.meta == meta


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ("text", {}),
        (["a"], {}),
        (None, {}),
        (7, {}),
        ({"a": "b", "n": 1, "deep": {"c": "d"}}, {"a": "b"}),
        (dict.fromkeys(map(str, range(99)), "x"), dict.fromkeys(map(str, range(99)), "x")),
    ],
)
async def test_job_runs_whatever_another_program_has_stored_as_its_meta(
    open_test_scheduler: SchedulerOpener, jobs: Collection, stored: Any, read: Any, autojump_clock: MockClock
) -> None:
    seen: list[Any] = []
    workers = Workers()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        seen.append(job.meta)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("greet", delay=60)
        jobs.update_one({"_id": job.id}, {"$set": {"meta": stored}})
        await advance(61)
        assert (await scheduler.get_jobs())[0].meta == read
    assert seen == [read]


async def test_run_job_gives_the_handler_the_meta() -> None:
    async def handler(job: RunningJob[Any]) -> Mapping[str, str]:
        await job.scheduler.enqueue("next", meta=job.meta)
        return job.meta

    outcome = await run_job(handler, meta=META)
    assert outcome.value == META
    assert outcome.enqueued == (NewJob("next", meta=META),)
