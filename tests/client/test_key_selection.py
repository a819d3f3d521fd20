"""Jobs selected by their unique keys: in pages, in bulk actions and in commands, along the index of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.support.examined import examined
from tests.support.many_jobs import insert_all
from trio_monque import Monque, NewJob
from trio_monque.errors import InvalidOptionError
from trio_monque.jobs import BulkResult, JobFilter
from trio_monque.jobs.job import Job
from trio_monque.store.driver.types import Collection, Database

KEYS = ("a.1", "a.2", "a1", "b.1", "A.3", "a.\U0001f600")


@pytest.fixture
def monque(db: Database) -> Monque:
    return Monque(db)


@pytest.fixture
def keyed(monque: Monque, jobs: Collection) -> dict[str, Job]:
    """A pending job of each key of the name "mail", the second one running, and others that must not be found."""
    found = {key: monque.sync.enqueue("mail", delay=place, unique_key=key) for place, key in enumerate(KEYS)}
    jobs.update_one({"_id": found["a.2"].id}, {"$set": {"status": "processing"}})
    monque.sync.enqueue("other", unique_key="a.1")
    monque.sync.enqueue("mail")
    ended = monque.sync.enqueue("mail", unique_key="a.9")
    jobs.update_one({"_id": ended.id}, {"$set": {"status": "completed"}})
    return found


def keys_of(found: Sequence[Job]) -> list[str | None]:
    return [job.unique_key for job in found]


@pytest.mark.full
@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"unique_key": "a.1"}, ["a.1"]),
        ({"unique_key": "a"}, []),
        ({"unique_key_prefix": "a."}, ["a.1", "a.2", "a.\U0001f600"]),
        ({"unique_key_prefix": "a"}, ["a.1", "a.2", "a1", "a.\U0001f600"]),
        ({"unique_key_prefix": "a", "status": "pending"}, ["a.1", "a1", "a.\U0001f600"]),
        ({"unique_key_prefix": "a", "status": "processing"}, ["a.2"]),
        ({"unique_key_prefix": "^"}, []),
        ({"unique_key": "a.1", "name": ("mail", "other")}, ["a.1", "a.1"]),
    ],
)
@pytest.mark.parametrize("sort", ["id", "created_at", "updated_at", "next_run_at", "-id"])
def test_pages_select_by_key(
    monque: Monque, keyed: dict[str, Job], selection: dict[str, Any], expected: list[str], sort: str
) -> None:
    asked = JobFilter(**{"name": "mail", **selection})
    whole = monque.sync.get_jobs_with_cursor(filter=asked, sort=sort)
    assert sorted(keys_of(whole.jobs)) == sorted(expected)  # type: ignore[type-var]
    if sort == "id":
        assert keys_of(whole.jobs) == expected
    paged, cursor = list[Job](), None
    while True:
        page = monque.sync.get_jobs_with_cursor(filter=asked, sort=sort, limit=1, cursor=cursor)
        paged += page.jobs
        if not page.has_next_page:
            break
        cursor = page.cursor
    assert keys_of(paged) == keys_of(whole.jobs)


async def test_bulk_actions_select_by_key(monque: Monque, keyed: dict[str, Job], jobs: Collection) -> None:
    cancelled = await monque.cancel_jobs(name="mail", unique_key_prefix="a.")
    assert cancelled.count == 2  # The running one is not asked to end.
    deleted = await monque.delete_jobs(name="mail", unique_key="a.2")
    assert deleted.count == 1
    assert await monque.get_job_by_key("other", "a.1") is not None
    assert jobs.count_documents({"name": "mail", "status": "pending", "uniqueKey": {"$in": list(KEYS)}}) == 3


@pytest.mark.full
async def test_bulk_action_goes_on_behind_each_batch(monque: Monque, jobs: Collection) -> None:
    await monque.enqueue_many([NewJob("mail", unique_key=f"user:{number:04}") for number in range(2_500)])
    seen: list[BulkResult] = []
    result = await monque.cancel_jobs(name="mail", unique_key_prefix="user:", on_progress=seen.append)
    assert result.count == 2_500
    assert [one.count for one in seen] == [1_000, 2_000, 2_500]


@pytest.mark.parametrize(
    ("selection", "problem"),
    [
        ({"unique_key": "a"}, "needs a name"),
        ({"unique_key_prefix": "a"}, "needs a name"),
        ({"name": "mail", "unique_key": "a", "unique_key_prefix": "a"}, "choose one"),
        ({"name": "mail", "unique_key": ""}, "is empty"),
        ({"name": "mail", "unique_key": 5}, "must be a string"),
        ({"name": "mail", "unique_key": "a", "status": "failed"}, "only pending and running jobs own their key"),
    ],
)
def test_selection_that_no_index_serves_is_refused(monque: Monque, selection: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidOptionError, match=problem):
        monque.sync.cancel_jobs(**selection)
    with pytest.raises(InvalidOptionError, match=problem):
        JobFilter(**selection)


def test_jobs_that_hold_their_keys_cannot_be_retried(monque: Monque) -> None:
    with pytest.raises(InvalidOptionError, match="call retry_job with an id"):
        monque.sync.retry_jobs(name="mail", unique_key="a")


def test_key_is_found_along_its_index_among_many_jobs(monque: Monque, db: Database, jobs: Collection) -> None:
    made = [monque.sync.enqueue("mail", unique_key=f"a.{number}") for number in range(3)]
    moment = made[0].created_at - timedelta(days=1)
    insert_all(
        jobs,
        (
            {
                "name": "mail",
                "data": None,
                "status": "pending",
                "uniqueKey": f"b.{number}",
                "failCount": 0,
                "nextRunAt": moment,
                "createdAt": moment,
                "updatedAt": moment,
            }
            for number in range(3_000)
        ),
    )
    page, cost = examined(
        db, lambda: monque.sync.get_jobs_with_cursor(filter=JobFilter(name="mail", unique_key_prefix="a."))
    )
    assert len(page.jobs) == 3
    assert (cost.plans, cost.documents) == (("IXSCAN { name: 1, uniqueKey: 1 }",), 3)
    result, cost = examined(db, lambda: monque.sync.cancel_jobs(name="mail", unique_key_prefix="a."))
    assert result.count == 3
    assert cost.documents <= 10
