"""Errors of the server that pass only after a repair are outages: no scheduler ends by them."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import trio
from pymongo import MongoClient

from tests.support.fail_points import RefusingServer, refusing_server
from tests.support.internals import loops_of
from tests.support.standalone import restricted_server
from tests.support.thoroughly import one_in
from trio_monque import CancelReason, Health, Monque, Retention, RunningJob, Workers, open_scheduler, run_claims
from trio_monque.claims.claim import Claim
from trio_monque.engine import claimer, settler, waker, watcher
from trio_monque.errors import MonqueConnectionError
from trio_monque.events import ChangeStreamConnected, ChangeStreamFailed, HeartbeatFailed, SchedulerErrorOccurred
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import change_stream

HEARTBEAT: Final = 0.6
OPTIONS: Final[dict[str, Any]] = {
    "heartbeat_interval": HEARTBEAT,
    "operation_timeout": 0.3,
    "poll_interval": 0.05,
    "safety_poll_interval": 0.05,
    "cleanup_timeout": 0.1,
    "shutdown_timeout": 5.0,
}
LOOPS: Final = frozenset({"heartbeat", "reaper", "watcher", "presence", "pruner"})
LOOK_FOR_JOBS: Final = frozenset({"claimer", "waker"})
"""While one of them fails, the other may have nothing to ask for."""

# OutOfDiskSpace, Unauthorized, AtlasError, ReauthenticationRequired, InternalError, and one that no table names.
CODES: Final = (14031, 13, 8000, 391, 1, 54_321)


@pytest.fixture(scope="module")
def server() -> Iterator[RefusingServer]:
    with refusing_server() as one:
        yield one


@pytest.fixture
def db(server: RefusingServer) -> Iterator[Database]:
    with server.client() as client:
        yield client[f"monque_test_{secrets.token_hex(6)}"]


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.01)


def have_met_errors(health: Health) -> set[str]:
    return {loop.name for loop in health.loops if loop.last_error is not None}


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops that wait for seconds after a fault wait for less."""
    for module in (claimer, settler):
        monkeypatch.setattr(module, "LONGEST_RETRY", 0.1)
    monkeypatch.setattr(waker, "RETRY", 0.1)
    monkeypatch.setattr(watcher, "LONGEST_DELAY", 0.2)
    monkeypatch.setattr(watcher, "FIRST_DELAY", 0.1)
    monkeypatch.setattr(change_stream, "LONGEST_AWAIT", 0.2)


@pytest.mark.full
@pytest.mark.usefixtures("short_delays")
@pytest.mark.parametrize("code", one_in(6, CODES))
async def test_every_loop_outlasts_an_outage_and_reports_it_once(
    server: RefusingServer, db: Database, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="trio_monque")
    heard: list[Any] = []
    reasons: list[CancelReason | None] = []
    started, done = trio.Event(), trio.Event()
    workers = Workers()

    @workers.register("long", max_attempts=1)
    async def long(job: RunningJob[Any]) -> None:
        started.set()
        if job.attempt > 1:
            done.set()
            return
        try:
            await trio.sleep_forever()
        finally:
            reasons.append(job.cancel_reason)

    @workers.register("quick")
    async def quick(job: RunningJob[Any]) -> None:
        pass

    listeners = dict.fromkeys(
        (SchedulerErrorOccurred, HeartbeatFailed, ChangeStreamFailed, ChangeStreamConnected), heard.append
    )
    retention = Retention(completed=3600.0, interval=0.1)
    async with open_scheduler(db, workers, listeners=listeners, retention=retention, **OPTIONS) as scheduler:
        await scheduler.enqueue("long")
        await started.wait()
        # Not yet open, the stream would meet the outage at its first opening, and be connected only once.
        await until(lambda: any(isinstance(event, ChangeStreamConnected) for event in heard))
        with server.refusing(code):
            # Each loop has met the error, and has gone on.
            await until(lambda: (met := have_met_errors(scheduler.health())) >= LOOPS and bool(met & LOOK_FOR_JOBS))
            await until(lambda: bool(reasons))  # Nothing renewed the claim: the run has fenced itself.
            await until(lambda: any("has failed for" in reason for reason in scheduler.health().reasons))
            reported = [reason for reason in scheduler.health().reasons if "has failed for" in reason]
            with pytest.raises(MonqueConnectionError, match="could not enqueue") as caught:
                await scheduler.enqueue("quick")
            assert not caught.value.permanent
        await until(scheduler.is_healthy)
        await until(done.is_set)
        await scheduler.enqueue("quick")
        await until(lambda: scheduler.statistics().completed == 2)
        await until(lambda: sum(isinstance(event, ChangeStreamConnected) for event in heard) >= 2)
    assert all("MonqueConnectionError: could not " in reason for reason in reported)
    assert reasons == [CancelReason.LOST]
    assert scheduler.report is not None
    assert (scheduler.report.completed, scheduler.report.crashed) == (2, ())
    by_type = Counter(type(event).__name__ for event in heard)
    assert by_type["ChangeStreamFailed"] == 1
    assert 1 <= by_type["HeartbeatFailed"] <= 2, "of the heartbeat, and of the watcher, which renews when it is up"
    assert 1 <= by_type["SchedulerErrorOccurred"] <= 4, "once for each of claimer, waker, reaper and settler"
    lines = Counter(record.getMessage() for record in caplog.records if "could not" in record.getMessage())
    assert max(lines.values()) <= 2, "claimer and waker may say the same"


@pytest.mark.usefixtures("short_delays")
@pytest.mark.parametrize("code", one_in(3, CODES, first=1))
async def test_end_of_a_run_is_written_when_the_outage_is_over(server: RefusingServer, db: Database, code: int) -> None:
    workers, may_end = Workers(), trio.Event()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        await may_end.wait()

    async with open_scheduler(db, workers, **{**OPTIONS, "heartbeat_interval": 20}) as scheduler:
        job = await scheduler.enqueue("job")
        await until(lambda: scheduler.statistics().running == 1)
        with server.refusing(code, ["update"]):
            may_end.set()
            await until(lambda: "settler" in have_met_errors(scheduler.health()))
        await until(lambda: scheduler.statistics().completed == 1)
        stored = await scheduler.get_job(job.id)
        assert stored is not None
        assert (stored.status, stored.attempts) == ("completed", 1)


@pytest.mark.full
@pytest.mark.usefixtures("short_delays")
@pytest.mark.parametrize("code", one_in(3, CODES, first=2))
async def test_claims_of_documents_outlast_an_outage(server: RefusingServer, db: Database, code: int) -> None:
    documents, done = db["documents"], list[int]()

    async def work(claim: Claim[Any]) -> None:
        await claim.finish({"$set": {"done": True}})
        done.append(claim.document["_id"])

    documents.insert_one({"_id": 1})
    async with trio.open_nursery() as nursery:
        running = await nursery.start(
            lambda task_status: run_claims(
                documents,
                {"done": None},
                work,
                task_status=task_status,
                heartbeat_interval=HEARTBEAT,
                operation_timeout=0.3,
                poll_interval=0.05,
                allow_scan=True,
            )
        )
        await until(lambda: done == [1])
        loops = loops_of(running)
        with MongoClient[Any](server.uri) as another, server.refusing(code):
            another[db.name]["documents"].insert_one({"_id": 2})
            await until(lambda: any(one.is_failing and one.name in LOOK_FOR_JOBS for one in loops))
            await until(lambda: any(one.is_failing and one.name == "reaper" for one in loops))
        await until(lambda: done == [1, 2])
        running.drain()
    assert running.report is not None
    assert (running.report.finished, running.report.crashed) == (2, ())


async def test_command_that_the_server_does_not_understand_ends_the_scheduler(
    server: RefusingServer, db: Database
) -> None:
    """Such an error is a bug of the library: it must not hide behind retries."""
    with pytest.raises(MonqueConnectionError, match="could not") as caught:
        async with open_scheduler(db, Workers(), **OPTIONS) as scheduler:
            with server.refusing(59):  # CommandNotFound
                await scheduler.wait_drained()
    assert caught.value.permanent


@pytest.mark.full
@pytest.mark.parametrize("code", one_in(2, [13, 18, 14031, 54_321]))
async def test_start_waits_until_the_database_can_be_used(
    server: RefusingServer, db: Database, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers()
    workers.cron("0 9 * * *", "daily")(lambda job: None)
    workers.register("job", lambda job: None)
    caplog.set_level(logging.WARNING, logger="trio_monque")
    async with trio.open_nursery() as nursery:
        with server.refusing(code):

            async def run(*, task_status: trio.TaskStatus[Any]) -> None:
                async with open_scheduler(db, workers, **OPTIONS) as scheduler:
                    task_status.started(scheduler)
                    await scheduler.enqueue("job")
                    await until(lambda: scheduler.statistics().completed == 1)

            nursery.start_soon(nursery.start, run)
            await until(lambda: any("could not start:" in line.getMessage() for line in caplog.records))
            await trio.sleep(0.5)  # Several tries, which fail.
    assert len([line for line in caplog.records if "could not start:" in line.getMessage()]) == 1
    assert Monque(db).sync_in_loop.get_queue_stats(name="daily").pending == 1


@pytest.mark.full
async def test_start_that_never_succeeds_fails_after_its_time_and_says_why(
    server: RefusingServer, db: Database, unused_port: int
) -> None:
    with server.refusing(18):
        began = trio.current_time()
        with pytest.raises(MonqueConnectionError, match=r"start_timeout=0\.4 s.*check the user, the password"):
            async with open_scheduler(db, Workers(), start_timeout=0.4, **OPTIONS):
                pass
        assert trio.current_time() - began >= 0.4
        with pytest.raises(MonqueConnectionError, match=r"start_timeout=0\.4 s.*check the user, the password"):
            await run_claims(db["documents"], {}, finish, start_timeout=0.4)
    with MongoClient[Any]("127.0.0.1", unused_port) as nowhere:
        with pytest.raises(MonqueConnectionError, match=r"start_timeout=0\.1 s.*check that the server runs"):
            async with open_scheduler(nowhere["x"], Workers(), **OPTIONS, start_timeout=0.1):
                pass


async def finish(claim: Claim[Any]) -> None:
    await claim.finish()


@pytest.mark.full
async def test_rights_that_are_revoked_and_given_back_are_an_outage() -> None:
    """With a real user of a real server; there is no replica set, so that polls find the jobs."""
    workers = Workers()
    workers.register("job", lambda job: None)
    with restricted_server() as uri:
        worker = MongoClient[Any](uri, tz_aware=True)
        root = MongoClient[Any](uri.split("@")[1].split("/")[0], username="root", password="root")
        with worker, root:
            async with open_scheduler(worker["x"], workers, **OPTIONS) as scheduler:
                await scheduler.enqueue("job")
                await until(lambda: scheduler.statistics().completed == 1)
                root["x"].command("revokeRolesFromUser", "worker", roles=["worker"])
                await until(lambda: any("not authorized" in reason for reason in scheduler.health().reasons))
                with pytest.raises(MonqueConnectionError, match="check the user, the password and the rights"):
                    await scheduler.enqueue("job")
                root["x"].command("grantRolesToUser", "worker", roles=["worker"])
                await until(scheduler.is_healthy)
                await scheduler.enqueue("job")
                await until(lambda: scheduler.statistics().completed == 2)
    assert scheduler.report is not None
    assert scheduler.report.crashed == ()
