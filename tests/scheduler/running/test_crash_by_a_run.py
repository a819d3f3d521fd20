"""A run that crashes its scheduler counts as a death, so that it ends few schedulers. Its neighbours are released."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_monque import JobStatus, Monque, RunningJob, Workers
from trio_monque.engine.run_end import RunEnd
from trio_monque.jobs.job import Job
from trio_monque.scheduler.events_and_report import JobReporter
from trio_monque.scheduler.runs import JobRuns
from trio_monque.scheduler.settlement import JobSettlement
from trio_monque.scheduler.settling import Batch, JobSettling
from trio_monque.testing import SchedulerOpener

NEIGHBOURS = 3


def breaks_conclusions(monkeypatch: pytest.MonkeyPatch) -> None:
    conclude = JobRuns.conclude

    def broken(self: JobRuns, claim: Job, end: RunEnd) -> JobSettlement:
        if claim.name == "poison" and end.reason is None:
            raise SystemExit("a bug")
        return conclude(self, claim, end)

    monkeypatch.setattr(JobRuns, "conclude", broken)


def breaks_the_settler(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = JobSettling.settle

    async def broken(self: JobSettling, batch: Batch) -> Any:
        if any(one.job.name == "poison" for one in batch.settlements):
            raise ZeroDivisionError("a bug")
        return await settle(self, batch)

    monkeypatch.setattr(JobSettling, "settle", broken)


def breaks_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    started = JobReporter.run_started

    def broken(self: JobReporter, claim: Job) -> None:
        if claim.name == "poison":
            raise ZeroDivisionError("a bug")
        started(self, claim)

    monkeypatch.setattr(JobReporter, "run_started", broken)


@pytest.fixture(params=[breaks_conclusions, breaks_the_settler, breaks_starts])
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks: Callable[[pytest.MonkeyPatch], None] = request.param
    breaks(monkeypatch)


@pytest.mark.full
@pytest.mark.usefixtures("broken")
async def test_poison_ends_as_many_schedulers_as_deaths_are_allowed_and_is_given_up(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("poison")
    async def poison(job: RunningJob[Any]) -> None:
        await trio.sleep(1)

    @workers.register("neighbour")
    async def neighbour(job: RunningJob[Any]) -> None:
        await trio.sleep(100)

    guilty = await monque.enqueue("poison")
    others = [await monque.enqueue("neighbour") for _ in range(NEIGHBOURS)]
    crashes = 0
    for _ in range(8):
        try:
            async with open_test_scheduler(workers, max_rescues=1):
                await trio.sleep(1000)
        except (ZeroDivisionError, SystemExit):
            crashes += 1
    stored = await monque.get_job(guilty.id)
    assert stored is not None
    assert (stored.status, stored.fail_reason, crashes) == (JobStatus.FAILED, "died 2 times while running", 2)
    for other in others:
        found = await monque.get_job(other.id)
        assert found is not None
        assert (found.status, found.fail_count, found.rescues) == (JobStatus.COMPLETED, 0, 0)
