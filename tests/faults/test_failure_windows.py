"""Windows between two writes: a process is killed in one, and others repair what it leaves behind.

`docs/explanation/failure-windows.md` lists all windows; other tests of that page are beside the features.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from bson import ObjectId
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.faults.killed_process import HEARTBEAT, MANY, greeters, keyed, schedules, steppers
from tests.support.programs import ROOT
from tests.support.store import claimed_by_a_dead_one, handle
from trio_monque import Monque, NewJob, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, fail_next

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")


def kill_in(story: str, mongod: EmbeddedServer, db: Database) -> None:
    """Let a process do what the story says, and be killed before its write."""
    program = [sys.executable, "-m", "tests.faults.killed_process", mongod.uri, db.name, story]
    killed = subprocess.run(program, cwd=ROOT, check=False, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr


def statuses(jobs: Collection) -> Counter[str]:
    return Counter(one["status"] for one in jobs.find())


@pytest.mark.full
async def test_schedules_that_a_killed_start_has_not_declared_are_declared_by_the_next_start(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    kill_in("declare", mongod, db)
    (first,) = jobs.find()
    assert first["uniqueKey"] in ("cron:first", "cron:second")
    async with open_scheduler(db, schedules()):
        pass
    assert sorted(one["uniqueKey"] for one in jobs.find()) == ["cron:first", "cron:second"]
    assert jobs.find_one({"_id": first["_id"]}) == first


@pytest.mark.full
def test_list_with_keys_whose_caller_was_killed_is_completed_by_the_same_call(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    kill_in("enqueue_many", mongod, db)
    stored = {one["_id"] for one in jobs.find()}
    assert 0 < len(stored) < MANY
    enqueued = Monque(db).sync.enqueue_many(keyed())
    assert jobs.count_documents({}) == MANY
    assert stored < {one.id for one in enqueued}


@pytest.mark.full
def test_bulk_action_whose_caller_was_killed_is_completed_by_the_same_call(
    mongod: EmbeddedServer, db: Database, jobs: Collection, monque: Monque
) -> None:
    monque.sync.enqueue_many(keyed())
    jobs.update_many({}, {"$set": {"status": "failed"}})
    kill_in("retry_jobs", mongod, db)
    assert statuses(jobs) == {"pending": 1000, "failed": MANY - 1000}
    assert monque.sync.retry_jobs(status="failed").count == MANY - 1000
    assert statuses(jobs) == {"pending": MANY}


@pytest.mark.full
def test_child_that_was_detached_by_a_killed_caller_is_retried_by_the_next(
    mongod: EmbeddedServer, db: Database, jobs: Collection, monque: Monque
) -> None:
    """Its parent was deleted, so the retry makes it a job of its own: with two writes."""
    child = monque.sync.enqueue("child")
    of_parent = {"scope": ObjectId(), "parent": ObjectId(), "block": "0", "scopeRun": 1}
    jobs.update_one({"_id": child.id}, {"$set": {"status": "failed", **of_parent}})
    kill_in("retry_child", mongod, db)
    (left,) = jobs.find()
    assert left["status"] == "failed"
    assert not of_parent.keys() & left.keys()
    assert monque.sync.retry_job(child.id)
    assert statuses(jobs) == {"pending": 1}


@pytest.mark.full
async def test_jobs_of_a_killed_process_are_done_although_its_minute_is_not_written(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    kill_in("minutes", mongod, db)
    (job,) = jobs.find()
    assert (job["status"], job["attempts"]) == ("completed", 1)
    async with open_scheduler(db, greeters()):
        pass
    now = datetime.now(UTC)
    minutes = await Monque(db).get_minutes(since=now - timedelta(hours=1), until=now + timedelta(minutes=2))
    assert minutes == []
    assert jobs.find_one() == job


@pytest.mark.full
async def test_step_whose_process_was_killed_before_its_result_is_stored_is_called_again(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    kill_in("steps", mongod, db)
    calls = db["calls"]
    assert calls.count_documents({}) == 1
    (job,) = jobs.find()
    assert job["status"] == "processing"
    async with open_scheduler(db, steppers(lambda: calls.insert_one({})), heartbeat_interval=HEARTBEAT) as scheduler:
        completed = await scheduler.wait_job(job["_id"])
    assert completed.attempts == 2
    assert calls.count_documents({}) == 2


@pytest.mark.full
async def test_claim_that_a_killed_rescuer_has_not_taken_away_is_rescued_once_by_the_next(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    claimed_by_a_dead_one(handle(db), 1, "greet", HEARTBEAT)
    kill_in("rescue", mongod, db)
    (left,) = jobs.find()
    assert (left["status"], left["attempts"]) == ("processing", 1)
    async with open_scheduler(db, greeters(), heartbeat_interval=HEARTBEAT) as scheduler:
        completed = await scheduler.wait_job(left["_id"])
    assert completed.attempts == 2


async def test_job_that_was_not_set_aside_is_set_aside_by_the_next_claim(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    """The server refuses each claim on one job, and the write that sets it aside is lost."""
    async with open_test_scheduler(greeters()) as scheduler:
        db.command("collMod", jobs.name, validator={"$nor": [{"data": "guarded", "claimedBy": {"$exists": True}}]})
        with fail_next(scheduler, AutoReconnect("lost"), command="^set jobs aside$"):
            guarded, *_ = await scheduler.enqueue_many([NewJob("greet", data) for data in ("guarded", "a", "b")])
            await advance(5)
        assert scheduler.statistics().broken == 1  # It is passed over, and tried again in a minute.
        await scheduler.wait_job(await scheduler.enqueue("greet"))
    assert Counter(one["status"] for one in jobs.find({"_id": {"$ne": guarded.id}})) == {"completed": 3}
