"""Callers that wait for the ends of jobs: on trio, on asyncio and in threads, in real and in virtual time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent
from trio.testing import MockClock

from tests.support.standalone import standalone_server
from tests.support.waiting import wait_until
from trio_monque import JobCancelledError, JobDeletedError, JobFailedError, Monque, NewJob, RunningJob, Workers
from trio_monque.client import job_wait_polling
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import BrokenDocumentError, InvalidOptionError, MonqueConnectionError, MonqueError
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener

workers = Workers()


@workers.register("double", store_result=True)
async def double(job: RunningJob[int]) -> int:
    return 2 * job.data


@workers.register("fail", max_attempts=1)
async def fail(job: RunningJob[None]) -> None:
    raise ValueError("on purpose")


@workers.register("sleep", concurrency=100)
async def sleep(job: RunningJob[float]) -> None:
    await trio.sleep(job.data)


@pytest.fixture
def monque(db: Database, monkeypatch: pytest.MonkeyPatch) -> Monque:
    """Whose polls beside the stream are so rare that a wait that needs one never ends."""
    monkeypatch.setattr(job_wait_polling, "POLL_BESIDE_STREAM", 3600.0)
    return Monque(db)


def end(jobs: Collection, job: Job, status: str = "completed", **fields: Any) -> None:
    """As any other program may do it."""
    assert jobs.update_one({"_id": job.id}, {"$set": {"status": status, **fields}}).modified_count == 1


# --- What a wait returns or raises ---


async def test_job_that_has_ended_is_returned_at_once(monque: Monque, jobs: Collection) -> None:
    job = await monque.enqueue("double", 4)
    end(jobs, job, result=8)
    ended = await monque.wait_job(job)
    assert (ended.id, ended.status, ended.result) == (job.id, JobStatus.COMPLETED, 8)
    assert await monque.wait_job(str(job.id)) == await monque.wait_job(job.id) == ended
    assert "monque-looker" not in {thread.name for thread in threading.enumerate()}


async def test_end_that_another_program_writes_is_noticed(monque: Monque, jobs: Collection) -> None:
    job = await monque.enqueue("double", 4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, partial(end_when_watched, jobs, job))
        assert (await monque.wait_job(job)).status is JobStatus.COMPLETED


def end_when_watched(jobs: Collection, job: Job, status: str = "completed") -> None:
    wait_until(lambda: "monque-follower" in {thread.name for thread in threading.enumerate()}, "it is watched")
    end(jobs, job, status)


async def test_failed_and_cancelled_jobs_are_errors_with_the_job(monque: Monque, jobs: Collection) -> None:
    one, other = await monque.enqueue("double", 1), await monque.enqueue("double", 2)
    end(jobs, one, "failed", failReason="ValueError: x")
    await monque.cancel_job(other.id)
    with pytest.raises(JobFailedError, match="failed for good: ValueError: x") as failed:
        await monque.wait_job(one)
    assert failed.value.job.fail_reason == "ValueError: x"
    with pytest.raises(JobCancelledError) as cancelled:
        await monque.wait_job(other)
    assert cancelled.value.job.id == other.id
    both = await monque.wait_jobs([other, one], check=False)
    assert [job.status for job in both] == ["cancelled", "failed"]


async def test_job_that_does_not_exist_is_an_error(monque: Monque) -> None:
    job_id = ObjectId()
    with pytest.raises(JobDeletedError, match=str(job_id)) as deleted:
        await monque.wait_job(job_id)
    assert deleted.value.job_id == str(job_id)
    with pytest.raises(JobDeletedError):
        await monque.wait_jobs([job_id], check=False)


async def test_text_that_is_not_an_id_is_a_job_that_does_not_exist(monque: Monque, jobs: Collection) -> None:
    assert await monque.get_job("nonsense") is None
    with pytest.raises(JobDeletedError, match="^job 'nonsense' does not exist") as deleted:
        await monque.wait_job("nonsense")
    assert deleted.value.job_id == "nonsense"
    with pytest.raises(JobDeletedError):
        await trio.to_thread.run_sync(partial(monque.sync.wait_job, "nonsense"))
    live, ended = await monque.enqueue("double", 1), await monque.enqueue("double", 2)
    end(jobs, ended)
    with pytest.raises(JobDeletedError):
        await monque.wait_jobs([live, "nonsense"])


async def test_job_that_is_deleted_meanwhile_is_an_error(monque: Monque, jobs: Collection) -> None:
    job = await monque.enqueue("double", 4)

    def delete() -> None:
        wait_until(lambda: "monque-follower" in {thread.name for thread in threading.enumerate()}, "it is watched")
        jobs.delete_one({"_id": job.id})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, delete)
        with pytest.raises(JobDeletedError):
            await monque.wait_job(job)


async def test_document_that_is_not_a_job_is_an_error(monque: Monque, jobs: Collection) -> None:
    broken = jobs.insert_one({"name": "double", "status": "completed"}).inserted_id
    with pytest.raises(BrokenDocumentError):
        await monque.wait_job(broken)


async def test_recurring_job_is_refused(monque: Monque) -> None:
    job = await monque.schedule("0 3 * * *", "double", 4, unique_key="k")
    with pytest.raises(InvalidOptionError, match="is recurring: it never ends"):
        await monque.wait_job(job)
    await monque.cancel_job(job.id)
    with pytest.raises(JobCancelledError):
        await monque.wait_job(job)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("x",), {}),
        (([None],), {}),
        (([ObjectId()],), {"until": "some"}),
        (([ObjectId()],), {"timeout": -1}),
        (([],), {"until": "first"}),
    ],
    ids=["a text", "no ids", "until", "timeout", "no first"],
)
async def test_invalid_arguments_are_named(monque: Monque, arguments: Any, options: Any) -> None:
    with pytest.raises(InvalidOptionError):
        await monque.wait_jobs(*arguments, **options)


async def test_wait_ends_with_its_timeout_and_the_job_goes_on(monque: Monque) -> None:
    job = await monque.enqueue("double", 4)
    with pytest.raises(TimeoutError, match=f"^gave up waiting for job {job.id} after 0.01 s; the job continues$"):
        await monque.wait_job(job, timeout=0.01)
    with pytest.raises(TimeoutError, match=str(job.id)):
        await trio.to_thread.run_sync(partial(monque.sync.wait_job, job, timeout=0.01))
    assert (await monque.get_job(job.id)) == job
    assert await monque.wait_jobs([]) == []


async def test_first_of_several(monque: Monque, jobs: Collection) -> None:
    slow, fast = await monque.enqueue("double", 1), await monque.enqueue("double", 2)
    end(jobs, fast)
    assert [job.id for job in await monque.wait_jobs([slow, fast], until="first")] == [fast.id]
    with pytest.raises(TimeoutError, match=f"of 2 jobs after 0.01 s, such as {slow.id}$"):
        await monque.wait_jobs([slow, fast], timeout=0.01)
    end(jobs, slow, "failed")
    assert [job.id for job in await monque.wait_jobs([fast, slow, fast], check=False)] == [fast.id, slow.id]
    with pytest.raises(JobFailedError):
        await monque.wait_jobs([fast, slow])


async def test_error_is_raised_while_others_run_on(monque: Monque, jobs: Collection) -> None:
    live, failed = await monque.enqueue("double", 1), await monque.enqueue("double", 2)
    end(jobs, failed, "failed")
    with pytest.raises(JobFailedError):
        await monque.wait_jobs([live, failed])


@pytest.mark.full
async def test_unreachable_database_is_outlasted_for_as_long_as_the_caller_waits() -> None:
    with MongoClient[Any]("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50") as client:
        monque, job_id = Monque(client["x"], operation_timeout=0.2), ObjectId()
        with pytest.raises(TimeoutError, match=f"gave up waiting for job {job_id} after 0.5 s"):
            await monque.wait_job(job_id, timeout=0.5)
        with pytest.raises(
            TimeoutError, match="after 0.5 s; the job continues; the last query failed: could not"
        ) as error:
            await trio.to_thread.run_sync(partial(monque.sync.wait_job, job_id, timeout=0.5))
        assert isinstance(error.value.__cause__, MonqueConnectionError)
        # Its threads notice the end within a pause. Other tests count such threads.
        ours = {"monque-looker", "monque-follower"}
        have_ended = partial(wait_until, lambda: not ours & {one.name for one in threading.enumerate()}, "they end")
        await trio.to_thread.run_sync(have_ended)


async def test_end_that_was_undone_does_not_count(monque: Monque, jobs: Collection) -> None:
    """The stream reports both writes of a transaction; a look finds only what it left."""
    job = await monque.enqueue("double", 4)

    def end_and_retry_and_end() -> None:
        wait_until(lambda: "monque-follower" in {one.name for one in threading.enumerate()}, "it is watched")
        with jobs.database.client.start_session() as session, session.start_transaction():
            for status in ("failed", "pending"):
                jobs.update_one({"_id": job.id}, {"$set": {"status": status}}, session=session)
        end(jobs, job)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, end_and_retry_and_end)
        assert (await monque.wait_job(job)).status is JobStatus.COMPLETED


@pytest.mark.full  # It starts a server.
def test_without_change_streams_the_client_polls() -> None:
    with standalone_server() as uri, MongoClient[Any](uri, tz_aware=True) as client:
        monque = Monque(client["x"])
        ended, deleted = (monque.sync.enqueue("double", number) for number in range(2))
        with ThreadPoolExecutor(2) as pool:
            waits = [pool.submit(monque.sync.wait_job, job) for job in (ended, deleted)]
            wait_until(lambda: "monque-looker" in {one.name for one in threading.enumerate()}, "they wait")
            end(client["x"]["monque_jobs"], ended)
            client["x"]["monque_jobs"].delete_one({"_id": deleted.id})
            assert waits[0].result().status is JobStatus.COMPLETED
            with pytest.raises(JobDeletedError):
                waits[1].result()


# --- Threads, loops and time ---


@pytest.mark.full
async def test_threads_end_with_the_last_wait_and_begin_again_with_the_next(monque: Monque, jobs: Collection) -> None:
    ours = {"monque-looker", "monque-follower"}
    for _ in range(2):
        job = await monque.enqueue("double", 4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, partial(end_when_watched, jobs, job))
            await monque.wait_job(job)
        have_ended = partial(wait_until, lambda: not ours & {one.name for one in threading.enumerate()}, "they end")
        await trio.to_thread.run_sync(have_ended)


def test_waits_of_threads_and_loops_share_one_stream(db: Database, monque: Monque, jobs: Collection) -> None:
    ids = [monque.sync.enqueue("double", number).id for number in range(30)]

    async def three(first: int) -> list[Any]:
        async with anyio.create_task_group() as group:
            got: list[Any] = []

            async def one(number: int) -> None:
                got.append((await monque.wait_job(ids[number])).id)

            for number in range(first, first + 10):
                group.start_soon(one, number)
        return got

    with ThreadPoolExecutor(12) as pool:
        waits = [pool.submit(monque.sync.wait_job, job_id) for job_id in ids[:10]]
        on_asyncio = pool.submit(asyncio.run, three(10))
        on_trio = pool.submit(trio.run, three, 20)
        wait_until(lambda: "monque-follower" in {one.name for one in threading.enumerate()}, "they wait")
        names = [one.name for one in threading.enumerate()]
        assert names.count("monque-looker") <= 1
        assert names.count("monque-follower") == 1
        jobs.update_many({}, {"$set": {"status": "completed"}})
        assert [one.result().id for one in waits] == ids[:10]
        assert sorted(on_asyncio.result()) == sorted(ids[10:20])
        assert sorted(on_trio.result()) == sorted(ids[20:])


class Commands(CommandListener):
    """Counts what is sent."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    def started(self, event: CommandStartedEvent) -> None:
        self.sent[event.command_name] += 1

    def succeeded(self, event: CommandSucceededEvent) -> None: ...

    def failed(self, event: CommandFailedEvent) -> None: ...


@pytest.mark.full  # It lasts as long as two answers of the stream, in which nothing happens.
async def test_thousand_waits_and_no_end_cost_one_stream_and_no_poll(mongod: EmbeddedServer, db: Database) -> None:
    commands = Commands()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        monque = Monque(client[db.name])
        ids = [job.id for job in await monque.enqueue_many([NewJob("double", number) for number in range(1000)])]
        async with trio.open_nursery() as nursery:
            for job_id in ids:
                nursery.start_soon(monque.wait_job, job_id)

            def is_quiet() -> bool:
                """Nothing is looked at between two answers of the stream. The first looks may take a while."""
                if commands.sent["find"] or commands.sent["aggregate"]:  # The stream is opened by one.
                    commands.sent.clear()
                return commands.sent["getMore"] >= 2

            await trio.to_thread.run_sync(partial(wait_until, is_quiet, "the stream answers twice", 30.0))
            assert commands.sent.keys() == {"getMore"}
            nursery.cancel_scope.cancel()


async def test_handler_results_in_virtual_time(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    began_at = trio.current_time()
    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue(double, 4, delay=3600)
        assert (await scheduler.wait_job(job)).result == 8
        assert 3600 <= trio.current_time() - began_at < 3601
        failed = await scheduler.enqueue(fail)
        with pytest.raises(JobFailedError, match="on purpose"):
            await scheduler.wait_job(failed)


async def test_operators_end_waits_in_virtual_time(monque: Monque, autojump_clock: MockClock) -> None:
    one, other = await monque.enqueue("double", 1), await monque.enqueue("double", 2)

    async def act() -> None:
        await trio.sleep(10)
        await monque.cancel_job(one.id)
        await trio.sleep(10)
        await monque.delete_job(other.id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(act)
        with pytest.raises(JobCancelledError):
            await monque.wait_job(one)
        with pytest.raises(JobDeletedError):
            await monque.wait_job(other)
    assert 20 <= trio.current_time() < 21


async def test_timeout_in_virtual_time(monque: Monque, autojump_clock: MockClock) -> None:
    job = await monque.enqueue("double", 1, delay=10_000)
    with pytest.raises(TimeoutError):
        await monque.wait_job(job, timeout=3600)
    assert 3600 <= trio.current_time() < 3601
    with pytest.raises(MonqueError, match="virtual time"):
        await trio.to_thread.run_sync(partial(monque.sync.wait_job, job))
