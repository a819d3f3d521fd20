"""How schedulers on asyncio start and end while something is in the way."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run, runtimes_left
from tests.asyncio_hosts.scenes import (
    LONG,
    QUICK,
    SECONDS_TO_BEAT,
    LongJobs,
    heartbeat_of_instance,
    heartbeat_of_job,
    statuses,
    until,
)
from tests.support.interference import Slow
from tests.support.internals import interference_of, sources_of
from tests.support.thoroughly import in_full
from tests.support.waiting import wait_for_changes
from trio_monque import RunningJob, Scheduler, Workers, open_claims, open_scheduler, run_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.events import JobCompleted
from trio_monque.store.driver.types import Database

pytestmark = [ON_ASYNCIO, pytest.mark.larger_in_full]


@pytest.mark.parametrize("natively", [True, False])
def test_start_at_a_server_that_does_not_answer_is_cancelled_before_an_answer(
    run: Run, unused_port: int, natively: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pymongo.serverSelection")

    async def has_sent_a_command() -> None:
        await until(lambda: "Waiting for suitable server" in caplog.text)

    async def main() -> None:
        with MongoClient[Any]("localhost", unused_port, serverSelectionTimeoutMS=3_600_000) as nothing:

            async def service() -> None:
                async with open_scheduler(nothing["x"], Workers(), start_timeout=3600):
                    pytest.fail("it has begun")

            if natively:
                task = asyncio.create_task(service())
                await has_sent_a_command()
                task.cancel()
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(service)
                    await has_sent_a_command()
                    tasks.cancel_scope.cancel()
            assert not runtimes_left()

    run(main)


@pytest.mark.full
@pytest.mark.parametrize("purpose", ["settle jobs", "renew claims"])
def test_block_is_left_although_the_database_does_not_answer(db: Database, run: Run, purpose: str) -> None:
    long, slow = LongJobs(), Slow(purpose)

    async def main() -> None:
        async def service() -> None:
            options: Any = {"cleanup_timeout": 0.2, "heartbeat_interval": SECONDS_TO_BEAT}
            async with open_scheduler(db, long.workers, **options) as scheduler:
                await scheduler.enqueue("long")
                await until(lambda: long.log)
                interference_of(scheduler).append(slow)
                if purpose == "renew claims":
                    await until(slow.has_begun.is_set)
                schedulers.append(scheduler)
                await asyncio.sleep(LONG)

        schedulers = list[Scheduler]()
        task = asyncio.create_task(service())
        await until(lambda: schedulers)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slow.has_begun.is_set()
        assert not slow.has_ended.is_set()
        assert not runtimes_left()
        (report,) = [one.report for one in schedulers]
        assert report is not None
        assert (purpose == "settle jobs") == bool(report.unfinished)

    try:
        run(main)
    finally:
        slow.may_go_on.set()
    assert long.log[0] == "began"


@pytest.mark.full
def test_run_whose_claim_is_not_renewed_ends_within_its_lease_although_a_save_is_unanswered(
    db: Database, run: Run
) -> None:
    """The shields of its clean-up, and of the call, end before the lease does."""
    workers, log, renewals, saves = Workers(), list[str](), Slow("renew claims"), Slow("report on the job")

    @workers.register("a")
    async def handle(job: RunningJob[Any]) -> None:
        log.append("began")
        try:
            with job.cleanup(LONG):
                await job.save(1)
        finally:
            log.append(str(job.cancel_reason))
            log.append("answered" if saves.may_go_on.is_set() else "unanswered")

    async def main() -> None:
        async with open_scheduler(db, workers, heartbeat_interval=0.3, cleanup_timeout=0.1) as scheduler:
            interference_of(scheduler).extend([renewals, saves])
            await scheduler.enqueue("a")
            await until(lambda: len(log) >= 3)  # The scheduler claims the job again at once.
            renewals.may_go_on.set()
            saves.may_go_on.set()
            scheduler.drain()

    try:
        run(main)
    finally:
        renewals.may_go_on.set()
        saves.may_go_on.set()
    assert log[:3] == ["began", "lost", "unanswered"]


@pytest.mark.full
def test_listener_that_does_not_obey_is_left_behind(db: Database, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    workers, log = Workers(), list[str]()

    @workers.register("a")
    async def handle(job: RunningJob[Any]) -> None:
        pass

    async def main() -> None:
        may_end, has_ended = asyncio.Event(), asyncio.Event()

        async def stubborn(event: JobCompleted) -> None:
            log.append("began")
            with anyio.CancelScope(shield=True):
                await may_end.wait()
            log.append("ended")
            has_ended.set()

        async def strays(event: JobCompleted) -> None:
            log.append("strays")
            raise asyncio.CancelledError

        async with open_scheduler(db, workers, listeners={JobCompleted: [stubborn, strays]}) as scheduler:
            await scheduler.enqueue("a")
            await until(lambda: len(log) == 2)
        assert "ended" not in log
        assert not runtimes_left()
        may_end.set()
        await asyncio.wait_for(has_ended.wait(), 40)

    run(main)
    assert sorted(log) == ["began", "ended", "strays"]
    assert "abandoned listener" in caplog.text


@pytest.mark.full
def test_loop_that_is_stopped_and_run_again_goes_on(db: Database, request: pytest.FixtureRequest, run: Run) -> None:
    workers, log = Workers(), list[str]()

    @workers.register("a")
    async def handle(job: RunningJob[Any]) -> None:
        log.append("began")
        await may_end.wait()
        log.append("ended")

    loop = asyncio.new_event_loop()
    if "uvloop" in request.node.name:
        import uvloop

        loop.close()
        loop = uvloop.new_event_loop()
    try:
        may_end = asyncio.Event()
        stack = AsyncExitStack()

        async def begin() -> Scheduler:
            options: Any = {"heartbeat_interval": SECONDS_TO_BEAT, "poll_interval": 3600, "change_stream": False}
            scheduler = await stack.enter_async_context(open_scheduler(db, workers, **options))
            await scheduler.enqueue("a")
            await until(lambda: log)
            return scheduler

        async def end() -> None:
            may_end.set()
            await until(lambda: statuses(db, "a") == ["completed"] * 2)
            await stack.aclose()

        scheduler = loop.run_until_complete(begin())
        wait_for_changes(lambda: heartbeat_of_job(db, "a"), 4, "the heartbeat of the job")
        assert not scheduler.is_healthy()
        scheduler.sync.enqueue("a")
        wait_for_changes(lambda: heartbeat_of_instance(db), 2, "the heartbeat of the scheduler")
        assert sorted(statuses(db, "a")) == ["pending", "processing"]
        loop.run_until_complete(end())
        assert scheduler.report is not None
        assert scheduler.report.completed == 2
    finally:
        loop.close()


@pytest.mark.full
def test_block_that_is_dropped_gives_its_jobs_back(db: Database, run: Run) -> None:
    long = LongJobs()

    async def enter() -> None:
        opened = open_scheduler(db, long.workers)
        await (await opened.__aenter__()).enqueue("long")
        await until(lambda: long.log)
        del opened

    async def main() -> None:
        await asyncio.create_task(enter())
        gc.collect()
        await until(lambda: statuses(db, "long") == ["pending"])
        await until(lambda: not runtimes_left())

    run(main)
    assert long.log == ["began", "shutdown"]


def test_reason_of_what_the_program_cancels_with_all_its_tasks_is_the_shutdown(db: Database, run: Run) -> None:
    """As `asyncio.run` does at its end: handlers are cancelled before the scheduler, in its thread, knows of it."""
    long, log = LongJobs(), list[str]()

    async def jobs() -> None:
        async with open_scheduler(db, long.workers) as scheduler:
            await scheduler.enqueue("long")
            await asyncio.sleep(LONG)

    async def documents() -> None:
        async with open_claims(db["things"], {"state": "open"}, **QUICK) as claims:
            async with await anext(claims) as claim:
                log.append("began")
                try:
                    await asyncio.sleep(LONG)
                finally:
                    log.append(str(claim.cancel_reason))

    async def main() -> None:
        db["things"].insert_one({"state": "open"})
        tasks = [asyncio.create_task(one()) for one in (jobs, documents)]
        await until(lambda: long.log and log)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait(tasks)

    run(main)
    assert (long.log, log) == (["began", "shutdown"], ["began", "shutdown"])


@pytest.mark.full
def test_crash_of_one_of_two_schedulers_leaves_the_other_alone(
    db: Database, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, short = LongJobs(), Workers()
    short.register("short", _nothing)

    async def crash(*_: object) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        async def first() -> None:
            async with open_scheduler(db, long.workers, heartbeat_interval=SECONDS_TO_BEAT) as scheduler:
                await scheduler.enqueue("long")
                await until(lambda: long.log)
                monkeypatch.setattr(sources_of(scheduler).renewals, "renew", crash)
                await asyncio.sleep(LONG)

        async with open_scheduler(db, short) as scheduler:
            with pytest.raises(RuntimeError, match="a bug"):
                await asyncio.create_task(first())
            await scheduler.enqueue("short")
            await until(lambda: statuses(db, "short") == ["completed"])
            assert scheduler.is_healthy()

    run(main)


async def _nothing(job: RunningJob[Any]) -> None:
    pass


def test_run_scheduler_is_cancelled_natively_and_drained_by_a_thread(db: Database, run: Run) -> None:
    long, workers = LongJobs(), Workers()
    workers.register("short", _nothing)

    async def main() -> None:
        task = asyncio.create_task(run_scheduler(db, long.workers))
        async with open_scheduler(db, Workers()) as client:
            await client.enqueue("long")
            await until(lambda: long.log)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert statuses(db, "long") == ["pending"]
        async with open_scheduler(db, workers) as scheduler:
            thread = threading.Thread(target=scheduler.drain)
            thread.start()
            await asyncio.wait_for(scheduler.wait_drained(), 40)
            thread.join()
            assert scheduler.report is not None

    run(main)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_many_schedulers_leave_no_thread_task_connection_and_reference(
    mongod: EmbeddedServer, db: Database, run: Run
) -> None:
    workers, schedulers = Workers(), list[weakref.ref[Scheduler]]()
    workers.register("a", _nothing)

    async def main() -> None:
        with MongoClient[Any](mongod.uri, tz_aware=True) as client:

            async def once() -> None:
                async with open_scheduler(client[db.name], workers, **QUICK) as scheduler:
                    schedulers.append(weakref.ref(scheduler))
                    await scheduler.enqueue("a")
                    await until(lambda: scheduler.statistics().completed == 1)

            await once()
            tasks = len(asyncio.all_tasks())
            await until(lambda: not [one for one in threading.enumerate() if one.name.startswith("trio_monque")])
            threads, connections = threading.active_count(), _connections(client)
            for _ in range(in_full(5, 100)):
                await once()
            assert len(asyncio.all_tasks()) == tasks
            await until(lambda: threading.active_count() <= threads + 2)
            assert _connections(client) <= connections + 3
            for _ in range(3):
                gc.collect()
                await asyncio.sleep(0)
            assert [one for one in schedulers[:-1] if one() is not None] == []

    run(main)
    assert statuses(db, "a") == ["completed"] * len(schedulers)


def _connections(client: MongoClient[Any]) -> int:
    """Those that the pools of this client hold."""
    return sum(len(server.pool.conns) + server.pool.active_sockets for server in client._topology._servers.values())
