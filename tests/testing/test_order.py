"""Two runs agree: by default in what happens at which instant, in a deterministic run in the whole sequence."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
import trio
from trio._core import _run as run_of_trio
from trio.testing import MockClock

from trio_monque import MonqueError, RunningJob, Workers
from trio_monque.events import Event
from trio_monque.store.driver.types import Database
from trio_monque.testing import SchedulerOpener, drain, now, run_virtual
from trio_monque.testing.virtual_run import FIRST_MOMENT

Happened = tuple[datetime, str, object]


async def busy_hour(db: Database) -> list[Happened]:
    """Async and plain handlers, retries with jitter, enqueues from handlers, callbacks from threads, two schedulers."""
    sequence: list[Happened] = []
    workers = Workers()

    def saw(what: str, data: object) -> None:
        sequence.append((now(), what, data))

    @workers.register("async", concurrency=4)
    async def asynchronous(job: RunningJob[int]) -> None:
        saw("began", job.data)
        await trio.sleep(job.data % 3)
        saw("middle", job.data)
        if job.data % 5 == 0 and job.fail_count < 2:
            raise ConnectionError(f"{job.data} fails")
        if job.data < 100:
            await job.scheduler.enqueue("plain", job.data + 100, delay=job.data % 4)

    @workers.register("plain", concurrency=3)
    def plain(job: RunningJob[int]) -> None:
        job.from_thread(saw, "in thread", job.data)
        job.from_thread(trio.sleep, 2)
        job.from_thread(job.save, {"at": job.data})
        if job.data % 7 == 0 and job.fail_count < 1:
            raise ValueError(job.data)

    async def hear(event: Event) -> None:
        job = getattr(event, "job", None)
        saw(type(event).__name__, None if job is None else (job.data, job.fail_count))

    def hear_in_thread(event: Event) -> None:
        sequence.append((now(), f"thread: {type(event).__name__}", None))

    opener = SchedulerOpener(db)
    async with (
        opener(workers, listeners={Event: [hear, hear_in_thread]}, heartbeat_interval=5) as one,
        opener(workers, listeners={Event: hear}) as two,
        trio.open_nursery() as nursery,
    ):
        for number in range(10):
            nursery.start_soon(partial(one.enqueue, "async", number))
            nursery.start_soon(partial(two.enqueue, "plain", number))
        await drain(one, until=now() + timedelta(hours=1))
    return sequence


def run_twice(db: Database, *seeds: int) -> list[list[Happened]]:
    sequences = []
    for seed in seeds:
        sequences.append(run_virtual(busy_hour, db, deterministic=True, seed=seed))
        db.client.drop_database(db.name)
    return sequences


@pytest.mark.full
def test_same_seed_makes_the_same_sequence_and_another_makes_another(monque_db: Database) -> None:
    one, again, other = run_twice(monque_db, 1, 1, 2)
    assert len(one) > 100
    assert one == again
    assert one[0][0] == FIRST_MOMENT
    assert one != other


async def hourly_with_retries(db: Database) -> list[Happened]:
    workers = Workers()
    happened: list[Happened] = []

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        await trio.sleep(90)
        if job.next_run_at.hour % 2 and job.fail_count == 0:
            raise ConnectionError("odd")

    async def hear(event: Event) -> None:
        job = getattr(event, "job", None)
        happened.append((now(), type(event).__name__, job and job.data))

    opener = SchedulerOpener(db)
    async with opener(workers, listeners={Event: hear}, retry_jitter=0, base_retry_interval=60) as scheduler:
        for data in ("a", "b", "c", "d"):
            await scheduler.schedule("0 * * * *", "job", data)
        await drain(scheduler, until=now() + timedelta(days=1))
    return happened


@pytest.mark.full
def test_by_default_the_same_happens_at_each_instant(monque_db: Database) -> None:
    happened = []
    for _ in range(2):
        happened.append(Counter(run_virtual(hourly_with_retries, monque_db, start=FIRST_MOMENT)))
        monque_db.client.drop_database(monque_db.name)
    assert happened[0].total() == 4 * (24 + 12) * 2
    assert happened[0] == happened[1]


def test_what_it_raises_tells_the_seed() -> None:
    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        run_virtual(fails, deterministic=True, seed=1234)
    assert "seed=1234" in "".join(caught.value.__notes__)


def test_it_leaves_chance_as_it_found_it() -> None:
    async def nothing() -> float:
        return random.random()

    random.seed(5)
    expected = random.random()
    random.seed(5)
    assert run_virtual(nothing, deterministic=True, seed=1) == run_virtual(nothing, deterministic=True, seed=1)
    assert random.random() == expected
    assert run_of_trio._ALLOW_DETERMINISTIC_SCHEDULING is _ALLOWED


_ALLOWED = run_of_trio._ALLOW_DETERMINISTIC_SCHEDULING


def test_threads_take_turns(monque_db: Database) -> None:
    """While one works, neither another thread nor the loop does anything."""
    working: list[str] = []
    overlaps: list[list[str]] = []
    workers = Workers()

    def work(name: str) -> None:
        working.append(name)
        if len(working) > 1:
            overlaps.append(list(working))
        for _ in range(100):
            time.sleep(0)  # Gives the others every chance.
        working.remove(name)

    @workers.register("plain", concurrency=5)
    def plain(job: RunningJob[int]) -> None:
        work(f"plain {job.data}")

    @workers.register("async", concurrency=5)
    async def asynchronous(job: RunningJob[int]) -> None:
        work(f"async {job.data}")

    async def main() -> int:
        async with SchedulerOpener(monque_db)(workers) as scheduler:
            for number in range(10):
                await scheduler.enqueue("plain", number)
                await scheduler.enqueue("async", number)
            await drain(scheduler)
        assert scheduler.report is not None
        return scheduler.report.completed

    assert run_virtual(main, deterministic=True) == 20
    assert overlaps == []


async def test_opened_scheduler_can_be_deterministic(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler(deterministic=True, seed=7):
        assert now() == FIRST_MOMENT
    assert open_test_scheduler.seeds == [7]


async def test_real_time_has_no_reproducible_order(open_test_scheduler: SchedulerOpener) -> None:
    with pytest.raises(MonqueError, match="virtual clock"):
        async with open_test_scheduler(deterministic=True):
            pass
    assert Counter(open_test_scheduler.seeds) == Counter()
