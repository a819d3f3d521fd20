"""Results of declared types: checked and stored when the handler returns, and made again for who waits."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import pydantic
import pytest
import trio
from bson import Decimal128
from trio.testing import MockClock

from trio_monque import JobFailedError, Monque, RunningJob, Worker, Workers
from trio_monque.errors import InvalidOptionError, UnreadablePayloadError
from trio_monque.events import JobCompleted
from trio_monque.options_and_defaults import LARGEST_PAYLOAD
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, drain, run_job

STORED_INVOICE = {"number": 7, "total": Decimal128("12.50")}

workers = Workers()


class Invoice(pydantic.BaseModel):
    number: int
    total: Decimal


@dataclass(frozen=True)
class Size:
    width: int
    height: int


class Mark(msgspec.Struct):
    tags: set[str]


@workers.register("invoice", result=Invoice)
async def invoice(job: RunningJob[int]) -> Invoice:
    return Invoice(number=job.data, total=Decimal("12.50"))


@workers.register("size", result=Size)
def size(job: RunningJob[int]) -> Size:
    return Size(job.data, 2 * job.data)


@workers.register("sizes", result=list[Size])
async def sizes(job: RunningJob[int]) -> list[Size]:
    return [Size(one, one) for one in range(job.data)]


@workers.register("mark", result=Mark)
async def mark(job: RunningJob[int]) -> Mark:
    return Mark({"a"})


@workers.register("maybe", result=Size | None)
async def maybe(job: RunningJob[int]) -> Size | None:
    return Size(1, 1) if job.data else None


@workers.register("wrong", result=Size, max_attempts=1)
async def wrong(job: RunningJob[Any]) -> Any:
    return job.data


@workers.register("large", result=str, max_attempts=1)
async def large(job: RunningJob[int]) -> str:
    return job.data * "x"


@pytest.fixture
def monque(db: Database) -> Monque:
    return Monque(db)


async def test_waiting_gives_the_declared_type(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    completed: list[JobCompleted] = []
    async with open_test_scheduler(workers, listeners={JobCompleted: completed.append}) as scheduler:
        first = await scheduler.enqueue(invoice, 7)
        assert (await scheduler.wait_job(first)).result == Invoice(number=7, total=Decimal("12.50"))
        assert (await scheduler.wait_job(await scheduler.enqueue(size, 3))).result == Size(3, 6)
        assert (await scheduler.wait_job(await scheduler.enqueue(sizes, 2))).result == [Size(0, 0), Size(1, 1)]
        assert (await scheduler.wait_job(await scheduler.enqueue(mark, 0))).result == Mark({"a"})
        assert (await scheduler.wait_job(await scheduler.enqueue(maybe, 1))).result == Size(1, 1)
        assert (await scheduler.wait_job(await scheduler.enqueue(maybe, 0))).result is None
        # Without the worker, the stored value.
        assert (await scheduler.wait_job(first.id)).result == STORED_INVOICE
        by_name = await scheduler.enqueue("size", 4)
        mixed = await scheduler.wait_jobs([first, by_name, str(first.id)])
        assert [one.result for one in mixed] == [Invoice(number=7, total=Decimal("12.50")), {"width": 4, "height": 8}]
        stored = await scheduler.get_job(first.id)
        assert stored is not None
        assert invoice.loaded_result(stored.result).number == 7
        await drain(scheduler)
    assert completed[0].job.result == STORED_INVOICE


def test_waiting_in_a_thread_gives_it_too(monque: Monque, jobs: Collection) -> None:
    job = monque.sync.enqueue(size, 3)
    jobs.update_one({"_id": job.id}, {"$set": {"status": "completed", "result": {"width": 1, "height": 2}}})
    assert monque.sync.wait_job(job).result == Size(1, 2)
    (ended,) = monque.sync.wait_jobs([job])
    assert ended.result.height == 2


async def test_each_way_to_enqueue_one_job_keeps_the_worker(monque: Monque, jobs: Collection) -> None:
    alone = await monque.enqueue(size, 1, unique_key="k")
    kept = await monque.enqueue(size, 2, unique_key="k")
    several = [alone, kept]
    async with trio.open_nursery() as nursery:

        async def enqueue() -> None:
            several.append(await monque.enqueue(size, 3))

        for _ in range(3):
            nursery.start_soon(enqueue)
    jobs.update_many({}, {"$set": {"status": "completed", "result": {"width": 1, "height": 2}}})
    assert {ended.result for ended in await monque.wait_jobs(several)} == {Size(1, 2)}
    assert {ended.result for ended in await monque.wait_jobs(several, until="first")} == {Size(1, 2)}


async def test_result_of_another_type_is_a_failed_attempt(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler(workers) as scheduler:
        for data, reason in (
            ("secret", "worker 'wrong' declares Size as its result, and its handler returned str"),
            (None, "worker 'wrong' declares Size as its result, and its handler returned NoneType"),
        ):
            with pytest.raises(JobFailedError) as caught:
                await scheduler.wait_job(await scheduler.enqueue(wrong, data))
            assert caught.value.job.fail_reason == f"InvalidPayloadError: {reason}"


async def test_result_that_is_too_large_says_what_to_do(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler(workers) as scheduler:
        small = await scheduler.enqueue(large, 5)
        for much in (LARGEST_PAYLOAD, 20 << 20):
            with pytest.raises(JobFailedError, match="store it elsewhere and give a reference to it instead"):
                await scheduler.wait_job(await scheduler.enqueue(large, much))
        assert (await scheduler.wait_job(small)).result == "xxxxx"


async def test_stored_result_that_cannot_be_read_names_the_path(monque: Monque, jobs: Collection) -> None:
    job = await monque.enqueue(size, 3)
    jobs.update_one({"_id": job.id}, {"$set": {"status": "completed", "result": {"width": "two", "height": 2}}})
    for wait in (partial(monque.wait_job, job), partial(monque.wait_jobs, [job], check=False)):
        with pytest.raises(UnreadablePayloadError) as caught:
            await wait()
        assert str(caught.value).startswith(
            "the stored result cannot be read as the result of worker 'size' (Size): result.width: must be "
        )
    assert (await monque.wait_job(job.id)).result["height"] == 2


async def test_worker_is_not_part_of_the_job(monque: Monque) -> None:
    job = await monque.enqueue(size, 3)
    stored = await monque.get_job(job.id)
    assert job == stored
    assert repr(job) == repr(stored)
    assert pickle.loads(pickle.dumps(job)) == copy.deepcopy(job) == copy.copy(job) == stored


async def test_run_job_checks_the_result() -> None:
    outcome = await run_job(size, 3)
    assert outcome.value == Size(3, 6)
    assert outcome.job.result == {"width": 3, "height": 6}
    with pytest.raises(Exception, match="declares Size as its result"):
        await run_job(wrong, 5)


def test_type_that_cannot_be_a_result_is_refused_at_once() -> None:
    with pytest.raises(InvalidOptionError, match="result"):
        Workers().register("bad", result=list["Size"])


def test_worker_without_a_declared_type_reads_what_is_stored() -> None:
    worker: Worker[Any] = Workers().register("plain", lambda job: None, store_result=True)
    assert worker.result_reader is None
    assert worker.loaded_result({"a": 1}) == {"a": 1}
