"""The kit for tests of jobs, on trio, asyncio and uvloop: schedulers of a test, `drain`, checks of what is stored."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import pytest

from trio_monque import Monque, RunningJob, Snooze, Workers
from trio_monque.errors import InvalidOptionError, MonqueError
from trio_monque.store.driver.types import Database
from trio_monque.testing import (
    SchedulerOpener,
    advance,
    assert_enqueued,
    crash,
    drain,
    now,
    quiesce,
    start_virtual_time,
)

from .conftest import Run

BERLIN = ZoneInfo("Europe/Berlin")


def test_drain_runs_all_that_is_due(run: Run, db: Database) -> None:
    workers = Workers()

    @workers.register("double", store_result=True)
    async def double(job: RunningJob[int]) -> int:
        await anyio.sleep(0.01)
        if job.data < 8:
            await job.scheduler.enqueue("double", job.data * 2)
        return job.data * 2

    @workers.register("fails", backoff=3600)
    async def fails(job: RunningJob[None]) -> None:
        raise ConnectionError

    async def main() -> None:
        monque = Monque(db, stats_cache_ttl=0)
        async with SchedulerOpener(db)(workers) as scheduler:
            await monque.enqueue("double", 2)
            await monque.enqueue("fails")
            drained = await drain(scheduler)
            assert (drained.completed, drained.failed) == (3, 1)
            await assert_enqueued(monque, name="double", data=8, status="completed")
            await assert_enqueued(monque, name="fails", status="pending")  # Until its backoff is over.
            assert (await drain(scheduler)).completed == 0

    run(main)


def test_drain_until_a_moment_runs_retries_and_schedules_of_hours_in_real_time(run: Run, db: Database) -> None:
    workers, ran = Workers(), list[tuple[str, datetime]]()

    @workers.register("charge", backoff=3600)
    async def charge(job: RunningJob[None]) -> None:
        ran.append(("charge", now()))
        if job.fail_count < 2:
            raise ConnectionError

    @workers.register("tick")
    async def tick(job: RunningJob[None]) -> None:
        ran.append(("tick", now()))

    async def main() -> None:
        began = now()
        monque = Monque(db, stats_cache_ttl=0)
        async with SchedulerOpener(db)(workers, retry_jitter=0) as scheduler:
            await monque.schedule("0 * * * *", "tick")
            await scheduler.enqueue("charge")
            later = await monque.enqueue("charge", delay=timedelta(days=2))
            drained = await drain(scheduler, until=began + timedelta(hours=12))
            assert drained.failed == 2
            assert [name for name, _ in ran].count("tick") == 12
            first, *retries = [at for name, at in ran if name == "charge"]
            assert [round((at - first) / timedelta(hours=1), 1) for at in retries] == [1.0, 2.0]
            assert [at for name, at in ran if name == "tick" and at.minute] == []  # Each at its due date.
            # All clients of the process have this time, so that a delay counts from it.
            soon = await monque.enqueue("charge", delay=3600)
            assert (soon.next_run_at - began) / timedelta(hours=1) == pytest.approx(13, abs=0.1)
            with pytest.raises(InvalidOptionError, match="has passed"):
                await drain(scheduler, until=began + timedelta(hours=11))
            assert not scheduler.statistics().claims_lost
            stored = await monque.get_job(later.id)
            assert stored is not None
            assert stored.attempts == 0
        assert now() - began < timedelta(hours=1)  # It ends with the test scheduler.

    run(main)


def test_error_of_advance_names_what_works_in_real_time(run: Run, db: Database) -> None:
    async def main() -> None:
        with pytest.raises(MonqueError, match=r"also on asyncio, drain\(scheduler, until=now\(\) \+"):
            await advance(3600)

    run(main)


def test_errors_of_quiesce_start_virtual_time_and_crash_name_what_works_on_asyncio(db: Database) -> None:
    async def main() -> None:
        with pytest.raises(MonqueError, match=r"quiesce needs a test on trio; on asyncio, drain\(scheduler\)"):
            await quiesce()
        with pytest.raises(MonqueError, match=r"start_virtual_time needs a test on trio, .*, starts_at=moment\)"):
            start_virtual_time(datetime(2030, 1, 1, tzinfo=UTC))
        async with SchedulerOpener(db)(Workers()) as scheduler:
            with pytest.raises(MonqueError, match=r"crash needs a test on trio; on asyncio, .* shutdown_timeout=0"):
                await crash(scheduler)
            await drain(scheduler)  # It is alive: a crashed scheduler raises here.

    asyncio.run(main())


def test_time_starts_where_the_test_wants_it_and_schedules_cross_the_summer(run: Run, db: Database) -> None:
    workers = Workers()
    nights: list[datetime] = []

    @workers.cron("30 2 * * *", "report", timezone="Europe/Berlin")
    async def report(job: RunningJob[Any]) -> None:
        assert job.occurrence is not None
        nights.append(job.occurrence.astimezone(BERLIN))

    async def main() -> None:
        real = now()
        async with SchedulerOpener(db)(workers, starts_at=datetime(2040, 3, 23, tzinfo=BERLIN)) as scheduler:
            assert timedelta(0) <= now() - datetime(2040, 3, 23, tzinfo=BERLIN) < timedelta(minutes=5)
            await drain(scheduler, until=datetime(2040, 3, 27, tzinfo=BERLIN))
            with pytest.raises(InvalidOptionError, match="has passed: it is 2040-03-2"):
                async with SchedulerOpener(db)(Workers(), starts_at=datetime(2040, 3, 1, tzinfo=UTC)):
                    raise AssertionError("never entered")
        assert now() - real < timedelta(minutes=5)
        with pytest.raises(InvalidOptionError, match="starts_at=.*must be timezone-aware"):
            async with SchedulerOpener(db)(Workers(), starts_at=datetime(2040, 3, 1)):  # noqa: DTZ001
                raise AssertionError("never entered")

    run(main)
    # On 25 March, 02:30 does not exist in Berlin.
    assert [f"{night:%d %H:%M}" for night in nights] == ["23 02:30", "24 02:30", "25 03:00", "26 02:30"]


def test_subset_leaves_schedules_out(run: Run, db: Database) -> None:
    workers = Workers()
    workers.register("mail", lambda job: None)
    workers.cron("* * * * *", "tick")(lambda job: None)

    async def main() -> None:
        async with SchedulerOpener(db)(workers.subset(["mail"])) as scheduler:
            await scheduler.enqueue("mail")
            assert (await drain(scheduler, until=now() + timedelta(hours=1))).completed == 1
        assert [one["name"] for one in db["monque_jobs"].find()] == ["mail"]

    run(main)


def test_job_now_follows_the_time_of_the_test_in_async_and_plain_handlers(run: Run, db: Database) -> None:
    """A handler that goes by it can wait for a deadline: `datetime.now()` would never reach that here."""
    workers, seen = Workers(), dict[str, list[datetime]]()

    @workers.register("async")
    async def waits(job: RunningJob[None]) -> None:
        seen.setdefault("async", []).append(job.now())
        deadline = job.created_at + timedelta(days=3)
        if job.now() < deadline:
            raise Snooze(until=deadline)

    @workers.register("plain")
    def waits_in_a_thread(job: RunningJob[None]) -> None:
        seen.setdefault("plain", []).append(job.now())
        if job.now() < job.created_at + timedelta(days=3):
            raise Snooze(until=job.created_at + timedelta(days=3))

    async def main() -> None:
        begin = datetime(2040, 1, 1, tzinfo=UTC)
        async with SchedulerOpener(db)(workers, starts_at=begin) as scheduler:
            for name in ("async", "plain"):
                await scheduler.enqueue(name)
            with anyio.fail_after(30):
                assert (await drain(scheduler, until=begin + timedelta(days=4))).completed == 2
        for name in ("async", "plain"):
            first, second = seen[name]
            assert begin <= first <= begin + timedelta(minutes=1)
            assert timedelta(days=3) <= second - begin <= timedelta(days=3, minutes=1)

    run(main)
