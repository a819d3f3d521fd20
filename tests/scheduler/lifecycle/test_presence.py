"""An instance's entry shows that it is live, or that it is dead."""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import anyio
import pytest
import trio
from pymongo import MongoClient
from pymongo import errors as driver
from trio.testing import MockClock

from tests.support.engine_log import block_the_loop_until, hearing
from tests.support.interception import Recorder
from trio_monque import Monque, NewJob, RunningJob, Workers, open_job_nursery, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.engine.loop_blocks import BLOCKED_AFTER
from trio_monque.errors import MonqueConnectionError
from trio_monque.jobs import Instance
from trio_monque.scheduler import presence
from trio_monque.scheduler.instance_entry import InstanceEntry
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, crash, drain, fail_next, now

BEAT = 0.2
"""Seconds between heartbeats of an instance that holds no claim, and so has none to lose."""

BEAT_OF_HOLDERS = 1.5
"""Of one that holds some: a busy machine stands still for less than their lease."""


async def seen(monque: Monque, condition: Callable[[Sequence[Instance]], bool]) -> Sequence[Instance]:
    """The instances, when they are so. In real time."""
    while not condition(found := await monque.instances()):
        await trio.sleep(0.01)
    return found


async def test_entry_exists_from_start_to_end_and_names_its_instance(
    open_test_scheduler: SchedulerOpener, monque: Monque, db: Database, autojump_clock: MockClock
) -> None:
    workers = Workers()
    for name in ("b", "a"):
        workers.register(name, lambda _: None)
    before = now()
    assert await monque.instances() == []
    async with (
        open_test_scheduler(workers, instance_id="one", heartbeat_interval=7.5),
        open_test_scheduler(instance_id="two"),
    ):
        one, two = await monque.instances()
        assert monque.sync_in_loop.instances() == [one, two]
        assert (one.id, one.names, two.id, two.names) == ("one", ("a", "b"), "two", ())
        assert (one.host, one.pid, one.heartbeat_interval) == (socket.gethostname(), os.getpid(), 7.5)
        assert (one.started_at, one.last_heartbeat, one.is_live, one.draining) == (before, before, True, False)
        assert one.incarnation != two.incarnation
        assert re.match(r"\d", one.version)
    assert await monque.instances() == []
    assert db["monque_jobs.instances"].count_documents({}) == 0


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_any_client_on_any_backend_sees_the_fleet(db: Database, backend: str) -> None:
    async def main() -> None:
        monque = Monque(db)
        assert await monque.instances() == []
        assert await monque.pause("a")
        assert await monque.paused() == ["a"]
        assert await monque.resume("a")

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("fails", [False, True])
async def test_plain_handlers_beyond_their_time_limit_are_reported_by_an_early_heartbeat(
    db: Database, monque: Monque, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """It postpones the next one by no more than an interval, and one that fails is tried again within a second."""
    monkeypatch.setattr(presence, "LOOK_FOR_NEWS", 0.01)
    waits, failures = list[float](), [MonqueConnectionError("no primary")] if fails else []
    beat, move_on_at = InstanceEntry.beat, trio.move_on_at

    def failing(entry: InstanceEntry, state: Instance) -> Instance | None:
        if failures and state.overdue_by_name:
            raise failures.pop()
        return beat(entry, state)

    def noted(deadline: float) -> trio.CancelScope:
        waits.append(deadline - trio.current_time())
        return move_on_at(deadline)

    monkeypatch.setattr(InstanceEntry, "beat", failing)
    monkeypatch.setattr(trio, "move_on_at", noted)
    workers, end = Workers(), threading.Event()

    @workers.register("hang", timeout=0.05, max_attempts=1)
    def hang(_: RunningJob[Any]) -> None:
        end.wait()

    try:
        async with open_scheduler(db, workers, heartbeat_interval=300.0) as scheduler:
            for _ in range(2):
                await scheduler.enqueue("hang")
            await seen(monque, lambda found: found[0].overdue_by_name == {"hang": 2})
            end.set()
            await seen(monque, lambda found: found[0].overdue_by_name == {})
    finally:
        end.set()
    of_presence = [one for one in waits if 100 < one < math.inf]
    assert len(of_presence) >= 2
    assert max(of_presence) <= 300.0


@pytest.mark.full
async def test_heartbeats_report_time_limits_full_names_and_what_blocked_the_event_loop(
    db: Database, monque: Monque
) -> None:
    workers = Workers()
    with hearing("the event loop is blocked") as blocked:

        @workers.register("limited", timeout=3600.0, concurrency=1)
        async def limited(_: RunningJob[Any]) -> None:
            await trio.sleep_forever()

        @workers.register("rude")
        async def rude(_: RunningJob[Any]) -> None:
            block_the_loop_until(blocked)

        began = now()
        async with open_scheduler(db, workers, heartbeat_interval=BEAT_OF_HOLDERS, shutdown_timeout=0.0) as scheduler:
            await scheduler.enqueue("limited")
            (entry,) = await seen(monque, lambda found: found[0].held > 0)
            assert (entry.time_limits, entry.full_names) == ({"limited": 3600.0}, ("limited",))
            assert (entry.loop_blocked, entry.last_block) == (0, None)
            await scheduler.enqueue("rude")
            (entry,) = await seen(monque, lambda found: found[0].loop_blocked > 0)
            assert entry.last_block is not None
            assert entry.last_block.name == "rude"
            assert entry.last_block.seconds >= BLOCKED_AFTER
            assert began < entry.last_block.at <= now()


@pytest.mark.full
async def test_heartbeats_report_which_held_jobs_wait_for_children_without_a_slot(db: Database, monque: Monque) -> None:
    workers = Workers()

    @workers.register("parent", concurrency=1)
    async def parent(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", None)

    async with open_scheduler(db, workers, heartbeat_interval=BEAT_OF_HOLDERS, shutdown_timeout=0.0) as scheduler:
        await scheduler.enqueue_many([NewJob("parent"), NewJob("parent")])
        (entry,) = await seen(monque, lambda found: found[0].parked == 2)
        assert (entry.held, entry.slots, entry.is_full_for("parent")) == (2, 1, False)


@pytest.mark.full
async def test_heartbeats_report_held_jobs_and_the_drain(db: Database, monque: Monque) -> None:
    workers, go_on = Workers(), trio.Event()

    async def job(_: RunningJob[Any]) -> None:
        await go_on.wait()

    workers.register("a", job)
    workers.register("b", job)
    async with open_scheduler(db, workers, heartbeat_interval=BEAT_OF_HOLDERS) as scheduler:
        (first,) = await monque.instances()
        assert (first.held, first.held_by_name) == (0, {})
        for name in ("a", "b", "a"):
            await scheduler.enqueue(name)
        (later,) = await seen(monque, lambda found: found[0].held == 3)
        assert later.held_by_name == {"a": 2, "b": 1}
        assert later.last_heartbeat > first.last_heartbeat
        scheduler.register("c", job)
        await seen(monque, lambda found: found[0].names == ("a", "b", "c"))
        scheduler.drain()
        (leaving,) = await seen(monque, lambda found: found[0].draining)
        # Its entry still shows that it lives, and what it holds.
        await seen(monque, lambda found: found[0].last_heartbeat > leaving.last_heartbeat and found[0].held == 3)
        go_on.set()
    assert await monque.instances() == []


async def test_entry_shows_the_drain_at_once_and_not_with_the_next_heartbeat(db: Database, monque: Monque) -> None:
    workers, runs, go_on = Workers(), trio.Event(), trio.Event()

    @workers.register("a")
    async def job(_: RunningJob[Any]) -> None:
        runs.set()
        await go_on.wait()

    async with open_scheduler(db, workers, heartbeat_interval=300.0) as scheduler:
        await scheduler.enqueue("a")
        await runs.wait()
        scheduler.drain()
        (leaving,) = await seen(monque, lambda found: found[0].draining)
        # And then from beat to beat: the drain lasts, and would be reported without end.
        for _ in range(30):
            assert await monque.instances() == [leaving]
        go_on.set()


@pytest.mark.full
async def test_dead_instance_is_shown_as_dead_and_another_removes_its_entry_after_ten_intervals(
    db: Database, monque: Monque
) -> None:
    async with open_scheduler(db, heartbeat_interval=BEAT) as dead:
        await crash(dead)
    (entry,) = await seen(monque, lambda found: not found[0].is_live)
    assert entry.id == dead.id
    began = trio.current_time()  # Before the observation: it may begin while the scheduler starts.
    async with open_scheduler(db, heartbeat_interval=BEAT) as alive:
        (left,) = await seen(monque, lambda found: len(found) == 1 and found[0].is_live)
        assert left.id == alive.id
        # However old its dates were: it was observed for ten of its intervals.
        assert trio.current_time() - began >= 10 * BEAT


@pytest.mark.full
async def test_entry_of_a_live_instance_with_a_wrong_clock_is_not_removed(db: Database, monque: Monque) -> None:
    """How long it must be seen not to change is for tests/test_observations.py."""
    async with open_scheduler(db, heartbeat_interval=BEAT) as observer, open_scheduler(db, heartbeat_interval=6 * BEAT):
        entries = db["monque_jobs.instances"]
        for day in range(1, 8):
            # Its beats come, and all of them lie long ago: a clock that is wrong by days.
            wrong = {"heartbeatAt": now_of(db) - timedelta(days=day)}
            entries.update_one({"_id": {"$ne": observer.id}}, {"$set": wrong})
            before = entries.find_one({"_id": observer.id})
            assert before is not None
            while entries.count_documents({"_id": observer.id, "heartbeatAt": {"$gt": before["heartbeatAt"]}}) == 0:
                await trio.sleep(0.02)
        assert len(await monque.instances()) == 2


def now_of(db: Database) -> Any:
    return db.command("hello")["localTime"]


@pytest.mark.full
async def test_beats_that_fail_harm_no_job_and_come_again(
    db: Database, monque: Monque, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers()
    workers.register("a", lambda _: None)
    async with open_scheduler(db, workers, heartbeat_interval=BEAT_OF_HOLDERS) as scheduler:
        with fail_next(scheduler, driver.AutoReconnect, command="heartbeat", times=5) as fault:
            while not fault.happened:
                await trio.sleep(0.01)
        (stale,) = await monque.instances()
        await seen(monque, lambda found: found[0].last_heartbeat > stale.last_heartbeat)
        await scheduler.enqueue("a")
        while not db["monque_jobs"].count_documents({"status": "completed"}):
            await trio.sleep(0.01)
    # Once, however long it lasts.
    warned = [one for one in caplog.records if one.levelno == logging.WARNING and "heartbeat" in one.message]
    assert len(warned) == 1


async def test_missing_permission_for_the_heartbeat_does_not_crash_the_scheduler(db: Database) -> None:
    """What no try can mend is tried again all the same: it may be given back, and no job needs it."""
    denied = driver.OperationFailure("not authorized", 13)
    async with open_scheduler(db, heartbeat_interval=BEAT) as scheduler:
        with fail_next(scheduler, denied, command="heartbeat", times=3) as fault:
            while not fault.happened:
                await trio.sleep(0.01)
    assert scheduler.report is not None
    assert not scheduler.report.crashed


async def test_entry_that_was_dropped_is_written_anew(db: Database, monque: Monque) -> None:
    async with open_scheduler(db, heartbeat_interval=BEAT) as scheduler:
        db.drop_collection("monque_jobs.instances")
        (entry,) = await seen(monque, lambda found: len(found) == 1)
        assert entry.id == scheduler.id
    assert await monque.instances() == []


async def test_entry_is_removed_after_a_cut_too(
    open_test_scheduler: SchedulerOpener, db: Database, autojump_clock: MockClock
) -> None:
    with pytest.raises(KeyError):
        async with open_test_scheduler():
            raise KeyError("the body")
    with trio.CancelScope() as scope:
        async with open_test_scheduler():
            scope.cancel()
            await trio.sleep_forever()
    assert db["monque_jobs.instances"].count_documents({}) == 0


async def test_shutdown_that_cannot_remove_its_entry_leaves_it_and_raises_no_error(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler() as scheduler:
        fault = fail_next(scheduler, driver.AutoReconnect, command="leave the fleet", times=None)
    assert fault.happened
    (entry,) = await monque.instances()
    assert entry.is_live
    await trio.sleep(61)
    (entry,) = await monque.instances()
    assert not entry.is_live


def test_a_month_of_virtual_time_sends_no_beat_and_asks_for_no_pause(mongod: EmbeddedServer, db: Database) -> None:
    commands = Recorder()

    async def main(db: Database) -> None:
        workers = Workers()
        workers.register("a", lambda _: None)
        async with SchedulerOpener(db)(workers) as scheduler:
            await scheduler.pause("a")
            await scheduler.enqueue("a")
            # Their due time wakes no scheduler: the name is paused.
            await scheduler.enqueue_many([NewJob(name="a", delay=3600 * hour) for hour in range(1, 100)])
            await drain(scheduler)
            before = len(commands.commands)
            await advance(30 * 86400)
            assert len(commands.commands) - before < 10
            (entry,) = await scheduler.instances()
            assert entry.is_live

    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        trio.run(main, client[db.name], clock=MockClock(autojump_threshold=0))


def test_ids_that_would_be_other_documents_are_refused(jobs: Collection) -> None:
    for wrong in ("pause:a", "leaving:us"):
        with pytest.raises(ValueError, match="must not begin with pause: or leaving:"):
            trio.run(_open, jobs.database, wrong)


async def _open(db: Database, instance_id: str) -> None:
    async with open_scheduler(db, instance_id=instance_id):
        pass
