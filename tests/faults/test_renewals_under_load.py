"""Renewals do not wait behind what else goes through the same scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, Final

import pytest
import trio

from trio_monque import Job, RunningJob, Scheduler, Workers, open_scheduler
from trio_monque.engine.source import ClaimState
from trio_monque.scheduler.job_source import JobSource
from trio_monque.store.types import Database

HEARTBEAT: Final = 1.0
TENTH_OF_THE_LEASE: Final = 3 * HEARTBEAT / 10
TASKS: Final = 200
BEATS: Final = 3


class Beats:
    """When each was sent and acknowledged, on trio's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[float] = []
        self.acknowledged: list[float] = []
        renew = JobSource.renew

        async def recorded(source: JobSource, claims: Sequence[Job]) -> Sequence[ClaimState]:
            self.sent.append(trio.current_time())
            states = await renew(source, claims)
            self.acknowledged.append(trio.current_time())
            return states

        monkeypatch.setattr(JobSource, "renew", recorded)

    async def wait(self, count: int) -> None:
        with trio.fail_after(20):
            while len(self.acknowledged) < count:
                await trio.sleep(0.01)

    @property
    def delays(self) -> Sequence[float]:
        """Of each beat after the first one, from when it was due until it was acknowledged."""
        due = [self.sent[0] + number * HEARTBEAT for number in range(len(self.acknowledged))]
        return [acknowledged - at for acknowledged, at in zip(self.acknowledged, due, strict=True)][1:]

    @property
    def durations(self) -> Sequence[float]:
        """Of each beat after the first one, from when it was sent."""
        return [acknowledged - sent for sent, acknowledged in zip(self.sent, self.acknowledged, strict=False)][1:]


async def test_two_hundred_enqueuing_tasks_do_not_delay_a_renewal(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats, workers = Beats(monkeypatch), Workers()
    enqueues: list[float] = []

    @workers.register("held", concurrency=5)
    async def held(job: RunningJob[Any]) -> None:
        await trio.sleep_forever()

    async def enqueue_without_pause(scheduler: Scheduler, task: int) -> None:
        while True:
            asked = trio.current_time()
            # With a key of its own each is a command of its own; others are sent together.
            await scheduler.enqueue("elsewhere", unique_key=f"{task}-{asked}")
            enqueues.append(trio.current_time() - asked)

    async with open_scheduler(db, workers, heartbeat_interval=HEARTBEAT, shutdown_timeout=0) as scheduler:
        for _ in range(5):
            await scheduler.enqueue("held")
        await beats.wait(1)  # By this one the others are measured.
        async with trio.open_nursery() as nursery:
            for task in range(TASKS):
                nursery.start_soon(enqueue_without_pause, scheduler, task)
            await beats.wait(1 + BEATS)
            nursery.cancel_scope.cancel()
    assert max(beats.delays) < TENTH_OF_THE_LEASE
    # Nor would it on a slower server: it stands in no queue with them.
    assert median(beats.durations) < median(enqueues) / 2
