"""enqueue with on_conflict="debounce": calls that come one after the other become one job, soon after the last."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier, Event
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.store import PAST, claim_due, handle
from tests.support.waiting import wait_until
from trio_monque import Monque, RunningJob, Workers, open_scheduler
from trio_monque.errors import InvalidOptionError
from trio_monque.jobs import Enqueued
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, drain

DEBOUNCE: dict[str, Any] = {"unique_key": "k", "on_conflict": "debounce"}


def debounce(monque: Monque, data: Any, delay: float, **options: Any) -> Enqueued[Any]:
    return monque.sync.enqueue_with_outcome("index", data, delay=delay, **DEBOUNCE, **options)


def indexing(ran: list[tuple[Any, float]], seconds: float = 0.0) -> Workers:
    workers = Workers()

    @workers.register("index")
    async def index(job: RunningJob[Any]) -> None:
        ran.append((job.data, trio.current_time()))
        await trio.sleep(seconds)

    return workers


async def test_each_call_delays_the_job_and_the_last_data_are_run(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    ran = list[tuple[Any, float]]()
    start = trio.current_time()
    async with open_test_scheduler(indexing(ran)) as scheduler:
        outcomes = []
        for number in range(4):
            enqueued = await scheduler.enqueue_with_outcome("index", number, delay=5, **DEBOUNCE)
            outcomes.append(enqueued.outcome)
            await advance(4)
        await advance(10)
        assert outcomes == ["created", "replaced", "replaced", "replaced"]
        ((data, at),) = ran
        assert (data, round(at - start)) == (3, 17)


@pytest.mark.full
async def test_steady_calls_do_not_delay_the_job_beyond_its_longest_wait(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    ran = list[tuple[Any, float]]()
    start = trio.current_time()
    async with open_test_scheduler(indexing(ran, seconds=10.5)) as scheduler:
        for number in range(100):
            await scheduler.enqueue("index", number, delay=5, max_wait=30, **DEBOUNCE)
            await advance(1)
        await drain(scheduler)
    begins = [at - start for _, at in ran]
    # Of the calls during a run, the first begins the wait of the next run.
    assert [round(begin) for begin in begins[:3]] == [30, 60, 90]
    assert [data for data, _ in ran][:3] == [29, 59, 89]


async def test_retry_of_data_that_have_run_does_not_count_as_their_wait(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("index", backoff=3600)
    async def index(job: RunningJob[Any]) -> None:
        if job.data == 1:
            raise ValueError("no")

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("index", 1, delay=5, max_wait=10, **DEBOUNCE)
        await advance(60)
        again = await scheduler.enqueue_with_outcome("index", 2, delay=5, max_wait=10, **DEBOUNCE)
        assert again.outcome == "replaced"
        assert again.job.next_run_at == again.job.updated_at + timedelta(seconds=5)


def test_due_dates_of_calls_on_a_pending_and_on_a_running_job(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    created = debounce(monque, 1, 60, max_wait=20).job
    assert created.debounced_since is not None
    assert created.next_run_at == created.debounced_since + timedelta(seconds=20)
    without_limit = debounce(monque, 2, 60).job
    assert without_limit.next_run_at == without_limit.updated_at + timedelta(seconds=60)
    assert without_limit.debounced_since == created.debounced_since
    jobs.update_one({}, {"$set": {"nextRunAt": PAST}})
    assert claim_due(handle(db), {"index": 1})
    first = debounce(monque, 3, 10).job
    second = debounce(monque, 4, 60, max_wait=30).job
    assert first.again is not None
    assert second.again is not None
    since = first.again.debounced_since
    assert since is not None
    assert (second.data, second.again.data, second.again.debounced_since) == (2, 4, since)
    assert first.again.next_run_at == since + timedelta(seconds=10)
    assert second.again.next_run_at == since + timedelta(seconds=30)
    replaced = monque.sync.enqueue("index", 5, unique_key="k", on_conflict="replace")
    assert replaced.again is not None
    assert (replaced.again.data, replaced.again.debounced_since) == (5, None)


def test_job_that_was_enqueued_otherwise_waits_from_the_call_on(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    monque.sync.enqueue("index", 1, unique_key="k", delay=3600)
    enqueued = debounce(monque, 2, 60, max_wait=30)
    assert enqueued.outcome == "replaced"
    assert enqueued.job.debounced_since == enqueued.job.updated_at
    assert enqueued.job.next_run_at == enqueued.job.updated_at + timedelta(seconds=30)


@pytest.mark.full
def test_racing_calls_become_one_job_with_the_data_of_one_of_them(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    debounce(monque, -1, 60)
    jobs.delete_many({})
    calls, threads = 1000, 8
    barrier = Barrier(threads)

    def call(first: int) -> list[Enqueued[Any]]:
        barrier.wait()
        return [debounce(monque, number, 60, max_wait=90) for number in range(first, calls, threads)]

    with ThreadPoolExecutor(threads) as pool:
        enqueued = [one for part in pool.map(call, range(threads)) for one in part]
    assert sorted(one.outcome for one in enqueued) == ["created", *["replaced"] * (calls - 1)]
    (document,) = jobs.find()
    last = max((one.job for one in enqueued), key=lambda job: job.internals.rev)
    assert (document["rev"], document["data"], document["nextRunAt"]) == (calls - 1, last.data, last.next_run_at)
    assert {one.job.debounced_since for one in enqueued} == {last.debounced_since}


@pytest.mark.full
def test_job_starts_although_calls_never_stop(db: Database, jobs: Collection) -> None:
    """Each call makes the copy stale that a scheduler has read for its claim."""
    workers, ran, stop = Workers(), list[int](), Event()

    @workers.register("index")
    async def index(job: RunningJob[int]) -> None:
        ran.append(job.data)

    monque = Monque(db)

    def call(first: int) -> int:
        for number in range(first, 100_000, 4):
            debounce(monque, number, 0.05, max_wait=0.2)
            if stop.is_set():
                break
        return number

    async def main() -> None:
        async with open_scheduler(db, workers):
            with ThreadPoolExecutor(4) as pool:
                futures = [pool.submit(call, first) for first in range(4)]
                try:
                    await trio.to_thread.run_sync(lambda: wait_until(lambda: len(ran) >= 20, "twenty runs"))
                finally:
                    stop.set()
                last = [await trio.to_thread.run_sync(one.result) for one in futures]
            await trio.to_thread.run_sync(
                # A call after the end of a run makes another job.
                lambda: wait_until(lambda: not jobs.count_documents({"status": {"$ne": "completed"}}), "the last run")
            )
            # The last word of all is the last of one of the threads, and it has run.
            assert ran[-1] in last

    trio.run(main)
    assert len(ran) == len(set(ran))
    assert jobs.count_documents({"again": {"$exists": True}}) == 0


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"unique_key": "k"}, "on_conflict"),
        ({"delay": 1}, "on_conflict"),
        ({"unique_key": "k", "run_at": PAST}, "on_conflict"),
        ({"unique_key": "k", "delay": 1, "max_wait": -1}, "max_wait"),
        ({"unique_key": "k", "delay": 1, "max_wait": 1e12}, "max_wait"),
        ({"unique_key": "k", "delay": 1, "max_wait": 1, "on_conflict": "replace"}, "max_wait"),
    ],
    ids=str,
)
async def test_invalid_options_are_refused_before_any_call(db: Database, options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidOptionError, match=name):
        await Monque(db).enqueue("index", **{"on_conflict": "debounce", **options})
    assert db.list_collection_names() == []


def test_longest_wait_moves_the_due_date_and_not_the_latest_start(db: Database) -> None:
    monque = Monque(db)
    latest = monque.sync.enqueue("other").created_at + timedelta(days=1)
    debounce(monque, 1, 60, max_wait=90, start_by=latest)
    job = debounce(monque, 2, 60, max_wait=90, start_by=latest).job
    assert job.limits.start_by == latest
