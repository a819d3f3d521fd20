"""Good jobs start behind any number of documents that no scheduler runs, at a bounded cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.examined import examined
from tests.support.interception import Recorder
from tests.support.store import PAST, handle, insert
from tests.support.thoroughly import in_full, one_in
from trio_monque import RunningJob, Workers
from trio_monque.store import skipped_documents
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import due, due_behind_skipped, indexes
from trio_monque.store.jobs.due import Seen
from trio_monque.store.jobs.due_behind_skipped import Wanted
from trio_monque.testing import SchedulerOpener, advance, drain

pytestmark = pytest.mark.larger_in_full

MANY = in_full(1500, 4000)
BAD: dict[str, dict[str, Any]] = {
    "wrong type": {"failCount": "7"},
    "bears an owner": {"claimedBy": "who?"},
    "missing": {"createdAt": None},
}


def put_bad(jobs: Collection, count: int, kind: str = "wrong type", name: str = "greet", **fields: Any) -> None:
    """Inserts pending documents that were due long ago and cannot be run."""
    whole = {"name": name, "data": {}, "status": "pending", "failCount": 0, "createdAt": PAST, "updatedAt": PAST}
    change = {**BAD[kind], **fields}
    documents = [{**whole, "nextRunAt": PAST - timedelta(seconds=count - number), **change} for number in range(count)]
    jobs.insert_many(
        [{field: value for field, value in one.items() if value is not None} for one in documents], ordered=False
    )


def workers_of(ran: list[ObjectId], *names: str) -> Workers:
    workers = Workers()

    async def run(job: RunningJob[Any]) -> None:
        ran.append(job.id)

    for name in names:
        workers.register(name, run)
    return workers


@pytest.mark.full
@pytest.mark.parametrize("kind", one_in(3, list(BAD)))
async def test_good_jobs_behind_thousands_of_bad_ones_run(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock, kind: str
) -> None:
    put_bad(jobs, MANY, kind)
    good = [insert(handle(db)).id for _ in range(20)]
    ran: list[ObjectId] = []
    async with open_test_scheduler(workers_of(ran, "greet")) as scheduler:
        await drain(scheduler)
        assert sorted(ran) == sorted(good)
        assert (scheduler.health().broken, scheduler.statistics().broken) == (MANY, MANY)
        assert scheduler.is_healthy()
        later = await scheduler.enqueue("greet", delay=5)
        await advance(5)
        await drain(scheduler)
        assert ran[-1] == later.id
        before_all = await scheduler.enqueue("greet", run_at=PAST - timedelta(days=1))
        between = await scheduler.enqueue("greet", run_at=PAST - timedelta(seconds=MANY / 2))
        await drain(scheduler)
        assert {before_all.id, between.id} < set(ran)


@pytest.mark.full
async def test_bad_ones_of_several_names_keep_no_name_from_its_jobs(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    names = ("one", "two", "three")
    for name in names:
        put_bad(jobs, 1500, name=name)
    good = [insert(handle(db), name).id for name in (*names, "four") for _ in range(10)]
    ran: list[ObjectId] = []
    async with open_test_scheduler(workers_of(ran, *names, "four")) as scheduler:
        await drain(scheduler)
        assert sorted(ran) == sorted(good)
        assert scheduler.health().broken == 4500


@pytest.mark.full
async def test_good_jobs_run_in_real_time_while_bad_ones_arrive(
    open_test_scheduler: SchedulerOpener, jobs: Collection
) -> None:
    put_bad(jobs, 2000)
    workers, ran = Workers(), trio.Event()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        ran.set()

    async with open_test_scheduler(workers) as scheduler:
        for _ in range(5):
            ran = trio.Event()
            put_bad(jobs, 500, nextRunAt=datetime.now(PAST.tzinfo))
            await scheduler.enqueue("greet")
            put_bad(jobs, 500, nextRunAt=datetime.now(PAST.tzinfo))
            await ran.wait()


# --- What it costs ---


def look(store: JobCollection, most: int = 10, *, is_announced: bool = True) -> Seen:
    return due.survey(store, {"greet": most}, PAST, is_announced=is_announced)


def complete(store: JobCollection, most: int = 10) -> Sequence[ObjectId]:
    """What looks find until one finds nothing else."""
    found: list[ObjectId] = []
    for number in range(100):
        seen = look(store, most, is_announced=number == 0)
        found += [job.id for job in seen.jobs]
        store.collection.delete_many({"_id": {"$in": [job.id for job in seen.jobs]}})
        if seen.exhausted:
            return found
    raise AssertionError("the looks do not end")


@pytest.mark.full
def test_what_a_look_costs_does_not_grow_with_the_crowd(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_behind_skipped, "KEYS_IN_A_PAGE", 200)
    store = replace(handle(db), has_indexes=True)
    indexes.ensure(store)
    put_bad(jobs, 5000)
    good = insert(store).id
    assert complete(store) == [good]
    good = insert(store).id
    seen, cost = examined(db, lambda: look(store))
    assert [job.id for job in seen.jobs] == [good]
    assert cost.keys <= 2 * due_behind_skipped.MOST_PAGES * (200 + 1) + 10
    assert cost.documents <= 4
    assert not cost.sorted


def test_no_query_names_more_documents_than_it_may(
    monque_client: MongoClient[Any], db: Database, jobs: Collection
) -> None:
    put_bad(jobs, MANY)
    recorder = Recorder()
    with MongoClient[Any](*(monque_client.address or ()), event_listeners=[recorder]) as client:
        store = handle(client[db.name])
        good = insert(store).id
        assert complete(store) == [good]
        again = insert(store).id
        assert complete(store) == [again]
        assert max(len(str(command)) for command in recorder.commands) < 100_000


def test_good_names_pay_nothing_for_a_crowd_of_another_name(
    monque_client: MongoClient[Any], db: Database, jobs: Collection
) -> None:
    put_bad(jobs, MANY)
    recorder = Recorder()
    with MongoClient[Any](*(monque_client.address or ()), event_listeners=[recorder]) as client:
        store = handle(client[db.name])
        complete(store)
        insert(store, "other")
        recorder.commands.clear()
        assert len(due.survey(store, {"other": 10}, PAST).jobs) == 1
        assert len(recorder.commands) == 1


@pytest.mark.full
def test_store_remembers_a_limited_number_of_skipped_documents_and_passes_over_all(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(skipped_documents, "MOST_REMEMBERED", 1200)
    store = handle(db)
    put_bad(jobs, 3000)
    good = [insert(store, run_at=PAST - timedelta(seconds=second)).id for second in (2000, 1000, 0)]
    assert sorted(complete(store)) == sorted(good)
    assert store.count_skipped() == 1200
    assert len(caplog.records) == skipped_documents.MOST_NEWS


@pytest.mark.full
def test_crowd_that_is_gone_is_forgotten(db: Database, jobs: Collection) -> None:
    store = handle(db)
    put_bad(jobs, 2000)
    assert complete(store) == []
    jobs.delete_many({})
    assert complete(store) == []
    assert store.count_skipped() == 0


@pytest.mark.full
def test_crowd_that_is_mended_at_once_is_claimed_within_the_next_looks(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = [1000.0]
    monkeypatch.setattr(skipped_documents, "steady_moment", lambda: moment[0])
    store = handle(db)
    put_bad(jobs, 1500)
    assert complete(store) == []
    jobs.update_many({}, {"$set": {"failCount": 0}})
    moment[0] += skipped_documents.LOOK_AGAIN_AFTER
    assert len(complete(store, 200)) == 1500


@pytest.mark.full
def test_job_that_comes_to_lie_before_the_place_of_the_looks_is_found(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Released, mended by hand, or due earlier: within as many looks as the crowd has pages, while others run."""
    monkeypatch.setattr(due_behind_skipped, "KEYS_IN_A_PAGE", 100)
    store = handle(db)
    put_bad(jobs, 2500)
    assert complete(store) == []
    before = [insert(store, run_at=PAST - timedelta(seconds=second)).id for second in (9000, 2000, 1000, 1)]
    behind = insert(store).id
    assert [job.id for job in look(store).jobs if job.id not in before] == [behind]
    assert sorted(complete(store)) == sorted([*before, behind])


@pytest.mark.parametrize("ahead", [-1, 1], ids=["due", "some dates are in the future"])
def test_page_full_of_arrays_of_dates_hides_no_job_behind_it(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setattr(due_behind_skipped, "KEYS_IN_A_PAGE", 5)
    store = replace(handle(db, operation_timeout=30.0), has_indexes=True)
    indexes.ensure(store)
    dates = [PAST - timedelta(days=2), PAST + timedelta(days=ahead)]
    put_bad(jobs, 12, "missing", nextRunAt=dates)
    good = insert(store, run_at=PAST - timedelta(seconds=1))
    assert due_behind_skipped.earliest(store, "greet", PAST) == good.next_run_at
    wanted = Wanted(name="greet", most=1, now=PAST, suspects=True)
    assert due_behind_skipped.look(store, wanted, is_announced=False)[0] == [good]


def test_suspects_in_a_crowd_hide_no_innocents(db: Database, jobs: Collection) -> None:
    store = handle(db)
    put_bad(jobs, 1500)
    suspects = [insert(store).id for _ in range(20)]
    jobs.update_many({"_id": {"$in": suspects}}, {"$set": {"rescues": 2}})
    innocent = insert(store).id
    look(store)
    found = due.survey(store, {"greet": 5}, PAST, suspects=False)
    assert [job.id for job in found.jobs] == [innocent]
    assert sorted(complete(store)) == sorted([*suspects, innocent])
