"""Queue views: what is stored, what this scheduler runs, and both."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_monque import Monque, QueueStats, QueueView, RunningJob, Workers, WorkerView
from trio_monque.store.types import Collection
from trio_monque.testing import SchedulerOpener, quiesce

FAR = datetime(2090, 1, 1, tzinfo=UTC)


async def test_j112_views_are_of_stored_names_of_workers_and_of_both_sorted_and_immutable(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    finish = trio.Event()

    @workers.register("b-both", concurrency=3)
    async def both(job: RunningJob[Any]) -> None:
        await finish.wait()

    @workers.register("a-worker")
    async def worker(job: RunningJob[Any]) -> None: ...

    await monque.enqueue("c-stored", run_at=FAR)
    jobs.insert_one({"name": 5, "status": "processing"})  # No name at all.
    async with open_test_scheduler(workers, worker_concurrency=7) as scheduler:
        for _ in range(5):
            await scheduler.enqueue("b-both")
        await quiesce()
        views = await scheduler.get_queue_view_summaries()
        assert views == (
            QueueView(name="a-worker", has_jobs=False, stats=QueueStats(), worker=WorkerView(concurrency=7, active=0)),
            QueueView(
                name="b-both",
                has_jobs=True,
                stats=QueueStats(pending=2, processing=3),
                worker=WorkerView(concurrency=3, active=3),
            ),
            QueueView(name="c-stored", has_jobs=True, stats=QueueStats(pending=1), worker=None),
        )
        assert await trio.to_thread.run_sync(scheduler.sync.get_queue_view_summaries) == views
        with pytest.raises(FrozenInstanceError):
            views[0].name = "another"  # type: ignore[misc]
        assert [view.worker for view in await monque.get_queue_view_summaries()] == [None, None]
        finish.set()
    assert [view.stats.completed for view in monque.sync.get_queue_view_summaries()] == [3, 0]
