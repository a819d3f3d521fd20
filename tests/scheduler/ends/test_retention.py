"""Ended jobs go when nothing keeps them, and no other job ever does."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient
from pymongo import errors as driver
from trio.testing import MockClock

from tests.support.interception import Interceptor, Recorder
from tests.support.programs import ROOT
from tests.support.thoroughly import one_in
from tests.support.waiting import wait_until
from trio_monque import Monque, Retention, Scheduler, Workers, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.scheduler import LoopHealth
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import retention
from trio_monque.testing import SchedulerOpener, advance, crash, drain, fail_next, now

HOUR, DAY = 3600.0, 86400.0
ENDED = ("completed", "failed", "cancelled")


def put(jobs: Collection, ago: float, status: str = "completed", count: int = 1, **fields: Any) -> list[ObjectId]:
    """Jobs that have been so for that many seconds."""
    moment = now() - timedelta(seconds=ago)
    document = {"name": "greet", "status": status, "nextRunAt": moment, "createdAt": moment, "updatedAt": moment}
    return list(jobs.insert_many([{**document, **fields} for _ in range(count)]).inserted_ids)


def left(jobs: Collection) -> set[ObjectId]:
    return {one["_id"] for one in jobs.find({}, {"_id": True})}


def is_delete(name: str, command: Any) -> bool:
    return name == "delete" and command["delete"] == "monque_jobs"


def is_turn(name: str, command: Any) -> bool:
    """A scheduler asks for the lock."""
    return (
        name == "update"
        and command["updates"][0]["q"].get("_id") == "lock:retention"
        and command["updates"][0]["upsert"]
    )


def is_busy_look(name: str, command: Any) -> bool:
    return name == "find" and command["filter"] == {"_id": "lock:retention"}


@contextmanager
def listened(mongod: EmbeddedServer, db: Database, *listeners: Any) -> Iterator[Database]:
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=listeners) as client:
        yield client[db.name]


def pruner_of(scheduler: Scheduler) -> LoopHealth:
    (found,) = [loop for loop in scheduler.health().loops if loop.name == "pruner"]
    return found


async def test_retention_deletes_old_ended_jobs_at_the_start_and_at_every_interval_and_keeps_recent_ones(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_monque.scheduler")
    wanted = Retention(completed=DAY, failed=2 * DAY, interval=HOUR)
    put(jobs, DAY + 1, count=2)
    put(jobs, 2 * DAY + 1, "failed")
    recent = put(jobs, DAY - HOUR / 2)
    recent += put(jobs, 2 * DAY - HOUR / 2, "failed")
    kept = put(jobs, 400 * DAY, "cancelled") + put(jobs, 0)
    async with open_test_scheduler(retention=wanted) as scheduler:
        await advance(1)
        assert left(jobs) == {*recent, *kept}
        await advance(HOUR - 2)
        assert left(jobs) == {*recent, *kept}
        await advance(2)
        assert left(jobs) == {*kept}
        await advance(DAY)
        assert left(jobs) == {*kept[:1]}
        assert pruner_of(scheduler).healthy
        assert scheduler.is_healthy()
    reported = [one.message for one in caplog.records if "retention deleted" in one.message]
    counts = ("2 completed, 1 failed", "1 completed, 1 failed", "1 completed")
    assert reported == [f"retention deleted jobs: {count}" for count in counts]


def test_retention_is_off_by_default_and_sends_no_command(mongod: EmbeddedServer, db: Database) -> None:
    commands = Recorder()

    async def main(db: Database) -> None:
        async with SchedulerOpener(db)() as scheduler:
            old = [one for status in ENDED for one in put(db["monque_jobs"], 4000 * DAY, status)]
            await advance(60)
            before = len(commands.commands)
            await trio.sleep(30 * DAY)
            assert not commands.commands[before:]
            assert left(db["monque_jobs"]) == {*old}
            assert "pruner" not in {loop.name for loop in scheduler.health().loops}

    with listened(mongod, db, commands) as through:
        trio.run(main, through, clock=MockClock(autojump_threshold=0))


def test_a_month_of_virtual_time_has_one_turn_at_each_interval_and_each_is_few_commands(
    mongod: EmbeddedServer, db: Database
) -> None:
    commands = Recorder()

    async def main(db: Database) -> None:
        wanted = Retention(completed=DAY, failed=DAY, cancelled=DAY, interval=DAY)
        async with SchedulerOpener(db)(retention=wanted, deterministic=True, seed=1):
            await advance(60)
            before = len(commands.commands)
            await trio.sleep(30 * DAY)
            assert commands.count(is_turn) == 31
            # What was sent in one turn and arrives late, means nothing to the lock of a later one.
            tokens = {
                command["updates"][0]["u"]["$set"]["token"]
                for name, command in commands.commands
                if is_turn(name, command)
            }
            assert len(tokens) == 31
            # The lock, a look for each status, and the lock again.
            assert len(commands.commands) - before == 30 * 5

    with listened(mongod, db, commands) as through:
        trio.run(main, through, clock=MockClock(autojump_threshold=0))


@pytest.mark.full
async def test_only_what_has_ended_goes_however_old_the_rest_is(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.cron("0 0 * * *", "daily")
    async def daily(_: Any) -> None:
        pass

    ended = [one for status in ENDED for one in put(jobs, 1, status, repeatInterval="0 0 * * *")]
    old = put(jobs, 4000 * DAY, "pending") + put(jobs, 4000 * DAY, "processing", claimedBy="node", lockedAt=now())
    old += put(jobs, 4000 * DAY, "unheard of")
    wanted = Retention(completed=0, failed=0, cancelled=0, interval=HOUR)
    async with open_test_scheduler(workers, retention=wanted, recover_stale_jobs=False) as scheduler:
        await drain(scheduler, until=now() + timedelta(days=3))
        (goes_on,) = await scheduler.get_jobs(name="daily")
        assert goes_on.attempts >= 3
    assert left(jobs) == {*old, goes_on.id}
    assert not left(jobs) & {*ended}


@pytest.mark.full
@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (Retention(keep_last=2), {"completed": 2, "failed": 2, "cancelled": 2}),
        (Retention(completed=2.5 * DAY, keep_last=1), {"completed": 3, "failed": 5, "cancelled": 5}),
        (Retention(completed=0, failed=10 * DAY, keep_last=4), {"completed": 4, "failed": 5, "cancelled": 5}),
    ],
)
async def test_keep_last_keeps_the_newest_of_each_name_and_status_however_old(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    wanted: Retention,
    kept: dict[str, int],
) -> None:
    for days in range(5):
        for status in ENDED:
            for name in ("a", "b"):
                put(jobs, days * DAY, status, name=name)
    alone = put(jobs, 900 * DAY, name="c")
    async with open_test_scheduler(retention=wanted):
        await advance(1)
        for status in ENDED:
            for name in ("a", "b"):
                found = jobs.find({"name": name, "status": status}, sort=[("updatedAt", -1)])
                ages = [(now() - one["updatedAt"]) // timedelta(days=1) for one in found]
                assert ages == list(range(kept[status]))
    assert {*alone} <= left(jobs)


async def test_retention_keeps_a_job_that_is_retried_between_choice_and_deletion(
    mongod: EmbeddedServer, db: Database, jobs: Collection, monque: Monque, autojump_clock: MockClock
) -> None:
    interceptor = Interceptor()
    retried, ended_anew, put_off, deleted = put(jobs, 9 * DAY, "failed", 4)

    def meanwhile() -> None:
        for one in (retried, ended_anew, put_off):
            assert monque.sync.retry_job(one) is not None
        jobs.update_one({"_id": ended_anew}, {"$set": {"status": "failed"}})

    interceptor.before(is_delete, meanwhile)
    with listened(mongod, db, interceptor) as through:
        async with SchedulerOpener(through)(retention=Retention(failed=DAY)):
            await advance(1)
            assert interceptor.times == 1
            assert left(jobs) == {retried, ended_anew, put_off}
            await advance(3 * HOUR)
    assert left(jobs) == {retried, ended_anew, put_off}
    assert deleted not in left(jobs)


async def test_retention_deletes_in_bounded_batches_and_keeps_jobs_that_are_retried_meanwhile(
    mongod: EmbeddedServer, db: Database, jobs: Collection, monque: Monque, autojump_clock: MockClock
) -> None:
    interceptor, commands = Interceptor(), Recorder()
    ids = put(jobs, 9 * DAY, "failed", 4500)

    def is_third_delete(name: str, command: Any) -> bool:
        return is_delete(name, command) and commands.count(is_delete) == 3

    def meanwhile() -> None:
        # Of the batch that was chosen, and of one that comes later.
        for place in (2999, 4499):
            assert monque.sync.retry_job(ids[place]) is not None

    interceptor.before(is_third_delete, meanwhile)
    with listened(mongod, db, commands, interceptor) as through:
        async with SchedulerOpener(through)(retention=Retention(failed=DAY)):
            await advance(1)
            assert interceptor.times == 1
            assert left(jobs) == {ids[2999], ids[4499]}
    deletes = [command["deletes"][0]["q"] for name, command in commands.commands if is_delete(name, command)]
    assert [len(one["_id"]["$in"]) for one in deletes] == [1000, 1000, 1000, 1000, 499]
    for one in deletes:
        assert one["status"] == "failed"
        assert set(one["updatedAt"]) == {"$lt"}


async def test_two_instances_may_run_retention_at_once(
    mongod: EmbeddedServer, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    """As after a lock that ran out under its holder: another one deletes the same jobs in the open window."""
    interceptor = Interceptor()
    put(jobs, 9 * DAY, count=1500)
    recent = put(jobs, 0)

    def other() -> None:
        db["monque_jobs.instances"].delete_one({"_id": "lock:retention"})
        trio.run(_one_pass, db, clock=MockClock(autojump_threshold=0))

    interceptor.before(is_delete, lambda: _in_a_thread(other))
    with listened(mongod, db, interceptor) as through:
        async with SchedulerOpener(through)(retention=Retention(completed=DAY)) as scheduler:
            await advance(1)
            assert interceptor.times == 1
            assert left(jobs) == {*recent}
            put(jobs, 9 * DAY)
            await advance(HOUR)
            assert left(jobs) == {*recent}
            assert scheduler.is_healthy()


async def _one_pass(db: Database) -> None:
    async with SchedulerOpener(db)(retention=Retention(completed=DAY)):
        await advance(1)


def _in_a_thread(function: Any) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


async def test_one_of_two_instances_runs_retention_at_a_time(
    mongod: EmbeddedServer, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    interceptor, commands = Interceptor(), Recorder()
    put(jobs, 9 * DAY, count=1500)
    holders: list[Any] = []

    def hold() -> None:
        """Until the other one has asked, and found that the lock is held."""
        wait_until(lambda: commands.count(is_busy_look), "the other one asks")
        holders.extend(db["monque_jobs.instances"].find({"_id": "lock:retention"}))

    interceptor.before(is_delete, hold)
    wanted = Retention(completed=DAY, interval=HOUR)
    with listened(mongod, db, commands, interceptor) as through:
        opener = SchedulerOpener(through)
        async with (
            opener(retention=wanted, instance_id="one"),
            opener(retention=wanted, instance_id="two"),
        ):
            await advance(1)
            assert commands.count(is_turn) == 2
            assert commands.count(is_busy_look) == 1
            assert commands.count(is_delete) == 2
            assert not left(jobs)
            assert [one["by"] for one in holders] in (["one"], ["two"])
            # The other one's turn comes when the lock it met would have run out.
            put(jobs, 9 * DAY)
            await advance(59)
            assert left(jobs)
            await advance(2)
            assert not left(jobs)
            assert commands.count(is_busy_look) == 1
    assert db["monque_jobs.instances"].count_documents({}) == 0


@pytest.mark.full
async def test_lock_of_one_that_was_killed_frees_itself(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    old = put(jobs, 9 * DAY)
    wanted = Retention(completed=DAY)
    async with open_test_scheduler(retention=wanted) as killed:
        fail_next(killed, driver.AutoReconnect, command="delete ended jobs|release the lock", times=None)
        await advance(1)
        await crash(killed)
    (lock,) = db["monque_jobs.instances"].find({"_id": "lock:retention"})
    assert lock["by"] == killed.id
    async with open_test_scheduler(retention=wanted):
        while now() < lock["until"]:
            assert left(jobs) == {*old}
            await advance(1)
        await advance(2)
        assert not left(jobs)


KILLED_AT_WORK = """
import os, signal, sys
import trio
from pymongo import MongoClient
from tests.support.interception import Recorder
from trio_monque import Retention, open_scheduler

class Deadly(Recorder):
    def started(self, event):
        super().started(event)
        if self.count(lambda name, command: name == "delete" and command["delete"] == "monque_jobs") == 2:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    client = MongoClient(sys.argv[1], event_listeners=[Deadly()])
    wanted = Retention(completed=86400)
    async with open_scheduler(client[sys.argv[2]], retention=wanted, instance_id="killed"):
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.full
async def test_backlog_of_a_process_that_was_killed_over_it_is_another_ones_within_the_locks_lease(
    mongod: EmbeddedServer,
    open_test_scheduler: SchedulerOpener,
    db: Database,
    jobs: Collection,
    autojump_clock: MockClock,
) -> None:
    put(jobs, 9 * DAY, count=2500)
    program = [sys.executable, "-c", KILLED_AT_WORK, mongod.uri, db.name]
    assert subprocess.run(program, cwd=ROOT, timeout=60, check=False).returncode == -signal.SIGKILL  # noqa: ASYNC221
    assert 500 < len(left(jobs)) <= 1500
    lock = db["monque_jobs.instances"].find_one({"_id": "lock:retention"})
    assert lock is not None
    assert lock["by"] == "killed"
    async with open_test_scheduler(retention=Retention(completed=DAY)):
        await advance(1)
        assert left(jobs)
        # A minute, and what the process took on the real clock after this run's began.
        await advance(61 + 60)
        assert not left(jobs)


async def test_retention_reports_a_fault_once_and_retries_and_harms_no_job(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers = Workers()
    workers.register("work", lambda _: None)
    async with open_test_scheduler(workers, retention=Retention(completed=DAY)) as scheduler:
        await advance(1)
        put(jobs, 9 * DAY)
        with fail_next(scheduler, driver.AutoReconnect("gone"), command="delete ended jobs", times=3):
            await advance(HOUR)
            reported = pruner_of(scheduler)
            assert reported.healthy
            assert reported.last_error is not None
            assert "could not delete ended jobs: gone" in reported.last_error
            await scheduler.enqueue("work")
            await drain(scheduler)
            assert (await scheduler.get_queue_stats(name="work")).completed == 1
            await advance(60)
            assert pruner_of(scheduler).lag > 0
            await advance(60)
        assert jobs.count_documents({"name": "greet"}) == 1
        await advance(61)
        assert jobs.count_documents({"name": "greet"}) == 0
        assert pruner_of(scheduler).lag == 0
        assert scheduler.is_healthy()
    warned = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert warned == ["retention: could not delete ended jobs: gone; retrying in 60 s"]


@pytest.mark.full
@pytest.mark.parametrize("apart", [0.0, HOUR])
async def test_pass_reaches_all_jobs_beside_documents_that_are_not_jobs_and_ends(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    apart: float,
) -> None:
    """They fill whole batches, stay, and would be chosen again: all of one moment, or each of its own."""
    monkeypatch.setattr(retention, "MOST_IN_A_BATCH", 3)
    moments = [now() - timedelta(seconds=9 * DAY - number * apart) for number in range(7)]
    foreign = jobs.insert_many([{"status": "completed", "updatedAt": moment} for moment in moments]).inserted_ids
    # Behind a whole batch of one moment it does not look: nothing says what comes after.
    put(jobs, 8 * DAY if apart else 10 * DAY, count=4)
    async with open_test_scheduler(retention=Retention(completed=DAY)) as scheduler:
        await advance(1)
        assert left(jobs) == {*foreign}
        assert pruner_of(scheduler).healthy


@pytest.mark.full
async def test_lock_that_cannot_be_released_does_not_count_as_a_fault(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The work is done, and the lock frees itself."""
    put(jobs, 9 * DAY)
    async with open_test_scheduler() as scheduler:
        pass
    async with open_test_scheduler(retention=Retention(completed=DAY)) as scheduler:
        caplog.clear()  # That it has no workers is said at the start.
        with fail_next(scheduler, driver.AutoReconnect("gone"), command="release the lock") as fault:
            await advance(1)
        assert fault.happened
        assert not left(jobs)
        assert pruner_of(scheduler).last_error is None
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_missing_permission_for_the_lock_does_not_crash_the_scheduler(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    put(jobs, 9 * DAY)
    async with open_test_scheduler() as scheduler:
        pass
    denied = driver.OperationFailure("not authorized", 13)
    async with open_test_scheduler(retention=Retention(completed=DAY)) as scheduler:
        with fail_next(scheduler, denied, command="take the lock"):
            await advance(1)
        assert left(jobs)
        await advance(60)
        assert not left(jobs)
    assert scheduler.report is not None
    assert not scheduler.report.crashed


@pytest.mark.parametrize("how", one_in(2, ["drain", "cut"]))
async def test_leaving_does_not_wait_for_a_deletion_that_takes_long(
    mongod: EmbeddedServer, db: Database, jobs: Collection, how: str
) -> None:
    """In real time: the server takes as long as it likes, and the backlog is far from done."""
    interceptor, commands = Interceptor(), Recorder()
    reached, go_on = threading.Event(), threading.Event()
    ended = now() - timedelta(days=9)
    put_now = jobs.insert_many(
        [
            {"name": "greet", "status": "completed", **dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), ended)}
            for _ in range(3000)
        ]
    )

    def hold() -> None:
        reached.set()
        go_on.wait()

    interceptor.before(is_delete, hold)
    try:
        with listened(mongod, db, commands, interceptor) as through:
            with trio.CancelScope() as scope:
                async with open_scheduler(through, retention=Retention(completed=DAY), shutdown_timeout=3600.0):
                    while not reached.is_set():
                        await trio.sleep(0.01)
                    if how == "cut":
                        scope.cancel()
            # Here it has waited neither for the deletion, which goes on below, nor for its own hour.
            locks = list(db["monque_jobs.instances"].find())
            # A drain has time to give it back. After a cut it frees itself.
            assert [one["_id"] for one in locks] == ([] if how == "drain" else ["lock:retention"])
            go_on.set()
            while jobs.count_documents({}) > 2000:
                await trio.sleep(0.01)
            # What was under way is done, and no batch comes after it.
            assert commands.count(is_delete) == 1
            assert len(left(jobs)) == len(put_now.inserted_ids) - retention.MOST_IN_A_BATCH
    finally:
        go_on.set()


@pytest.mark.full
async def test_nothing_is_deleted_once_the_drain_has_begun_however_long_it_takes(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers, ended = Workers(), trio.Event()

    @workers.register("long")
    async def long(_: Any) -> None:
        await trio.sleep(10 * HOUR)
        ended.set()

    wanted = Retention(completed=DAY)
    options: Any = {"shutdown_timeout": DAY, "lock_timeout": None, "heartbeat_interval": 300}
    async with open_test_scheduler(workers, retention=wanted, **options) as scheduler:
        await scheduler.enqueue("long")
        await advance(1)
        old = put(jobs, 9 * DAY)
        scheduler.drain()
        await advance(5 * HOUR)
        assert not ended.is_set()
        assert {*old} <= left(jobs)
    assert ended.is_set()
    assert {*old} <= left(jobs)


@pytest.mark.full
@pytest.mark.parametrize(
    ("wanted", "names", "each", "kept"),
    [(Retention(completed=DAY), "a", 5000, 1000), (Retention(keep_last=1), "abcdef", 2, 8)],
    ids=["one large batch after the other", "many names with few jobs each"],
)
async def test_long_pass_keeps_its_lock_and_ends_when_it_has_lost_it(
    mongod: EmbeddedServer,
    db: Database,
    jobs: Collection,
    autojump_clock: MockClock,
    wanted: Retention,
    names: str,
    each: int,
    kept: int,
) -> None:
    for name in names:
        put(jobs, 9 * DAY, name=name, count=each)
    locks = db["monque_jobs.instances"]
    seen: list[Any] = []

    class Slow(Recorder):
        """Each deletion takes half a minute."""

        def started(self, event: Any) -> None:
            if is_delete(event.command_name, event.command):
                seen.append(locks.find_one({"_id": "lock:retention"}))
                if len(seen) == 4:
                    locks.update_one({"_id": "lock:retention"}, {"$set": {"token": "somebody else's"}})
                trio.from_thread.run_sync(autojump_clock.jump, 30.0, trio_token=token)

    token = trio.lowlevel.current_trio_token()
    with listened(mongod, db, Slow()) as through:
        async with SchedulerOpener(through)(retention=wanted):
            await advance(300)
            assert len(seen) == 4
            untils = [one["until"] for one in seen]
            beats = [late - early for early, late in pairwise(untils)]
            assert beats == [timedelta(seconds=30)] * 3
            assert len(left(jobs)) == kept
            assert locks.count_documents({"_id": "lock:retention", "token": "somebody else's"}) == 1
