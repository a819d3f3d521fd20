"""Wakes that come while what was read ahead is still good."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import trio
from trio.testing import MockClock

from trio_monque import Monque, NewJob, RunningJob, Workers
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, assert_enqueued, now, quiesce


async def test_job_enqueued_while_all_slots_are_taken_starts_beside_the_prefetched_one(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    """It was read when there was no more than that; the last of it fills not all that is free then."""
    ends: list[trio.Event] = []

    async def handler(job: RunningJob[Any]) -> None:
        ends.append(trio.Event())
        await ends[-1].wait()

    workers = Workers()
    workers.register("job", handler, concurrency=3)
    await monque.enqueue_many([NewJob(name="job")] * 13)
    async with open_test_scheduler(workers) as scheduler:
        await quiesce()
        for _ in range(3):
            for end in ends[-3:]:
                end.set()
            await quiesce()
        assert len(ends) == 12  # The last one has been read ahead.
        await monque.enqueue("job")
        await quiesce()
        for end in ends:
            end.set()
        await quiesce()
        assert len(ends) == 14
        for end in ends:
            end.set()
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=14)


async def test_suspect_is_found_though_it_could_not_be_seen_when_others_were_read_ahead(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    ends: dict[int, trio.Event] = {}

    async def handler(job: RunningJob[int]) -> None:
        ends[job.data] = trio.Event()
        await ends[job.data].wait()

    async def end(*numbers: int) -> None:
        for number in numbers:
            ends[number].set()
        await quiesce()

    workers = Workers()
    workers.register("job", handler, concurrency=3)
    early = now() - timedelta(days=1)
    for number in range(9):
        await monque.enqueue("job", number, run_at=early + timedelta(seconds=number))
    jobs.update_many({"data": {"$in": [0, 8]}}, {"$set": {"rescues": 2}})
    async with open_test_scheduler(workers) as scheduler:
        await quiesce()
        await end(1, 2)
        await end(3, 4)
        assert ends.keys() == set(range(7))
        await end(0, 5, 6)  # One has been read ahead; the other suspect was not seen then.
        assert ends.keys() == set(range(9))
        await end(7, 8)
        await assert_enqueued(scheduler, status="completed", count=9)
