"""schedule and preview: what they store, show and refuse, and what a second declaration means."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Interceptor, Recorder
from tests.support.jobs_in_memory import flat
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InvalidCronError, InvalidOptionError
from trio_monque.jobs.job_parts import Schedule
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import start_virtual_time

DECLARER = f"process {os.getpid()} on {socket.gethostname()}"


def setting(jobs: Collection, fields: dict[str, Any]) -> Callable[[], None]:
    def write() -> None:
        jobs.update_one({}, {"$set": fields})

    return write


@pytest.mark.parametrize(
    "cron", ["not a cron", "60 * * * *", "0 25 * * *", "", "* * *", "* * * * * *", "* * * * * * *"]
)
async def test_invalid_cron_expression_is_refused_with_an_example(unused_port: int, cron: str) -> None:
    with MongoClient[Any]("127.0.0.1", unused_port) as client:
        monque = Monque(client["nowhere"])
        calls: list[Callable[[], Any]] = [lambda: monque.schedule(cron, "report"), lambda: monque.preview(cron)]
        for call in calls:
            with pytest.raises(InvalidCronError, match="for example") as caught:
                await call()
            assert caught.value.expression == cron


async def test_options_that_cannot_be_are_refused_by_name(unused_port: int) -> None:
    with MongoClient[Any]("127.0.0.1", unused_port) as client:
        monque = Monque(client["nowhere"])
        with pytest.raises(InvalidOptionError, match="on_conflict"):
            await monque.schedule("@daily", "report", on_conflict="replace")
        with pytest.raises(InvalidOptionError, match="on_exhausted"):
            await monque.schedule("@daily", "report", on_exhausted="stop")
        with pytest.raises(InvalidCronError, match="Mars"):
            await monque.schedule("@daily", "report", timezone="Mars/Olympus")
        with pytest.raises(InvalidOptionError, match="count"):
            await monque.preview("@daily", count=0)


async def test_schedule_stores_a_pending_job_with_five_fields_and_no_default(
    db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    monque = Monque(db)
    job = await monque.schedule("@daily", "report", {"n": 1})
    (document,) = jobs.find()
    assert (document["repeatInterval"], document["status"], document["failCount"]) == ("0 0 * * *", "pending", 0)
    assert not {"timezone", "onExhausted", "uniqueKey"} & set(document)
    assert timedelta(0) < job.next_run_at - job.created_at <= timedelta(days=1)
    assert (job.next_run_at.hour, job.next_run_at.minute) == (0, 0)
    assert await monque.get_job(job.id) == job
    await monque.schedule("0 9 * * *", "report", timezone="Asia/Tokyo", on_exhausted="fail", unique_key="k")
    stored = jobs.find_one({"uniqueKey": "k"}) or {}
    assert (stored["timezone"], stored["onExhausted"], stored["nextRunAt"].hour) == ("Asia/Tokyo", "fail", 0)


async def test_schedules_without_a_key_are_two_jobs_and_with_a_key_the_first_is_kept(
    db: Database, jobs: Collection
) -> None:
    monque = Monque(db)
    first, second = [await monque.schedule("0 9 * * *", "report") for _ in range(2)]
    assert first.id != second.id
    kept = await monque.schedule("0 9 * * *", "report", "first", unique_key="k")
    again = await monque.schedule("0 10 * * *", "report", "second", unique_key="k")
    assert again == kept
    assert jobs.count_documents({}) == 3


async def test_update_brings_a_pending_schedule_up_to_date(
    db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    monque = Monque(db)
    declare = partial(monque.schedule, unique_key="k", on_conflict="update")
    first = await declare("0 9 * * *", "report", "old", timezone="Asia/Tokyo", on_exhausted="fail")
    await trio.sleep(1)
    job = await declare("30 10 * * *", "report", None)
    changed = Schedule(
        cron="30 10 * * *", changed_from="0 9 * * * (Asia/Tokyo)", changed_at=job.updated_at, changed_by=DECLARER
    )
    assert (job.id, job.schedule, job.data) == (first.id, changed, None)
    assert (job.next_run_at.hour, job.next_run_at.minute) == (10, 30)
    assert job.internals.rev == 1  # A client that read a copy before can see that it is stale.
    assert (job.created_at, job.updated_at) == (first.created_at, first.updated_at + timedelta(seconds=1))
    assert await monque.get_job(job.id) == job


async def test_update_of_a_processing_schedule_leaves_its_run_alone(db: Database, jobs: Collection) -> None:
    sync = Monque(db).sync_in_loop
    first = sync.schedule("0 9 * * *", "report", "old", unique_key="k")
    claim = {"status": "processing", "claimedBy": "me", "lockedAt": datetime(2026, 1, 1, tzinfo=UTC), "claimToken": "t"}
    jobs.update_one({}, {"$set": claim})
    job = sync.schedule("0 10 * * *", "report", "new", unique_key="k", timezone="Asia/Tokyo", on_conflict="update")
    (document,) = jobs.find()
    assert {key: document[key] for key in claim} == claim
    assert document["nextRunAt"] == first.next_run_at
    assert (document["repeatInterval"], document["timezone"], document["data"]) == ("0 10 * * *", "Asia/Tokyo", "new")
    assert sync.get_job(first.id) == job


async def test_declaration_that_says_the_same_writes_nothing(mongod: EmbeddedServer, db: Database) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        declare = partial(Monque(client[db.name]).sync_in_loop.schedule, unique_key="k", on_conflict="update")
        first = declare("@daily", "report", {"a": [1, 2.5, None]}, timezone="UTC")
        assert declare("0  0 * * *", "report", {"a": [1, 2.5, None]}) == first
        writes = [command for name, command in recorder.commands if name == "findAndModify"]
        assert [bool(command.get("upsert")) for command in writes] == [True, True]


async def test_new_data_alone_keeps_when_it_is_due(db: Database, jobs: Collection) -> None:
    """A backoff or a rescheduling is not undone by an instance that starts with newer data."""
    sync = Monque(db).sync_in_loop
    sync.schedule("0 9 * * *", "report", "old", unique_key="k")
    at = datetime(2031, 1, 1, tzinfo=UTC)
    jobs.update_one({}, {"$set": {"nextRunAt": at, "failCount": 2}})
    job = sync.schedule("0 9 * * *", "report", "new", unique_key="k", on_conflict="update")
    assert (job.data, job.next_run_at, job.fail_count) == ("new", at, 2)


async def test_declaration_of_other_times_notes_what_it_changed_until_the_next_one(
    db: Database, jobs: Collection
) -> None:
    declare = partial(Monque(db).sync_in_loop.schedule, unique_key="k", on_conflict="update")
    first = declare("0 9 * * *", "report", "old")
    assert first.schedule == Schedule(cron="0 9 * * *")
    daily = declare("0 10 * * *", "report", "old")
    assert daily.schedule is not None
    assert (daily.schedule.changed_from, daily.schedule.changed_at) == ("0 9 * * * (UTC)", daily.updated_at)
    assert daily.schedule.changed_by == DECLARER
    # Other data, or the same declaration again, does not change the times.
    for data in ("new", "new"):
        job = declare("0 10 * * *", "report", data)
        assert job.schedule == daily.schedule
    again = declare("0 10 * * *", "report", "new", timezone="Asia/Tokyo")
    assert again.schedule is not None
    assert again.schedule.changed_from == "0 10 * * * (UTC)"
    jobs.update_one({}, {"$set": {"scheduleChangedFrom": 7}})  # Only people read it.
    read = Monque(db).sync_in_loop.get_job(again.id)
    assert read is not None
    assert read.schedule == replace(again.schedule, changed_from=None)


def test_occurrence_that_ran_between_the_look_and_the_update_does_not_become_due_again(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        sync = Monque(client[db.name]).sync
        sync.schedule("0 9 * * *", "report", "old", unique_key="k")
        later = datetime(2031, 1, 1, 9, tzinfo=UTC)
        interceptor.before(
            lambda name, command: name == "findAndModify" and not command.get("upsert"),
            setting(jobs, {"nextRunAt": later}),
        )
        job = sync.schedule("0 9 * * *", "report", "new", unique_key="k", on_conflict="update")
    assert interceptor.times == 1
    assert (job.data, job.next_run_at) == ("new", later)


@pytest.mark.parametrize("change", [{"status": "processing"}, {"status": "cancelled"}, {"rev": 7}])
def test_change_between_the_look_and_the_update_is_looked_at_again(
    mongod: EmbeddedServer, db: Database, jobs: Collection, change: dict[str, Any]
) -> None:
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        sync = Monque(client[db.name]).sync
        first = sync.schedule("0 9 * * *", "report", "old", unique_key="k")
        interceptor.before(
            lambda name, command: name == "findAndModify" and not command.get("upsert"),
            setting(jobs, change),
        )
        job = sync.schedule("0 10 * * *", "report", "new", unique_key="k", on_conflict="update")
    assert (flat(job).repeat_interval, job.data) == ("0 10 * * *", "new")
    assert job.status == ("processing" if change.get("status") == "processing" else "pending")
    assert (job.id == first.id) is (change.get("status") != "cancelled")
    assert jobs.count_documents({"repeatInterval": "0 10 * * *", "data": "new"}) == 1


async def test_concurrent_declarations_give_one_schedule(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(
                partial(monque.schedule, f"{number} 9 * * *", "report", unique_key="k", on_conflict="update")
            )
    (document,) = jobs.find()
    assert document["rev"] <= 19


async def test_preview_shows_what_a_schedule_means_and_stores_nothing(
    db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    start_virtual_time(datetime(2026, 5, 1, 12, tzinfo=UTC))
    monque = Monque(db)
    shown = await monque.preview("@daily", "Europe/Berlin", 3)
    assert (shown.expression, shown.timezone, len(shown.runs)) == ("0 0 * * *", "Europe/Berlin", 3)
    assert shown.runs == tuple(datetime(2026, 5, day, 22, tzinfo=UTC) for day in (1, 2, 3))
    await trio.sleep(86400 * 30)
    later = monque.sync_in_loop.preview("@daily")
    assert (later.timezone, len(later.runs)) == ("UTC", 5)
    moved = await monque.preview("@daily", "Europe/Berlin", 3)
    assert moved.runs[0] - shown.runs[0] == timedelta(days=30)
    assert jobs.count_documents({}) == 0
