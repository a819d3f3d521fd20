"""Pages of large jobs end early, and go on: a hundred jobs of 16 MiB would be one answer of 1.6 GB."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import bson
import pytest
from bson import ObjectId

from tests.support.store import handle, insert
from tests.web.http import Ask, asking
from trio_monque import JobFilter, Monque
from trio_monque.jobs import CursorPage, JobSort
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.reads.bounded_bytes import MOST_BYTES
from trio_monque.web import create_app

AT: Final = datetime(2030, 1, 1, tzinfo=UTC)
BYTES: Final = 12_000_000
NUMBER: Final = 6
MOST_AT_ONCE: Final = MOST_BYTES + (16 << 20)
"""The last batch may begin just before the limit, and the server sends 16 MiB at most."""


@pytest.fixture
def ids(db: Database, jobs: Collection) -> list[ObjectId]:
    """Large jobs, in the order of their dates. A small one and documents that are not jobs are among them."""
    template: Any = jobs.find_one({"_id": insert(handle(db)).id})
    jobs.delete_many({})
    found = []
    for number in range(NUMBER):
        large = {**template, "_id": ObjectId(), "data": "x" * (BYTES if number != 3 else 1)}
        dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), AT + timedelta(minutes=number))
        # A name of its own for the last one, and a key for each: conditions that an index has, and that it has not.
        jobs.insert_one({**large, **dates, "uniqueKey": f"key {number}", "failReason": "no"})
        jobs.insert_one({**large, **dates, "_id": ObjectId(), "data": "x", "failCount": "three"})
        found.append(large["_id"])
    return found


@pytest.fixture
def monque(db: Database) -> Monque:
    return Monque(db)


def size_of(page: CursorPage) -> int:
    return sum(len(bson.encode({"": job.data})) for job in page.jobs)


def pages_of(monque: Monque, **options: Any) -> list[CursorPage]:
    pages: list[CursorPage] = []
    while not pages or (pages[-1].has_previous_page if "direction" in options else pages[-1].has_next_page):
        pages.append(monque.sync.get_jobs_with_cursor(cursor=pages[-1].cursor if pages else None, **options))
        assert len(pages) <= NUMBER
    return pages


QUESTIONS: Final[dict[str, dict[str, Any]]] = {
    "by id": {},
    "newest first": {"sort": "-created_at"},
    "of a status": {"sort": "next_run_at", "filter": JobFilter(status="pending")},
    "of two scans": {"sort": "next_run_at", "filter": JobFilter(name="greet", status=("pending", "processing"))},
    "by a condition without an index": {"sort": "created_at", "filter": JobFilter(fail_reason_prefix="no")},
    "by keys": {"filter": JobFilter(name="greet", unique_key_prefix="key")},
    "backward": {"direction": "backward", "sort": "updated_at"},
}


@pytest.mark.full
def test_pages_have_each_job_once_and_never_many_bytes(monque: Monque, ids: list[ObjectId]) -> None:
    for question in QUESTIONS:  # In one test: it takes seconds to store these jobs.
        check(question, pages_of(monque, **QUESTIONS[question]), ids)


def check(question: str, pages: list[CursorPage], ids: list[ObjectId]) -> None:
    assert len(pages) > 1, question
    assert all(one.jobs for one in pages)
    assert max(map(size_of, pages)) < MOST_AT_ONCE
    assert [one.is_capped for one in pages] == [True] * (len(pages) - 1) + [False]
    found = [[job.id for job in one.jobs] for one in pages]
    if question == "backward":
        found.reverse()
    in_order = [job_id for page in found for job_id in page]
    assert in_order == (ids[::-1] if question == "newest first" else ids)
    assert (pages[0].examined is None) == (question == "by a condition without an index")


@pytest.mark.full
def test_page_that_is_full_is_not_capped(monque: Monque, ids: list[ObjectId]) -> None:
    page = monque.sync.get_jobs_with_cursor(limit=2)
    assert (len(page.jobs), page.has_next_page, page.is_capped) == (2, True, False)
    last = monque.sync.get_jobs_with_cursor(limit=2, sort=JobSort(by="id", direction="desc"))
    assert [job.id for job in last.jobs] == ids[:-3:-1]


@pytest.mark.full
def test_lists_end_early_too(monque: Monque, jobs: Collection, ids: list[ObjectId]) -> None:
    jobs.update_many({"_id": {"$in": ids}}, {"$set": {"repeatInterval": "0 0 1 1 *"}})
    first = monque.sync.get_schedules()  # Their index is created with the first schedule that is declared.
    monque.sync.schedule("0 0 1 1 *", "yearly", unique_key="next")
    second = monque.sync.get_schedules()
    claimed = {"status": "processing", "lockedAt": AT, "claimedBy": "worker-1", "lastHeartbeat": AT}
    jobs.update_many({"_id": {"$in": ids}}, {"$set": claimed})
    running = monque.sync.get_running(instance="worker-1")
    for found in (first, second, running):
        assert 1 < len(found.jobs) < NUMBER
        assert found.is_capped
    # An overview shows no payloads, and has all of them.
    assert len(monque.sync.get_overview().upcoming) == 1


@pytest.mark.full
def test_page_over_http_goes_on_by_its_cursor(db: Database, ids: list[ObjectId]) -> None:
    async def work(ask: Ask) -> None:
        for view in ({}, {"view": "full"}):
            found: list[str] = []
            page: Any = {"cursor": None, "hasNextPage": True}
            number = 0
            while page["hasNextPage"]:
                cursor = {} if page["cursor"] is None else {"cursor": page["cursor"]}
                answer = await ask("GET", "/jobs", params={"limit": 100, "sortDirection": "asc", **view, **cursor})
                assert answer.status_code == 200
                assert len(answer.content) < MOST_AT_ONCE
                page = answer.json()
                found += [one["id"] for one in page["jobs"]]
                number += 1
            assert found == list(map(str, ids))
            assert number > 1

    asking("trio", create_app(Monque(db)), work)
