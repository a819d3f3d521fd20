"""Schedules that are declared with their workers: one job of each exists, and is kept up to date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_monque import (
    InvalidCronError,
    JobStatus,
    Monque,
    RunningJob,
    WorkerRegistrationError,
    Workers,
)
from trio_monque.store.types import Collection
from trio_monque.testing import SchedulerOpener, drain, quiesce, start_virtual_time

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def declared(expression: str, runs: list[datetime] | None = None, **options: Any) -> Workers:
    workers = Workers()

    @workers.cron(expression, "report", **options)
    async def report(job: RunningJob[Any]) -> None:
        if runs is not None:
            runs.append(job.next_run_at)

    return workers


async def test_one_job_exists_however_many_instances_start_at_once(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def start() -> None:
        async with open_test_scheduler(declared("0 9 * * *", timezone="Europe/Berlin", data={"a": 1})):
            await quiesce()

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


async def test_it_runs_at_its_times(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    runs: list[datetime] = []
    start_virtual_time(START)
    async with open_test_scheduler(declared("*/20 * * * *", runs)) as scheduler:
        await drain(scheduler, until=START + timedelta(hours=3))
    assert runs == [START + number * timedelta(minutes=20) for number in range(1, 10)]


async def test_the_next_start_brings_it_up_to_date(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler(declared("0 9 * * *", data="old")):
        pass
    (before,) = await monque.get_jobs()
    async with open_test_scheduler(declared("@daily", timezone="Asia/Tokyo", data="new")):
        pass
    (after,) = await monque.get_jobs()
    assert after.id == before.id
    assert (after.repeat_interval, after.timezone, after.data) == ("0 0 * * *", "Asia/Tokyo", "new")
    assert after.next_run_at.hour == 15  # Midnight in Tokyo.


async def test_schedule_changed_while_it_runs_holds_from_the_next_occurrence(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    start_virtual_time(START)
    workers = Workers()
    entered = trio.Event()

    @workers.cron("* * * * *", "report")
    async def report(job: RunningJob[Any]) -> None:
        entered.set()
        await trio.sleep(30)

    async with open_test_scheduler(workers) as scheduler:
        await entered.wait()
        async with open_test_scheduler(declared("30 4 1 1 *")):
            await drain(scheduler)
    (after,) = await monque.get_jobs()
    assert (after.status, after.finished_at) == (JobStatus.PENDING, START + timedelta(seconds=90))
    assert after.next_run_at == datetime(2027, 1, 1, 4, 30, tzinfo=UTC)


def test_what_cannot_be_a_schedule_is_refused_when_it_is_declared() -> None:
    workers = Workers()
    with pytest.raises(InvalidCronError):
        workers.cron("0 0 * * * *", "report")
    with pytest.raises(InvalidCronError, match="Mars"):
        workers.cron("0 0 * * *", "report", timezone="Mars/Olympus")
    workers.register("report", print)
    with pytest.raises(WorkerRegistrationError):
        workers.cron("0 0 * * *", "report")(print)
