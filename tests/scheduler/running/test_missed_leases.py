"""Runs that miss their lease deadline are released uncounted, but not without end."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.transactions import stored
from trio_monque import Monque, RunningJob, Workers
from trio_monque.engine import pauses
from trio_monque.testing import SchedulerOpener, advance, fail_next


@pytest.fixture(autouse=True)
def outage_takes_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)


MISSED = 200.0
"""Seconds: enough for a run to miss its lease deadline, and for the next one to begin."""


@pytest.mark.full
@pytest.mark.parametrize("of", ["job", "scheduler"])
async def test_runs_that_miss_their_lease_each_time_are_a_failed_attempt_at_last(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, of: str
) -> None:
    workers = Workers()

    @workers.register("job", max_attempts=1)
    async def job(job: RunningJob[Any]) -> None:
        await trio.sleep_forever()

    async with open_test_scheduler(workers, max_rescues=2 if of == "scheduler" else 9) as scheduler:
        with fail_next(scheduler, AutoReconnect("gone"), command="renew claims", times=None):
            job_id = await scheduler.enqueue("job", max_rescues=2 if of == "job" else None)
            await advance(10 * MISSED)
    after = await stored(monque, job_id)
    assert (after.status, after.attempts, after.fail_count, after.rescues) == ("failed", 3, 1, 0)
    assert "MissedLeaseError: 3 runs in a row" in str(after.fail_reason)


async def test_run_that_ends_otherwise_begins_the_count_anew(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("job", max_attempts=2, backoff=1)
    async def job(job: RunningJob[Any]) -> None:
        if job.attempt == 3:
            raise ValueError("not yet")
        if job.attempt < 6:
            await trio.sleep_forever()

    async with open_test_scheduler(workers) as scheduler:
        with fail_next(scheduler, AutoReconnect("gone"), command="renew claims", times=None):
            job_id = await scheduler.enqueue("job", max_rescues=2)
            await advance(20 * MISSED)
    after = await stored(monque, job_id)
    assert (after.status, after.attempts, [one["error"] for one in after.errors]) == (
        "completed",
        6,
        ["ValueError: not yet"],
    )
