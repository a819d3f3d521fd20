"""Schedules that are declared with their workers: one job of each exists, and is kept up to date."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.waiting import wait_for_jobs
from trio_monque import InvalidCronError, Monque, RunningJob, WorkerRegistrationError, Workers, open_scheduler
from trio_monque.store.types import Collection, Database


def declared(expression: str, runs: list[datetime] | None = None, **options: Any) -> Workers:
    workers = Workers()

    @workers.cron(expression, "report", **options)
    async def report(job: RunningJob[Any]) -> None:
        if runs is not None:
            runs.append(job.next_run_at)

    return workers


async def test_one_job_exists_however_many_instances_start_at_once(
    db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def start() -> None:
        async with open_scheduler(db, declared("0 9 * * *", timezone="Europe/Berlin", data={"a": 1})):
            await trio.sleep(5)

    for _ in range(5):
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(start)
    (document,) = jobs.find()
    assert document["uniqueKey"] == "cron:report"
    assert (document["repeatInterval"], document["timezone"], document["data"]) == (
        "0 9 * * *",
        "Europe/Berlin",
        {"a": 1},
    )
    assert "rev" not in document  # What is the same already is not written again.


async def test_it_runs_at_its_times(db: Database, autojump_clock: MockClock) -> None:
    runs: list[datetime] = []
    async with open_scheduler(db, declared("*/20 * * * *", runs), poll_interval=5):
        await trio.sleep(3 * 3600)
    assert len(runs) == 9
    assert {run.minute for run in runs} == {0, 20, 40}
    assert {later - earlier for earlier, later in pairwise(runs)} == {timedelta(minutes=20)}


async def test_the_next_start_brings_it_up_to_date(db: Database, jobs: Collection, autojump_clock: MockClock) -> None:
    async with open_scheduler(db, declared("0 9 * * *", data="old")):
        pass
    (before,) = await Monque(db).get_jobs()
    async with open_scheduler(db, declared("@daily", timezone="Asia/Tokyo", data="new")):
        pass
    (after,) = await Monque(db).get_jobs()
    assert after.id == before.id
    assert (after.repeat_interval, after.timezone, after.data) == ("0 0 * * *", "Asia/Tokyo", "new")
    assert after.next_run_at.hour == 15  # Midnight in Tokyo.


async def test_schedule_changed_while_it_runs_holds_from_the_next_occurrence(
    db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    entered = trio.Event()

    @workers.cron("* * * * *", "report")
    async def report(job: RunningJob[Any]) -> None:
        entered.set()
        await trio.sleep(30)

    async with open_scheduler(db, workers):
        await entered.wait()
        async with open_scheduler(db, declared("30 4 1 1 *")):
            await wait_for_jobs(jobs, 1, status="pending", finishedAt={"$exists": True})
    (after,) = await Monque(db).get_jobs()
    assert (after.next_run_at.month, after.next_run_at.day, after.next_run_at.minute) == (1, 1, 30)


def test_what_cannot_be_a_schedule_is_refused_when_it_is_declared() -> None:
    workers = Workers()
    with pytest.raises(InvalidCronError):
        workers.cron("0 0 * * * *", "report")
    with pytest.raises(InvalidCronError, match="Mars"):
        workers.cron("0 0 * * *", "report", timezone="Mars/Olympus")
    workers.register("report", print)
    with pytest.raises(WorkerRegistrationError):
        workers.cron("0 0 * * *", "report")(print)
