"""Jobs selected by whether they are due, when they changed, and who holds them: in pages, counts and bulk actions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.support.examined import examined
from trio_monque import Monque
from trio_monque.errors import InvalidOptionError
from trio_monque.jobs import BulkResult, JobFilter, JobSelector, JobStatus
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.reads import queries, selection_counts

HOUR: Final = timedelta(hours=1)


def document(number: int, status: str, due: datetime, changed: datetime, **fields: Any) -> dict[str, Any]:
    dates = {"nextRunAt": due, "createdAt": changed, "updatedAt": changed}
    return {"name": "mail", "data": number, "status": status, "failCount": 0, **dates, **fields}


@pytest.fixture
def now(jobs: Collection) -> datetime:
    found: datetime = jobs.database.command("hello")["localTime"].replace(tzinfo=UTC)
    return found


@pytest.fixture
def monque(db: Database, jobs: Collection, now: datetime) -> Monque:
    """Of two names, jobs of each status, due from four hours ago to four hours from now, changed since a day ago."""
    found = Monque(db)
    found.sync.delete_jobs(everything=True)
    jobs.insert_many(
        document(
            10 * place + hours + 4,
            status,
            now + hours * HOUR + timedelta(minutes=30),
            now - timedelta(days=1) + (hours + 4) * HOUR,
            name=("mail", "letter")[hours % 2],
            **({"claimedBy": f"w{hours % 3}", "lockedAt": now} if status == "processing" else {}),
        )
        for place, status in enumerate(JobStatus)
        for hours in range(-4, 4)
    )
    return found


def expected(jobs: Collection, matches: Callable[[dict[str, Any]], bool]) -> set[int]:
    return {one["data"] for one in jobs.find() if matches(one)}


def is_pending(one: dict[str, Any]) -> bool:
    return bool(one["status"] == "pending")


CASES: Final[list[tuple[dict[str, Any], Callable[[dict[str, Any], datetime], bool]]]] = [
    ({"due": True}, lambda one, now: is_pending(one) and one["nextRunAt"] <= now),
    ({"due": False}, lambda one, now: is_pending(one) and one["nextRunAt"] > now),
    (
        {"due": True, "name": "mail", "status": "pending"},
        lambda one, now: is_pending(one) and one["nextRunAt"] <= now and one["name"] == "mail",
    ),
    ({"updated_from": -20}, lambda one, now: one["updatedAt"] >= now - 20 * HOUR),
    (
        {"updated_from": -22, "updated_to": -20, "status": ["failed", "processing"]},
        lambda one, now: (
            now - 22 * HOUR <= one["updatedAt"] <= now - 20 * HOUR and one["status"] in ("failed", "processing")
        ),
    ),
    (
        {"updated_to": -20, "name": "mail"},
        lambda one, now: one["updatedAt"] <= now - 20 * HOUR and one["name"] == "mail",
    ),
    (
        {"due": True, "updated_from": -22},
        lambda one, now: is_pending(one) and one["nextRunAt"] <= now and one["updatedAt"] >= now - 22 * HOUR,
    ),
]


def selection_at(given: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Numbers are hours from now."""
    return {
        name: now + value * HOUR if type(value) is int else value  # A flag is an int, too.
        for name, value in given.items()
    }


@pytest.mark.parametrize(("given", "matches"), CASES, ids=lambda one: str(one) if isinstance(one, dict) else "")
def test_pages_counts_and_deletions_select_the_same_jobs(
    monque: Monque, jobs: Collection, now: datetime, given: dict[str, Any], matches: Callable[..., bool]
) -> None:
    selection, wanted = selection_at(given, now), expected(jobs, lambda one: matches(one, now))
    assert wanted
    for sort in ("id", "-created_at", "updated_at", "-next_run_at"):
        page = monque.sync.get_jobs_with_cursor(filter=JobFilter(**selection), sort=sort, limit=100)
        assert {one.data for one in page.jobs} == wanted
    counted = monque.sync.count_jobs(**selection)
    assert (counted.number, counted.is_capped) == (len(wanted), False)
    before = expected(jobs, lambda _: True)
    assert monque.sync.delete_jobs(**selection).count == len(wanted)
    assert expected(jobs, lambda _: True) == before - wanted


def test_cancel_and_retry_select_by_what_changed(monque: Monque, jobs: Collection, now: datetime) -> None:
    assert monque.sync.cancel_jobs(due=True, name="mail").count == 2
    assert monque.sync.retry_jobs(status="failed", updated_to=now - 22 * HOUR).count == 3
    assert jobs.count_documents({"status": "failed"}) == 5


def test_page_goes_on_where_it_ended(monque: Monque) -> None:
    asked, found, cursor = JobFilter(due=True), list[Any](), None
    while True:
        page = monque.sync.get_jobs_with_cursor(filter=asked, sort="next_run_at", limit=1, cursor=cursor)
        found += [one.data for one in page.jobs]
        if not page.has_next_page:
            break
        cursor = page.cursor
    assert found == [0, 1, 2, 3]


def test_due_and_a_range_of_due_dates_together(monque: Monque, now: datetime) -> None:
    middle = now - 2 * HOUR
    several: list[tuple[dict[str, Any], list[int]]] = [({"run_from": middle}, [2, 3]), ({"run_to": middle}, [0, 1])]
    for ends, numbers in several:
        asked = JobFilter(due=True, **ends)
        assert [one.data for one in monque.sync.get_jobs_with_cursor(filter=asked, sort="next_run_at").jobs] == numbers
    asked = JobFilter(due=False, run_from=now - HOUR, run_to=now + HOUR)
    assert [one.data for one in monque.sync.get_jobs_with_cursor(filter=asked).jobs] == [4]


def test_moment_by_which_jobs_are_due_is_noted_once(now: datetime) -> None:
    asked: list[datetime] = []

    def clock() -> datetime:
        asked.append(now)
        return now

    selector = JobSelector(due=True).as_of(clock)
    assert selector.guard(selector.among(tuple(JobStatus))) == selector.guard(selector.among(tuple(JobStatus)))
    assert asked == [now]
    assert JobSelector(name="mail").as_of(clock) == JobSelector(name="mail")
    assert asked == [now]


# --- Who holds them ---


@pytest.mark.parametrize("sort", ["id", "created_at", "updated_at", "-next_run_at"])
def test_pages_of_an_instance_read_what_it_holds(db: Database, monque: Monque, jobs: Collection, sort: str) -> None:
    held = expected(jobs, lambda one: one.get("claimedBy") == "w1")
    page, cost = examined(
        db, lambda: monque.sync.get_jobs_with_cursor(filter=JobFilter(instance="w1"), sort=sort, limit=50)
    )
    assert {one.data for one in page.jobs} == held
    assert cost.documents == len(held)
    assert cost.keys <= len(held) + 1
    assert not monque.sync.get_jobs_with_cursor(filter=JobFilter(instance="w9", status="processing")).jobs


# --- What it costs ---


def test_due_jobs_are_counted_by_keys_alone(
    db: Database, jobs: Collection, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monque = Monque(db)
    monque.sync.enqueue("other")
    old, later = now - 9 * HOUR, now + 9 * HOUR
    jobs.insert_many([document(0, "completed", old, old, name=name) for name in ("mail", "letter") for _ in range(300)])
    jobs.insert_many([document(0, "pending", due, old) for due in (old, later) for _ in range(100)])
    for selection, keys in (({"name": "mail"}, 102), ({}, 108)):
        counted, cost = examined(db, lambda chosen=selection: monque.sync.count_jobs(due=False, **chosen))  # type: ignore[misc]
        assert (counted.number, counted.is_capped) == (100, False)
        assert cost.documents == 0
        assert cost.keys <= keys
    monkeypatch.setattr(selection_counts, "MOST_NAMES", 1)
    counted, cost = examined(db, lambda: monque.sync.count_jobs(due=False))
    assert (counted.number, counted.is_capped) == (100, False)
    assert cost.documents <= 100


def test_changed_jobs_of_a_status_are_counted_by_keys_alone(db: Database, jobs: Collection, now: datetime) -> None:
    monque = Monque(db)
    monque.sync.enqueue("other")
    jobs.insert_many([document(0, "failed", now, now - number * HOUR) for number in range(500)])
    since = now - 20 * HOUR
    counted, cost = examined(db, lambda: monque.sync.count_jobs(status="failed", updated_from=since))
    assert (counted.number, counted.is_capped) == (21, False)
    assert (cost.keys, cost.documents) <= (23, 0)


def test_capped_page_says_how_many_jobs_it_looked_through(
    monque: Monque, jobs: Collection, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.insert_many([document(0, "completed", now, now) for _ in range(200)])
    monkeypatch.setattr(queries, "MOST_EXAMINED", 60)
    asked = JobFilter(name="letter", status="failed")
    page = monque.sync.get_jobs_with_cursor(filter=asked, sort="-created_at", limit=10)
    assert (page.jobs, page.is_capped, page.examined) == ((), True, 60)
    whole = monque.sync.get_jobs_with_cursor(filter=JobFilter(), sort="-created_at", limit=10)
    assert (whole.is_capped, whole.examined) == (False, None)


# --- What is refused ---


def any_value(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: JobSelector(due=any_value(1)), "due"),
        (lambda: JobSelector(due=any_value("true")), "due"),
        (lambda: JobSelector(due=True, status="failed"), "only pending"),
        (lambda: JobSelector(due=True, status=["pending", "failed"]), "only pending"),
        (lambda: JobFilter(instance="w1", status="pending"), "only running"),
        (lambda: JobFilter(instance="w1", due=True), "only running"),
        (lambda: JobFilter(instance=""), "instance"),
        (lambda: JobFilter(instance=any_value(7)), "instance"),
        (lambda: JobSelector(updated_from=datetime(2026, 1, 1)), "updated_from"),  # noqa: DTZ001
        (
            lambda: JobSelector(
                updated_from=datetime(2026, 1, 2, tzinfo=UTC), updated_to=datetime(2026, 1, 1, tzinfo=UTC)
            ),
            "updated_from",
        ),
    ],
)
def test_invalid_selection_is_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(InvalidOptionError, match=problem):
        make()


def test_due_jobs_are_not_retried(db: Database) -> None:
    with pytest.raises(InvalidOptionError, match="due"):
        Monque(db).sync.retry_jobs(due=True)
    assert Monque(db).sync.cancel_jobs(due=True) == BulkResult()
