"""An instance id is one live instance's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from pymongo import errors as driver
from trio.testing import MockClock

from tests.support.node_peer import NodePeer
from trio_monque import Monque, RunningJob, Workers, open_scheduler
from trio_monque.errors import InstanceCollisionError, MonqueConnectionError
from trio_monque.scheduler.scheduler import Scheduler, run_scheduler
from trio_monque.scheduler.start import SchedulerStart
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, crash, drain, fail_next, quiesce

BEAT = 30.0

BEAT_OF_REAL_TIME = 1.5
"""Seconds. A busy machine stands still for less than the lease that comes with it."""


def waiting(starts: list[int]) -> Workers:
    """A worker whose first try never ends."""
    workers = Workers()

    @workers.register("job")
    async def job(run: RunningJob[Any]) -> None:
        starts.append(run.attempt)
        if run.attempt == 1:
            await trio.sleep_forever()

    return workers


async def test_instance_id_of_a_live_idle_scheduler_is_refused_however_long_it_idles(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler(instance_id="us") as first:
        for pause in (0, 10 * BEAT, 10_000 * BEAT):
            await trio.sleep(pause)
            with pytest.raises(InstanceCollisionError, match="instance_id='us' is in use") as caught:
                async with open_test_scheduler(instance_id="us"):
                    pytest.fail("both run")
            assert caught.value.instance_id == "us"
        (entry,) = await first.instances()
        assert entry.is_live
    async with open_test_scheduler(instance_id="us"):
        pass


@pytest.mark.full
async def test_instance_id_of_a_live_idle_scheduler_is_refused_in_real_time_too(db: Database) -> None:
    async with open_scheduler(db, instance_id="us", heartbeat_interval=BEAT_OF_REAL_TIME) as first:
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        db["monque_jobs.instances"].update_one({"_id": "us"}, {"$set": {"heartbeatAt": long_ago}})
        # By its entry it has been dead since then, unless it sends heartbeats.
        while (await first.instances())[0].last_heartbeat <= long_ago:
            await trio.sleep(0.02)
        with pytest.raises(InstanceCollisionError, match=r"has it, and sent a heartbeat \d\.\d s ago"):
            async with open_scheduler(db, instance_id="us", heartbeat_interval=BEAT_OF_REAL_TIME):
                pytest.fail("both run")


async def test_instance_id_with_a_live_running_job_is_refused_and_the_error_names_both(
    open_test_scheduler: SchedulerOpener, db: Database, autojump_clock: MockClock
) -> None:
    """Also where its entry is gone."""
    async with open_test_scheduler(waiting([]), instance_id="us") as first:
        job = await first.enqueue("job")
        await trio.sleep(20 * BEAT)
        db["monque_jobs.instances"].delete_many({})
        with pytest.raises(InstanceCollisionError, match="'us' is in use") as caught:
            async with open_test_scheduler(instance_id="us"):
                pytest.fail("both run")
        assert str(job.id) in str(caught.value)
        assert "is processing under it" in str(caught.value)
        await crash(first)


async def test_instance_id_under_which_node_works_is_refused(
    open_test_scheduler: SchedulerOpener, jobs: Collection
) -> None:
    node = NodePeer(jobs, instance="us")
    node.enqueue("job")
    node.claim("job")
    with pytest.raises(InstanceCollisionError, match="is processing under it"):
        async with open_test_scheduler(instance_id="us"):
            pytest.fail("both run")


async def test_instance_id_is_accepted_after_a_clean_stop(
    open_test_scheduler: SchedulerOpener, db: Database, autojump_clock: MockClock
) -> None:
    starts: list[int] = []
    workers = waiting(starts)
    async with open_test_scheduler(workers, instance_id="us", shutdown_timeout=0) as first:
        await first.enqueue("job")
        await trio.sleep(1)
    assert db["monque_jobs.instances"].count_documents({}) == 0
    async with open_test_scheduler(workers, instance_id="us") as second:
        await drain(second)
    assert starts == [1, 2]


async def test_instance_id_of_a_dead_scheduler_is_accepted_when_its_heartbeat_is_stale_and_not_before(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    starts: list[int] = []
    workers = waiting(starts)
    async with open_test_scheduler(workers, instance_id="us") as first:
        await first.enqueue("job")
        await quiesce()
        await crash(first)
    await trio.sleep(2 * BEAT)
    with pytest.raises(InstanceCollisionError):
        async with open_test_scheduler(workers, instance_id="us"):
            pytest.fail("it may live")
    await trio.sleep(1)
    async with open_test_scheduler(workers, instance_id="us") as second:
        (entry,) = await second.instances()
        assert entry.is_live
        await trio.sleep(5 * BEAT)
    assert starts == [1, 2]


async def test_foreign_claim_that_the_start_recovers_does_not_block_the_instance_id(
    open_test_scheduler: SchedulerOpener, jobs: Collection
) -> None:
    """What the start recovers has been silent for three intervals; what collides has not been for two."""
    node = NodePeer(jobs, instance="us", heartbeat_interval=1000)
    job_id = node.enqueue("job")
    node.claim("job")
    hour = timedelta(hours=1)
    claimed = jobs.find_one({"_id": job_id})
    assert claimed is not None
    jobs.update_one(
        {"_id": job_id},
        {"$set": {"lockedAt": claimed["lockedAt"] - hour, "lastHeartbeat": claimed["lockedAt"] - timedelta(seconds=5)}},
    )
    workers, done = Workers(), trio.Event()

    @workers.register("job")
    async def job(_: RunningJob[Any]) -> None:
        done.set()

    async with open_test_scheduler(workers, instance_id="us"):
        await done.wait()


async def test_of_many_that_start_with_one_id_at_the_same_moment_exactly_one_runs(db: Database) -> None:
    collisions: list[InstanceCollisionError] = []
    running: list[Scheduler] = []

    all_decided = trio.Event()

    def decided() -> None:
        if len(collisions) + len(running) == 8:
            all_decided.set()

    async def start_one() -> None:
        try:
            scheduler = await nursery.start(_run_named, db)
        except InstanceCollisionError as error:
            collisions.append(error)
        else:
            running.append(scheduler)
        decided()

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(start_one)
        await all_decided.wait()
        assert (len(running), len(collisions)) == (1, 7)
        running[0].drain()


async def _run_named(db: Database, *, task_status: trio.TaskStatus[Scheduler]) -> None:
    await run_scheduler(db, instance_id="us", task_status=task_status)


async def test_start_that_fails_after_its_entry_was_written_leaves_the_id_free(
    open_test_scheduler: SchedulerOpener, db: Database, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.cron("0 * * * *", "hourly")(_nothing)
    # It refuses every job, and so the one of the schedule.
    db.create_collection("monque_jobs", validator={"never": True})
    with pytest.raises(MonqueConnectionError):
        async with open_test_scheduler(workers, instance_id="us", start_timeout=0):
            pytest.fail("it cannot start")
    assert db["monque_jobs.instances"].count_documents({}) == 0


async def _nothing(_: RunningJob[Any]) -> None: ...


async def test_start_whose_answer_was_lost_leaves_the_id_free(
    db: Database, open_test_scheduler: SchedulerOpener, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    get_ready = SchedulerStart.get_ready

    starts: list[SchedulerStart] = []

    async def get_ready_unanswered(self: SchedulerStart) -> None:
        if self not in starts:
            starts.append(self)
            fail_next(self._sync, driver.AutoReconnect("gone"), when="after", command="^enter the fleet$")
        await get_ready(self)

    with monkeypatch.context() as patched:
        patched.setattr(SchedulerStart, "get_ready", get_ready_unanswered)
        with pytest.raises(MonqueConnectionError, match="could not enter the fleet"):
            async with open_test_scheduler(instance_id="us", start_timeout=0):
                pytest.fail("it cannot start")
        async with open_test_scheduler(instance_id="us"):
            pass  # The second try finds the entry of the first one, if that is still there, and takes it for its own.
    async with open_test_scheduler(instance_id="us"):
        pass


@pytest.mark.full
async def test_instance_whose_id_was_taken_finishes_what_it_runs_and_ends_with_the_collision(
    db: Database, jobs: Collection, monque: Monque, caplog: pytest.LogCaptureFixture
) -> None:
    """It was silent for so long that it was taken for dead, a frozen one for example."""
    workers, go_on, ends = Workers(), trio.Event(), list[str]()

    @workers.register("job")
    async def job(_: RunningJob[Any]) -> None:
        await go_on.wait()
        ends.append("whole")

    with pytest.raises(InstanceCollisionError, match="this instance drains") as caught:
        async with open_scheduler(db, workers, instance_id="us", heartbeat_interval=BEAT_OF_REAL_TIME) as first:
            await first.enqueue("job")
            while jobs.count_documents({"status": "processing"}) == 0:
                await trio.sleep(0.01)
            taken = {"$set": {"incarnation": "another", "host": "there", "pid": 9}}
            db["monque_jobs.instances"].update_one({"_id": "us"}, taken)
            while not any("this instance drains" in record.message for record in caplog.records):
                await trio.sleep(0.01)
            go_on.set()
            await trio.sleep_forever()
    assert "process 9 on there" in str(caught.value)
    assert ends == ["whole"]
    assert jobs.count_documents({"status": "completed"}) == 1
    # The other's entry is left alone.
    assert [entry.incarnation for entry in await monque.instances()] == ["another"]


async def test_default_ids_do_not_collide_with_those_of_the_dead(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler() as first:
        await crash(first)
    async with open_test_scheduler() as second:
        assert {entry.id for entry in await second.instances()} == {first.id, second.id}
