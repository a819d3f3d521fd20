"""At a hundred thousand jobs each question examines its answer and a constant, or says that it was capped."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import ServerSelectionTimeoutError, WaitQueueTimeoutError

from tests.support import many_jobs
from tests.support.examined import examined
from tests.support.many_jobs import BEGIN, RARE_NAME
from tests.support.store import handle
from tests.support.thoroughly import one_in
from trio_monque import JobFilter, JobStatus, Monque
from trio_monque.errors import AggregationTimeoutError, MonqueConnectionError
from trio_monque.jobs import JobSort
from trio_monque.jobs.job_query import page_query
from trio_monque.jobs.views import page_of
from trio_monque.store.driver.types import Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import index_scans, indexes
from trio_monque.store.reads import counts_by_name, job_counts, queries

pytestmark = pytest.mark.timeout(300)  # Of the first test, in which they are inserted.

NUMBER = 100_000
# Seconds for one command, however busy the machine: what is asserted is what a command examines.
PATIENT = 300.0
RUNNING = NUMBER // 1_000
# One key for each range that is merged, and what ends a range.
RANGES = 20
# One for each name, where it must be known which there are; of some statuses a range for each of those, or two.
NAMES = len(many_jobs.NAMES) + 1


@pytest.fixture(scope="module")
def many(client: MongoClient[Any]) -> Iterator[Database]:
    database = client[f"monque_test_{secrets.token_hex(6)}"]
    many_jobs.insert(database["monque_jobs"], NUMBER)
    indexes.ensure(handle(database, operation_timeout=PATIENT))
    yield database
    client.drop_database(database)


@pytest.fixture(scope="module")
def store(many: Database) -> JobCollection:
    return handle(many, operation_timeout=PATIENT)


ORDERS = ("id", "created_at", "updated_at", "next_run_at")
MIDDLE = BEGIN + timedelta(milliseconds=25)


def served() -> Iterator[tuple[Any, JobFilter]]:
    """Each order and filter that the table of `scans_of` names an index for."""
    some = {
        "all": JobFilter(),
        "rare status": JobFilter(status="cancelled"),
        "statuses": JobFilter(status=("failed", "completed")),
        "running": JobFilter(status="processing"),
        "live": JobFilter(status=("pending", "processing")),
        "name": JobFilter(name="mail"),
        "rare name": JobFilter(name=RARE_NAME),
        "names": JobFilter(name=("mail", RARE_NAME)),
        "name and status": JobFilter(name=RARE_NAME, status="failed"),
    }
    of_status = ("rare status", "statuses", "running", "live")
    named = {
        "id": ("all",),
        "created_at": ("all",),
        "updated_at": ("all", *of_status),
        "next_run_at": ("all", *of_status, "name", "rare name", "names", "name and status"),
    }
    for by, filters in named.items():
        for which in filters:
            yield by, some[which]
    for by, ends in (
        ("created_at", {"created_from": MIDDLE, "created_to": MIDDLE}),
        ("created_at", {"newer_than": MIDDLE}),
        ("updated_at", {"updated_to": MIDDLE, "status": "failed"}),
        ("next_run_at", {"run_from": MIDDLE, "name": "mail", "status": "pending"}),
    ):
        yield by, JobFilter(**ends)


WAYS = [(direction, order) for direction in ("forward", "backward") for order in ("asc", "desc")]


@pytest.mark.parametrize(("asked", "way"), one_in(8, list(served()), WAYS))
def test_page_examines_what_it_shows_and_a_constant(
    many: Database, asked: tuple[Any, JobFilter], way: tuple[Any, Any]
) -> None:
    (by, which), (direction, order), monque = asked, way, Monque(many)
    cursor = None
    for _ in range(3):
        page, cost = examined(
            many,
            lambda cursor=cursor: monque.sync.get_jobs_with_cursor(  # type: ignore[misc]
                cursor=cursor, limit=50, direction=direction, filter=which, sort=JobSort(by=by, direction=order)
            ),
        )
        assert not page.is_capped
        # What runs is read beside the others, in the same snapshot.
        running = RUNNING if "IXSCAN { status: 1, claimedBy: 1, lockedAt: 1, name: 1 }" in cost.plans else 0
        assert cost.documents <= len(page.jobs) + 1 + running, cost
        assert cost.keys <= len(page.jobs) + 1 + running + RANGES + NAMES, cost
        assert not running or cost.sorted
        assert running or not cost.sorted, cost
        cursor = page.cursor


@pytest.mark.parametrize("by", ORDERS)
def test_page_of_any_other_filter_examines_at_most_the_cap_and_is_marked_as_capped(
    store: JobCollection, by: Any
) -> None:
    """And going on finds all that there is."""
    which = JobFilter(name=RARE_NAME, status="failed", fail_reason="declined", created_from=BEGIN)
    if by in ("created_at", "id"):
        which = JobFilter(name=RARE_NAME, status="failed", fail_reason="declined")
    wanted_ids = {
        one["_id"]
        for one in store.collection.find({"name": RARE_NAME, "status": "failed", "failReason": {"$regex": "decl"}})
    }
    assert wanted_ids
    cap, found, cursor, was_capped = 20_000, [], None, False
    for _ in range(NUMBER // cap + 2):
        query = page_query(cursor, 50, "forward", which, JobSort(by=by))
        answer, cost = examined(
            store.collection.database,
            lambda query=query: queries.get_page(store, query, cap),  # type: ignore[misc]
        )
        # It begins with few, and looks eight times as far each time; then it asks where it stands.
        assert cost.documents <= 2 * cap + 4 * RUNNING, cost
        assert cost.keys <= 3 * cap + 4 * RUNNING + 2 * RANGES, cost
        page = page_of(query, answer)
        found += [job.id for job in page.jobs]
        was_capped = was_capped or page.is_capped
        cursor = page.cursor
        if not page.has_next_page:
            break
    else:
        pytest.fail("the walk did not end")
    assert was_capped == (by in ("id", "created_at"))  # Of a status there are few enough, and the others have it.
    assert set(found) == wanted_ids
    assert len(found) == len(wanted_ids)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("statuses", [("failed",), ("failed", "cancelled"), ("failed", "processing")])
def test_page_of_some_statuses_by_next_run_at_is_capped_where_there_are_too_many_names(
    store: JobCollection, monkeypatch: pytest.MonkeyPatch, statuses: tuple[str, ...], order: Any
) -> None:
    """And whole where there is one name less."""
    resting = len(set(statuses) - {"processing"})
    query = page_query(None, 50, "forward", JobFilter(status=statuses), JobSort(by="next_run_at", direction=order))
    cap, answers = 2_000, []
    # Each name has a failed job. Of several statuses, each name counts for each of them.
    for most in (NAMES * resting, NAMES * resting - 1):
        monkeypatch.setattr(index_scans, "MOST_PREFIXES", most)
        answer, cost = examined(store.collection.database, lambda: queries.get_page(store, query, cap))
        answers.append(answer)
        assert cost.documents <= max(len(answer.jobs), 2 * cap) + RUNNING, cost
        assert cost.keys <= 3 * cap + RUNNING + RANGES + NAMES, cost
    served, capped = answers
    assert (served.is_capped, capped.is_capped) == (False, True)
    assert len(capped.jobs) < len(served.jobs) == 51
    assert [job.id for job in capped.jobs] == [job.id for job in served.jobs[: len(capped.jobs)]]


@pytest.mark.parametrize("name", [None, "mail", RARE_NAME, "nobody"])
def test_statistics_are_counted_from_indexes_and_say_where_they_stopped(
    many: Database, store: JobCollection, name: str | None
) -> None:
    most, averaged = 1_000, 500
    stats, cost = examined(many, lambda: job_counts.queue_stats(store, name, most, averaged))
    truth = {
        status: many["monque_jobs"].count_documents({"status": status, **({} if name is None else {"name": name})})
        for status in ("pending", "processing", "completed", "failed", "cancelled")
    }
    for status, number in truth.items():
        assert getattr(stats, status) == min(number, most)
        assert (status in stats.capped) == (number > most)
    assert stats.averaged == min(truth["completed"], averaged)
    assert (stats.average_lifetime is None) == (truth["completed"] == 0)
    assert cost.documents <= stats.averaged + 2, cost
    assert cost.keys <= stats.total + len(stats.capped) + stats.averaged + RUNNING + RANGES, cost


def test_hundred_thousand_jobs_are_counted_exactly_and_each_from_one_key(many: Database, store: JobCollection) -> None:
    """How long that takes is for benchmarks/million.py."""
    stats, cost = examined(many, lambda: job_counts.queue_stats(store, None))
    assert stats.total == NUMBER
    assert stats.capped == frozenset()
    assert cost.documents <= stats.averaged + 2, cost
    assert cost.keys <= NUMBER + stats.averaged + RUNNING + RANGES, cost
    assert 0 <= (stats.average_lifetime or -1) < 50


def test_overview_reads_a_key_for_each_name_and_each_running_job(many: Database, store: JobCollection) -> None:
    found, cost = examined(many, lambda: counts_by_name.counts_by_name(store, most_keys=1))
    assert found.keys() == {*many_jobs.NAMES, RARE_NAME}
    assert cost.documents <= RUNNING
    # The names twice, and of each status of each name one job and one more.
    assert cost.keys <= RUNNING + RANGES + 2 * NAMES + 3 * 4 * NAMES


@pytest.mark.parametrize("most_looked_up", [0, 200])
def test_overview_of_all_names_reads_as_many_keys_as_it_may(
    many: Database, store: JobCollection, monkeypatch: pytest.MonkeyPatch, most_looked_up: int
) -> None:
    monkeypatch.setattr(counts_by_name, "MOST_LOOKED_UP", most_looked_up)
    most = 8_000
    found, cost = examined(many, lambda: counts_by_name.counts_by_name(store, most))
    assert sum(stats.total - stats.processing for stats in found.values()) <= most
    assert any(stats.capped for stats in found.values())
    assert cost.documents <= RUNNING
    assert cost.keys <= most + RUNNING + RANGES + 3 * 4 * NAMES


def test_statistics_that_reach_the_time_limit_of_the_server_raise_an_error_of_their_own(many: Database) -> None:
    # In so little time no server counts that many. On a busy machine, it may be over before the question is sent.
    hasty = Monque(many, operation_timeout=0.004, stats_cache_ttl=0)
    while True:
        with pytest.raises(MonqueConnectionError) as caught:
            hasty.sync.get_queue_stats()
        if isinstance(caught.value, AggregationTimeoutError):
            break
        assert isinstance(caught.value.__cause__, ServerSelectionTimeoutError | WaitQueueTimeoutError)
    assert "operation_timeout" in str(caught.value)
    assert caught.value.transient


@pytest.mark.parametrize(
    ("call", "most_documents", "most_keys"),
    [
        (lambda monque: monque.get_jobs(), 100, 100),
        (lambda monque: monque.get_jobs(status="cancelled", limit=5), 5, 5 + 2 * NAMES),
        (lambda monque: monque.get_jobs(name=RARE_NAME, status="pending", limit=5), 5, 5),
        (lambda monque: monque.get_jobs(name="mail", limit=5), 5 + 2 * RUNNING, 5 + 2 * RUNNING + RANGES),
        (lambda monque: monque.get_jobs(status="completed", skip=200, limit=5), 205, 205 + 6 * NAMES),
        (lambda monque: monque.get_jobs(status=list(JobStatus), limit=5), 5, 5),
    ],
)
def test_get_jobs_examines_what_it_returns_and_passes_over(
    many: Database, call: Callable[[Any], Any], most_documents: int, most_keys: int
) -> None:
    _, cost = examined(many, lambda: call(Monque(many).sync))
    assert cost.documents <= most_documents, cost
    assert cost.keys <= most_keys, cost


DOCUMENTED_BY_MONQUE: dict[str, dict[str, Any]] = {
    "polling": {"status": "pending", "nextRunAt": {"$lte": BEGIN + timedelta(minutes=1)}, "claimedBy": None},
    "owner": {"claimedBy": "host-3", "status": "processing"},
    "recovery": {"status": "processing", "lockedAt": {"$lt": BEGIN}, "lastHeartbeat": {"$lt": BEGIN}},
    "recovery, as also written": {"lockedAt": {"$lt": BEGIN}, "lastHeartbeat": {"$lt": BEGIN}, "status": "processing"},
    "monitoring": {"lastHeartbeat": {"$lt": BEGIN}, "status": "processing"},
}
# Polling costs what is pending, whether it is due or not; here all of it is.
SERVED_BY = {"polling": "trio_monque_updated"}


@pytest.mark.parametrize("which", DOCUMENTED_BY_MONQUE)
def test_each_documented_query_of_monque_is_served_by_an_index_of_ours(many: Database, which: str) -> None:
    command = {"find": "monque_jobs", "filter": DOCUMENTED_BY_MONQUE[which]}
    explained = many.command({"explain": command, "verbosity": "executionStats"})
    text = str(explained["queryPlanner"]["winningPlan"])
    assert f"'indexName': '{SERVED_BY.get(which, 'trio_monque_held')}'" in text
    assert "COLLSCAN" not in text
    stats = explained["executionStats"]
    assert stats["totalDocsExamined"] <= max(RUNNING, stats["nReturned"])
    assert stats["totalKeysExamined"] <= max(RUNNING, stats["nReturned"]) + 1


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_retention_is_served_by_the_index_of_lists_and_needs_none_of_its_own(many: Database, status: str) -> None:
    old = {"status": status, "updatedAt": {"$lt": BEGIN + timedelta(milliseconds=500)}}
    command = {"find": "monque_jobs", "filter": old, "sort": {"updatedAt": 1}, "limit": 100}
    explained = many.command({"explain": command, "verbosity": "executionStats"})
    assert "'indexName': 'trio_monque_updated'" in str(explained["queryPlanner"]["winningPlan"])
    stats = explained["executionStats"]
    assert stats["totalKeysExamined"] == stats["totalDocsExamined"] == stats["nReturned"]
