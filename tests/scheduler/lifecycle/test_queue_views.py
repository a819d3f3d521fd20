"""Queue views: what is stored, what this scheduler runs, and both."""

from __future__ import annotations

import random
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Recorder
from tests.support.store import handle
from trio_monque import JobStatus, Monque, RunningJob, Workers
from trio_monque.jobs import QueueStats, QueueView, WorkerView
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import indexes
from trio_monque.store.reads import counts_by_name
from trio_monque.testing import SchedulerOpener, quiesce

FAR = datetime(2090, 1, 1, tzinfo=UTC)


async def test_views_of_stored_names_of_workers_and_of_both_are_sorted_and_immutable(
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
    async with open_test_scheduler(workers, concurrency_per_name=7) as scheduler:
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
    assert [view.stats.completed for view in monque.sync_in_loop.get_queue_view_summaries()] == [3, 0]


def stored(jobs: Collection, names: int) -> None:
    """Stores jobs of several names in all statuses, and foreign documents beside them."""
    chance = random.Random(7)
    made = datetime(2030, 1, 1, tzinfo=UTC)
    documents: list[dict[str, Any]] = []
    for number in range(names):
        for status in [*JobStatus, "unheard of"]:
            for place in range(chance.randrange(4)):
                ended = made + timedelta(seconds=chance.randrange(1, 1000))
                documents.append(
                    {
                        "name": f"name-{number:03}",
                        "status": str(status),
                        "nextRunAt": made + timedelta(hours=place),
                        "createdAt": made,
                        "updatedAt": ended if chance.random() < 0.9 else "no date",
                    }
                )
    documents += [{"name": "x" * 1001, "status": "pending"}, {"name": "", "status": "pending"}, {"name": 5}]
    jobs.insert_many(documents)


@pytest.mark.parametrize("names", [3, 60])
@pytest.mark.parametrize("has_indexes", [True, False])
def test_views_of_any_number_of_names_have_the_statistics_of_each(
    db: Database, jobs: Collection, names: int, has_indexes: bool
) -> None:
    stored(jobs, names)
    monque = Monque(db, skip_index_creation=not has_indexes, stats_cache_ttl=0)
    if has_indexes:
        monque.sync.enqueue("name-000", run_at=FAR)
    views = {view.name: view.stats for view in monque.sync.get_queue_view_summaries()}
    assert views.pop("x" * 1001) == QueueStats(pending=1)
    assert len(views) == names
    assert views == {name: without_lifetime(monque.sync.get_queue_stats(name=name)) for name in views}


def without_lifetime(stats: QueueStats) -> QueueStats:
    return replace(stats, average_lifetime=None, averaged=0)


STATUSES_AT_REST = ("pending", "completed", "failed", "cancelled")


def check_bounds(counted: dict[str, QueueStats], exact: dict[str, QueueStats]) -> None:
    """A number is exact, or it is less and its status is capped."""
    assert counted.keys() == exact.keys()
    for name, stats in counted.items():
        assert stats.processing == exact[name].processing
        for status in STATUSES_AT_REST:
            number, true = getattr(stats, status), getattr(exact[name], status)
            assert number == true or (number < true and status in stats.capped), (name, status, stats)


@pytest.mark.full
@pytest.mark.parametrize("most_lookups", [0, 200])
@pytest.mark.parametrize("has_indexes", [True, False])
def test_overview_beyond_its_number_of_keys_has_lower_bounds_and_marks_them(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch, most_lookups: int, has_indexes: bool
) -> None:
    monkeypatch.setattr(counts_by_name, "MOST_LOOKED_UP", most_lookups)
    stored(jobs, 60)
    handle_of_jobs = handle(db)
    if has_indexes:
        indexes.ensure(handle_of_jobs)
    exact = counts_by_name.counts_by_name(handle_of_jobs)
    assert not any(stats.capped for stats in exact.values())
    for most_keys in (1, 2, 100, 237, 240):
        counted = counts_by_name.counts_by_name(handle_of_jobs, most_keys)
        check_bounds(counted, exact)
        assert any(stats.capped for stats in counted.values())
        at_rest = sum(stats.total - stats.processing for stats in counted.values())
        # A lookup counts at least one of each status of a name.
        assert at_rest <= (most_keys if not most_lookups else max(most_keys, 4 * 61))


@pytest.mark.parametrize("most_keys", [1, 2, 3, 400_000], ids="most_keys={}".format)
@pytest.mark.parametrize("most_lookups", [0, 200])
def test_documents_whose_name_or_status_is_a_list_do_not_disturb_the_overview(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch, most_lookups: int, most_keys: int
) -> None:
    """To the server, a list of texts matches as a text does."""
    monkeypatch.setattr(counts_by_name, "MOST_LOOKED_UP", most_lookups)
    # The first of their status in the order of the index.
    jobs.insert_many(
        [
            {"name": ["a"], "status": "pending"},
            {"name": ["a"], "status": "processing"},
            {"name": "b", "status": ["completed"]},
            {"name": "c", "status": "pending"},
            {"name": "c", "status": "processing"},
        ]
    )
    handle_of_jobs = handle(db)
    indexes.ensure(handle_of_jobs)
    counted = counts_by_name.counts_by_name(handle_of_jobs, most_keys)
    assert counted.keys() <= {"a", "b", "c"}
    assert counted["c"].processing == 1
    assert counted["c"].pending == 1 or "pending" in counted["c"].capped


def test_walk_that_ends_with_the_last_key_may_not_have_seen_all(db: Database, jobs: Collection) -> None:
    """Where the limit is reached, nothing says whether more would have come: the last status is a lower bound."""
    jobs.insert_many([{"name": f"name-{number:03}", "status": "pending"} for number in range(300)])
    handle_of_jobs = handle(db)
    indexes.ensure(handle_of_jobs)
    for most_keys, capped in ((301, 0), (300, 1), (299, 2)):
        counted = counts_by_name.counts_by_name(handle_of_jobs, most_keys)
        assert sum(bool(stats.capped) for stats in counted.values()) == capped
        assert counted["name-299"].capped >= ({"pending"} if capped else set())


def test_many_names_are_one_question(mongod: Any, db: Database, jobs: Collection) -> None:
    stored(jobs, 60)
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        monque = Monque(client[db.name])
        monque.sync.enqueue("name-000", run_at=FAR)  # Makes the indexes, without which each hint is a command more.
        recorder.commands.clear()
        first = monque.sync.get_queue_view_summaries()
        asked = len(recorder.commands)
        assert asked <= 4, "the names, how many documents there are, the running jobs, and all others"
        assert monque.sync.get_queue_view_summaries() == first
        assert len(recorder.commands) - asked <= 4, "the statistics are kept"
