"""What this machine lacks and another may have ends no job: a time zone, or a module that a payload needs."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from trio.testing import MockClock

from tests.support.jobs_in_memory import flat, with_flat
from trio_monque import JobStatus, Monque, RunningJob, Workers
from trio_monque.errors import UnreadablePayloadError
from trio_monque.exponential_backoff import Backoff
from trio_monque.jobs import cron, rescue_policy
from trio_monque.jobs.rescue_policy import RescuePolicy
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, drain, now, quiesce

ZONE = "Europe/Kyiv"

ALL_ZONES = cron.zone_names()


class Machine:
    """The time zone database of this machine: an old one, none at all, or the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.zones = ALL_ZONES
        self.looked_again = 0
        monkeypatch.setattr(cron, "zone_names", self)

    def __call__(self) -> frozenset[str]:
        return self.zones

    def cache_clear(self) -> None:
        self.looked_again += 1

    def has_an_old_database(self) -> None:
        self.zones = ALL_ZONES - {ZONE}

    def has_no_database(self) -> None:
        self.zones = frozenset()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def workers_that_log(ran: list[Any]) -> Workers:
    workers = Workers()

    @workers.register("daily")
    async def daily(job: RunningJob[Any]) -> None:
        ran.append(job.data)

    @workers.register("other")
    async def other(job: RunningJob[Any]) -> None:
        ran.append("other")

    return workers


@pytest.mark.full
@pytest.mark.parametrize("lacks", [Machine.has_an_old_database, Machine.has_no_database])
async def test_job_whose_zone_is_unknown_is_not_claimed_and_runs_when_it_is_known(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    machine: Machine,
    lacks: Callable[[Machine], None],
) -> None:
    ran = list[Any]()
    # Not every day: its next occurrence must not come due within this quarter of an hour, whenever the test runs.
    job = await monque.schedule("0 9 29 2 *", "daily", "report", unique_key="d", timezone=ZONE)
    await monque.reschedule_job(job.id, now())
    lacks(machine)
    with caplog.at_level(logging.WARNING):
        async with open_test_scheduler(workers_that_log(ran), poll_interval=10) as scheduler:
            await quiesce()
            await scheduler.enqueue("other")
            await drain(scheduler)
            await advance(600)
            assert ran == ["other"]
            health = scheduler.health()
            assert (health.healthy, health.broken) == (True, 1)
            (warning,) = health.warnings
            assert (
                f"jobs that wait for another machine: 1, because this machine does not know its time zone '{ZONE}'"
                in warning
            )
            assert jobs.count_documents({"_id": job.id, "status": "pending", "attempts": {"$in": [None, 0]}}) == 1
            machine.zones = ALL_ZONES
            await scheduler.enqueue("other")
            await advance(120)
            await scheduler.enqueue("other")
            await drain(scheduler)
            assert ran.count("report") == 1
            assert scheduler.health().warnings == ()
    stored = await monque.get_job(job.id)
    assert stored is not None
    assert (stored.status, stored.fail_count, flat(stored).timezone) == (JobStatus.PENDING, 0, ZONE)
    assert stored.next_run_at > now()
    assert len([one for one in caplog.records if "to other instances: " in one.getMessage()]) == 1


async def test_job_that_is_claimed_by_its_id_is_released(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, machine: Machine
) -> None:
    """Its timer was set by an announcement, and no look has read it."""
    ran = list[Any]()
    async with open_test_scheduler(workers_that_log(ran)) as scheduler:
        await quiesce()
        job = await scheduler.schedule("* * * * *", "daily", "report", unique_key="d", timezone=ZONE)
        machine.has_no_database()
        await advance(600)
    assert ran == []
    stored = jobs.find_one({"_id": job.id})
    assert stored is not None
    assert (stored["status"], stored.get("failCount", 0), stored.get("claimedBy")) == ("pending", 0, None)
    assert stored.get("attempts", 0) <= 1


async def test_zone_that_a_schedule_gets_while_it_runs_does_not_end_it(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock, machine: Machine
) -> None:
    workers, ran = Workers(), list[Any]()

    @workers.register("daily")
    async def daily(job: RunningJob[Any]) -> None:
        ran.append(1)
        jobs.update_one({"_id": job.id}, {"$set": {"timezone": ZONE}, "$inc": {"rev": 1}})

    machine.has_an_old_database()
    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.schedule("0 9 * * *", "daily", unique_key="d", timezone="Europe/Berlin")
        await scheduler.reschedule_job(job.id, now())
        await drain(scheduler)
        await advance(600)
        assert scheduler.statistics().failed == 0
        assert scheduler.statistics().released == 1
    stored = await monque.get_job(job.id)
    assert stored is not None
    assert (ran, stored.status, flat(stored).timezone) == ([1], JobStatus.PENDING, ZONE)


@pytest.mark.parametrize("on_exhausted", [None, "fail"])
async def test_rescuer_without_the_zone_gives_no_schedule_up(
    monque: Monque, autojump_clock: MockClock, machine: Machine, on_exhausted: str | None
) -> None:
    job = await monque.schedule("0 9 * * *", "daily", unique_key="d", timezone=ZONE)
    held = with_flat(job, status=JobStatus.PROCESSING, rescues=3, on_exhausted=on_exhausted, claimed_by="dead")
    policy = RescuePolicy(max_rescues=3, backoff=Backoff(base=1, cap=10, jitter=0))
    machine.has_an_old_database()
    rescue = rescue_policy.decide_rescue(held, now(), policy)
    is_over = on_exhausted == "fail"  # Declared so: no occurrence is to be computed.
    assert (rescue.transition.set["status"] is JobStatus.FAILED, rescue.error is not None) == (is_over, is_over)


@pytest.mark.full
@pytest.mark.parametrize("zone", ["", "localtime", "Factory", "../etc/passwd", "Berlin, Germany", "+02:00"])
async def test_zone_that_can_exist_nowhere_ends_the_schedule_as_before(
    open_test_scheduler: SchedulerOpener, jobs: Collection, monque: Monque, autojump_clock: MockClock, zone: str
) -> None:
    ran = list[Any]()
    job = await monque.schedule("0 9 * * *", "daily", "report", unique_key="d", timezone=ZONE)
    await monque.reschedule_job(job.id, now())
    jobs.update_one({"_id": job.id}, {"$set": {"timezone": zone}})
    async with open_test_scheduler(workers_that_log(ran)) as scheduler:
        await drain(scheduler)
    assert (ran, jobs.count_documents({"status": "failed"})) == (["report"], 1)


# --- Payloads ---


@pytest.mark.full
async def test_payload_that_needs_a_missing_module_is_left_to_others_uncounted(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers, ran, module = Workers(), list[Any](), ["no_such_module_of_trio_monque"]

    def lazily(stored: Any) -> Any:
        importlib.import_module(module[0])
        return stored

    @workers.register("job", payload=lazily, max_attempts=2)
    async def job(job: RunningJob[Any]) -> None:
        ran.append(job.data)

    @workers.register("other")
    async def other(job: RunningJob[Any]) -> None: ...

    async with open_test_scheduler(workers, poll_interval=10) as scheduler:
        left = await scheduler.enqueue("job", "data")
        await quiesce()
        for _ in range(20):
            await advance(61)
            await scheduler.enqueue("other")
            await drain(scheduler)
        stored = await monque.get_job(left.id)
        assert stored is not None
        assert (stored.status, stored.fail_count) == (JobStatus.PENDING, 0)
        # About once a minute, and not in a loop.
        assert 2 <= stored.attempts <= 25
        (warning,) = scheduler.health().warnings
        assert "this process cannot import what its payload needs: No module named 'no_such_module" in warning
        assert scheduler.statistics().failed == 0
        module[0] = "json"
        await advance(61)
        await scheduler.enqueue("other")
        await drain(scheduler)
    assert ran == ["data"]


async def test_handler_that_cannot_import_has_failed(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    """Its error is one of its code, like any other."""
    workers = Workers()

    @workers.register("job", max_attempts=1)
    async def job(job: RunningJob[Any]) -> None:
        importlib.import_module("no_such_module_of_trio_monque")

    async with open_test_scheduler(workers) as scheduler:
        made = await scheduler.enqueue("job")
        await drain(scheduler)
    stored = await monque.get_job(made.id)
    assert stored is not None
    assert stored.status is JobStatus.FAILED


async def test_module_is_missing_behind_other_causes_and_the_job_still_has_its_start_limit(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()

    def of_a_library(stored: Any) -> Any:
        try:
            importlib.import_module("no_such_module_of_trio_monque")
        except ImportError as error:
            raise ValueError("this type cannot be used") from error

    @workers.register("job", payload=of_a_library, max_attempts=1)
    async def job(job: RunningJob[Any]) -> None: ...

    async with open_test_scheduler(workers) as scheduler:
        made = await scheduler.enqueue("job", "data", start_by=now() + timedelta(seconds=90))
        await quiesce()
        stored = await monque.get_job(made.id)
    assert stored is not None
    assert (stored.status, stored.fail_count) == (JobStatus.PENDING, 0)
    assert stored.limits.start_by == made.limits.start_by is not None


async def test_handler_that_meets_an_unreadable_payload_has_failed(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    """Its own payload was read. The error is that of another one, which its code looked at."""
    workers = Workers()

    @workers.register("job", max_attempts=1)
    async def job(job: RunningJob[Any]) -> None:
        raise UnreadablePayloadError("another one") from ImportError("no module")

    async with open_test_scheduler(workers) as scheduler:
        made = await scheduler.enqueue("job")
        await drain(scheduler)
    stored = await monque.get_job(made.id)
    assert stored is not None
    assert (stored.status, stored.attempts) == (JobStatus.FAILED, 1)
