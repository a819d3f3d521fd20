"""How often a job is rescued, one suspect at a time, and what rescue costs in virtual time. On the server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Recorder
from tests.support.node_peer import NodePeer
from tests.support.rescues import LEASE, PASS, Jobs, dead_instance
from trio_monque import JobStatus, Monque, RunningJob, Snooze, Workers, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.events import Event, JobFailed, ScheduleExhausted, StaleJobsRecovered
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, drain, now, quiesce


def looks(recorder: Recorder) -> Sequence[Any]:
    return [one for name, one in recorder.commands if name == "find" and one["filter"] == {"status": "processing"}]


# --- What ends the count ---


@pytest.mark.parametrize("on_exhausted", ["continue", "fail"])
async def test_schedule_above_the_limit_goes_on_unless_it_is_to_fail(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, on_exhausted: Any
) -> None:
    work, reported = Jobs(), list[Any]()
    async with open_test_scheduler(listeners={Event: reported.append}, max_rescues=0) as living:
        made = await living.schedule("0 0 1 1 *", "job", on_exhausted=on_exhausted)
        await living.reschedule_job(made.id, now())
        async with dead_instance(open_test_scheduler, work.workers):
            await trio.sleep(LEASE + PASS)
            await quiesce()
        (stored,) = await living.get_jobs()
        ends = [event for event in reported if isinstance(event, ScheduleExhausted | JobFailed | StaleJobsRecovered)]
        assert (stored.fail_count, stored.rescues, stored.fail_reason) == (0, 0, "died 1 time while running")
        assert len(stored.errors) == 1
        if on_exhausted == "fail":
            assert stored.status is JobStatus.FAILED
            assert [type(event) for event in ends] == [JobFailed]
            await living.retry_job(stored.id)
            assert (await living.get_jobs())[0].rescues == 0
        else:
            assert (stored.status, stored.next_run_at.month, stored.next_run_at.day) == (JobStatus.PENDING, 1, 1)
            assert {type(event) for event in ends} == {ScheduleExhausted, JobFailed, StaleJobsRecovered}


async def ends_well(job: RunningJob[Any]) -> None: ...


async def fails(job: RunningJob[Any]) -> None:
    raise ValueError("no")


async def snoozes(job: RunningJob[Any]) -> None:
    raise Snooze(after=5)


async def does_not_end(job: RunningJob[Any]) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("handler", "fields", "status", "left"),
    [
        (ends_well, {}, "completed", None),
        (ends_well, {"repeatInterval": "0 0 1 1 *"}, "pending", None),
        (fails, {}, "pending", None),
        (fails, {"maxRetries": 1}, "failed", None),
        (snoozes, {}, "pending", None),
        (does_not_end, {}, "pending", 2),  # Given back, which counts nothing.
    ],
)
async def test_every_counted_end_of_a_run_begins_the_count_of_deaths_anew_and_a_release_does_not(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    handler: Any,
    fields: dict[str, Any],
    status: str,
    left: int | None,
) -> None:
    await monque.enqueue("job")
    jobs.update_one({}, {"$set": {"rescues": 2, **fields}})
    workers = Workers()
    workers.register("job", handler)
    async with open_test_scheduler(workers, shutdown_timeout=0.0):
        await trio.sleep(1)
        await quiesce()
    stored = jobs.find_one()
    assert stored is not None
    assert (stored["status"], stored.get("rescues")) == (status, left)


# --- Suspects ---


async def test_row_of_suspects_of_one_name_does_not_starve_those_of_another(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    order: list[str] = []

    async def handler(job: RunningJob[Any]) -> None:
        order.append(job.name)
        await trio.sleep(1)

    async with open_test_scheduler() as scheduler:
        await scheduler.enqueue("b")
        for name in "aabaa":
            await trio.sleep(1)
            await scheduler.enqueue(name)
        jobs.update_many({}, {"$set": {"rescues": 2}})
        for name in "ab":
            scheduler.register(name, handler)
        await drain(scheduler)
    assert order == list("baabaa")


# --- Virtual time is as real time, and costs less ---


def stubborn(starts: list[int], seconds: float = math.inf, until: trio.Event | None = None) -> Workers:
    """A worker whose first try does not obey, for so long or until then."""
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        starts.append(job.attempt)
        if job.attempt == 1:
            with trio.move_on_after(seconds, shield=True):
                await (trio.Event() if until is None else until).wait()

    return workers


async def test_claim_of_an_own_run_beyond_the_absolute_limit_is_taken_away_and_the_job_waits_for_that_run(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Another instance may run it then. This one does not run it beside itself."""
    starts: list[int] = []
    async with open_test_scheduler(stubborn(starts, 20000.0)) as alone:
        await alone.enqueue("job")
        await trio.sleep(0.9 * 1800 + LEASE - 1)
        assert jobs.count_documents({"status": "processing", "attempts": 1}) == 1
        await trio.sleep(PASS + 1)
        await quiesce()
        assert jobs.count_documents({"status": "pending", "rescues": 1, "attempts": 1}) == 1
        await trio.sleep(20000)
        await quiesce()
        assert starts == [1, 2]
        assert jobs.count_documents({"status": "completed", "attempts": 2}) == 1


@pytest.mark.full
async def test_claim_of_an_own_run_beyond_the_absolute_limit_is_taken_away_in_real_time_too(
    db: Database, jobs: Collection
) -> None:
    starts: list[int] = []
    quick: Any = {"heartbeat_interval": 0.2, "lock_timeout": 0.8, "cleanup_timeout": 0.1, "poll_interval": 0.05}
    enough = trio.Event()
    async with open_scheduler(db, stubborn(starts, until=enough), **quick) as alone:
        await alone.enqueue("job")
        while not jobs.count_documents({"status": "pending", "rescues": 1}):
            await trio.sleep(0.02)
        assert starts == [1]
        enough.set()
        while len(starts) < 2:
            await trio.sleep(0.02)
    assert starts[:2] == [1, 2]


async def test_claim_that_may_not_be_taken_yet_costs_no_looks_in_virtual_time(
    mongod: EmbeddedServer, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    commands = Recorder()
    NodePeer(jobs).hold("job", 1, now())
    NodePeer(jobs).hold("never", 1, datetime(9999, 1, 1, tzinfo=UTC))
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        async with SchedulerOpener(client[db.name])():
            await quiesce()
            commands.commands.clear()
            await trio.sleep(1800 - LEASE - 1)
            assert commands.commands == []
            await trio.sleep(LEASE + PASS)
            assert jobs.count_documents({"name": "job", "status": "pending", "rescues": 1}) == 1
            # At a lease before it may be taken, and every half of an interval from then on.
            assert 6 <= len(looks(commands)) <= 8
            commands.commands.clear()
            await trio.sleep(86400 * 30)
            assert commands.commands == []
