"""Schedules that are declared with their workers: one job of each exists, and is kept up to date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.jobs_in_memory import flat
from trio_monque import JobStatus, Monque, RunningJob, Workers
from trio_monque.errors import InvalidCronError, InvalidOptionError, WorkerRegistrationError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, drain, quiesce, start_virtual_time

INSTANCE = "report-1"
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def declared(expression: str, runs: list[datetime] | None = None, **options: Any) -> Workers:
    workers = Workers()

    @workers.cron(expression, "report", **options)
    async def report(job: RunningJob[Any]) -> None:
        if runs is not None:
            runs.append(job.next_run_at)

    return workers


@pytest.mark.full
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
    async with open_test_scheduler(declared("@daily", timezone="Asia/Tokyo", data="new"), instance_id=INSTANCE):
        pass
    (after,) = await monque.get_jobs()
    assert after.id == before.id
    assert after.schedule is not None
    assert after.schedule.changed_by == INSTANCE
    assert (after.schedule.cron, after.schedule.timezone, after.data) == ("0 0 * * *", "Asia/Tokyo", "new")
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


def logged_schedule_changes(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    records = [record for record in caplog.records if "schedule report " in record.message]
    caplog.clear()
    return [(record.levelname, " ".join(record.message.split("schedule report ")[1].split()[:2])) for record in records]


async def test_restarted_older_release_keeps_the_newer_schedule_and_warns(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A rolling deploy: an instance of the old release crashes after the new one has declared, and starts again."""
    caplog.set_level("INFO")
    old, new = declared("0 9 * * *", version=1, data="old"), declared("0 10 * * *", version=2, data="new")
    without = declared("0 8 * * *", data="before there were versions")
    steps = [
        (without, [], "0 8 * * *"),
        (old, [("INFO", "changed to")], "0 9 * * *"),
        (new, [("INFO", "changed to")], "0 10 * * *"),
        (old, [("WARNING", "unchanged (0")], "0 10 * * *"),
        (without, [("WARNING", "unchanged (0")], "0 10 * * *"),
        (new, [], "0 10 * * *"),
    ]
    job = None
    for workers, reported, line in steps:
        async with open_test_scheduler(workers):
            pass
        (job,) = await monque.get_jobs()
        assert (flat(job).repeat_interval, logged_schedule_changes(caplog)) == (line, reported)
    assert job is not None
    assert (job.data, flat(job).schedule_version) == ("new", 2)


async def test_release_that_declares_the_same_as_a_newer_one_is_silent_and_a_higher_version_is_kept_in_mind(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for version in (3, 7, 3, None):
        async with open_test_scheduler(declared("0 9 * * *", version=version)):
            pass
    (job,) = await monque.get_jobs()
    assert flat(job).schedule_version == 7
    assert logged_schedule_changes(caplog) == []


@pytest.mark.full
async def test_rollback_by_a_number_that_grows_with_each_deployment_or_by_deleting_the_job(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    async def deploy(line: str, version: int) -> str | None:
        async with open_test_scheduler(declared(line, version=version)):
            pass
        (job,) = await monque.get_jobs()
        return None if job.schedule is None else job.schedule.cron

    assert await deploy("0 9 * * *", 1) == "0 9 * * *"
    assert await deploy("0 10 * * *", 2) == "0 10 * * *"
    assert await deploy("0 9 * * *", 3) == "0 9 * * *"  # The old code, as the third deployment.
    assert await deploy("0 10 * * *", 2) == "0 9 * * *"
    (job,) = await monque.get_jobs()
    await monque.delete_job(job.id)
    assert await deploy("0 10 * * *", 2) == "0 10 * * *"


async def test_without_versions_the_last_declaration_wins_and_each_change_is_a_warning(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    for version, line in ((None, "0 9 * * *"), (None, "0 10 * * *"), (4, "0 9 * * *"), (4, "0 10 * * *")):
        async with open_test_scheduler(declared(line, version=version)):
            pass
        (job,) = await monque.get_jobs()
        assert flat(job).repeat_interval == line
    # The third is decided by its version.
    assert logged_schedule_changes(caplog) == [("WARNING", "changed to")] * 2


@pytest.mark.full
async def test_of_two_releases_that_declare_at_once_the_newer_wins(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    async def start(version: int) -> None:
        async with open_test_scheduler(declared(f"{version} 9 * * *", version=version)):
            await quiesce()

    for _ in range(5):
        async with trio.open_nursery() as nursery:
            for version in (1, 2, 3, 2, 1):
                nursery.start_soon(start, version)
        (job,) = await monque.get_jobs()
        assert (flat(job).repeat_interval, flat(job).schedule_version) == ("3 9 * * *", 3)
        await monque.delete_job(job.id)


@pytest.mark.parametrize("version", [0, -1, 1.5, True, "2", 2**53 + 1])
def test_version_that_is_not_a_whole_number_from_1_is_refused(version: Any) -> None:
    with pytest.raises(InvalidOptionError, match="version"):
        Workers().cron("0 0 * * *", "report", version=version)


def test_what_cannot_be_a_schedule_is_refused_when_it_is_declared() -> None:
    workers = Workers()
    with pytest.raises(InvalidCronError):
        workers.cron("0 0 * * * *", "report")
    with pytest.raises(InvalidCronError, match="Mars"):
        workers.cron("0 0 * * *", "report", timezone="Mars/Olympus")
    workers.register("report", print)
    with pytest.raises(WorkerRegistrationError):
        workers.cron("0 0 * * *", "report")(print)
