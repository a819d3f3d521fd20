"""What lists in full and bulk actions can select beside what the contract has: due jobs, changes, and holders."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs.job_json import iso
from trio_monque.store.reads import queries
from trio_monque.web import allow_all, create_app
from trio_monque.web.api.schema_check import is_valid
from trio_monque.web.api.schemas import ref

INVALID: Final = (400, {"error": "Input validation failed"})


def document(name: str, status: str, at: datetime, **fields: Any) -> dict[str, Any]:
    dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), at)
    return {"name": name, "data": None, "status": status, "failCount": 0, **dates, **fields}


@pytest.fixture
def now(jobs: Collection) -> datetime:
    found: datetime = jobs.database.command("hello")["localTime"].replace(tzinfo=UTC)
    ago, later = found - timedelta(hours=2), found + timedelta(hours=2)
    Monque(jobs.database).sync.enqueue("letter", run_at=later)
    jobs.insert_many([document("mail", "pending", ago), document("later", "pending", later)])
    jobs.insert_many([document(f"run {one}", "processing", ago, claimedBy=one, lockedAt=ago) for one in ("w1", "w2")])
    jobs.insert_many([document("gone", "failed", found - timedelta(hours=hours)) for hours in (1, 2, 3)])
    return found


async def answer(ask: Ask, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    found = await ask(method, path, **({} if body is None else {"json": body}))
    return found.status_code, found.json()


@pytest.mark.parametrize("loop", LOOPS)
def test_list_in_full_by_due_date_and_by_holder(db: Database, now: datetime, loop: str) -> None:
    async def names(ask: Ask, query: str) -> list[str]:
        status, found = await answer(ask, "GET", f"/jobs?view=full&{query}")
        assert status == 200, found
        assert is_valid(found, ref("JobFullPage"))
        assert (found["isCapped"], found["examined"]) == (False, None)
        return sorted(one["name"] for one in found["jobs"])

    async def work(ask: Ask) -> None:
        assert await names(ask, "due=true") == ["mail"]
        assert await names(ask, "due=false&sortBy=nextRunAt") == ["later", "letter"]
        assert await names(ask, "due=true&status=pending&name=later") == []
        assert await names(ask, "instance=w1") == ["run w1"]
        assert await names(ask, "instance=w1&status=processing&sortBy=updatedAt") == ["run w1"]
        assert await names(ask, "instance=w9") == []

    asking(loop, create_app(Monque(db)), work)


@pytest.mark.parametrize(
    "query",
    [
        *("due=yes", "due=", "due=1", "due=true&due=true", "due=true&status=failed", "due[$ne]=true"),
        *("instance=", "instance=a&instance=b", "instance=w1&status=pending", "instance=w1&due=true"),
    ],
)
def test_malformed_condition_is_refused(db: Database, query: str) -> None:
    async def work(ask: Ask) -> None:
        assert await answer(ask, "GET", f"/jobs?view=full&{query}") == INVALID
        assert await answer(ask, "GET", f"/jobs?{query}") == INVALID  # The contract has no such condition.

    asking("trio", create_app(Monque(db)), work)


def test_capped_page_says_how_far_it_looked(db: Database, now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MOST_EXAMINED", 4)

    async def work(ask: Ask) -> None:
        _, found = await answer(ask, "GET", "/jobs?view=full&name=mail&sortBy=createdAt&limit=1")
        assert (found["jobs"], found["isCapped"], found["examined"]) == ([], True, 4)
        assert found["hasNextPage"]

    asking("trio", create_app(Monque(db)), work)


def test_bulk_actions_select_by_change_and_due_date(db: Database, jobs: Collection, now: datetime) -> None:
    hour = timedelta(hours=1)
    failed = {"status": "failed", "updatedAtFrom": iso(now - 2.5 * hour), "updatedAtTo": iso(now - 1.5 * hour)}

    async def work(ask: Ask) -> None:
        assert await answer(ask, "POST", "/jobs/actions/count", {"due": False}) == (
            200,
            {"count": 2, "isCapped": False},
        )
        assert await answer(ask, "POST", "/jobs/actions/count", failed) == (200, {"count": 1, "isCapped": False})
        assert await answer(ask, "POST", "/jobs/actions/retry", failed) == (200, {"count": 1, "errors": []})
        assert await answer(ask, "POST", "/jobs/actions/cancel", {"due": True, "name": "mail"}) == (
            200,
            {"count": 1, "errors": []},
        )
        assert await answer(ask, "POST", "/jobs/actions/delete", {"due": False, "name": "later"}) == (
            200,
            {"count": 1, "errors": []},
        )

    asking("trio", create_app(Monque(db), authorize=allow_all), work)
    assert jobs.count_documents({"name": "mail", "status": "cancelled"}) == 1
    assert jobs.count_documents({"name": "later"}) == 0
    assert jobs.count_documents({"name": "letter"}) == 1


@pytest.mark.parametrize(
    "selector",
    [
        {"due": "true"},
        {"due": None},
        {"due": 1},
        {"due": True, "status": "failed"},
        {"due": True, "status": ["pending", "failed"]},
        {"due": True, "everything": True},
        {"updatedAtFrom": "yesterday"},
        {"updatedAtTo": 7},
        {"instance": "w1"},
    ],
    ids=str,
)
def test_malformed_selector_is_refused(db: Database, now: datetime, selector: dict[str, Any]) -> None:
    async def work(ask: Ask) -> None:
        for action in ("count", "cancel", "delete"):
            assert await answer(ask, "POST", f"/jobs/actions/{action}", selector) == INVALID

    asking("trio", create_app(Monque(db), authorize=allow_all), work)


def test_selection_that_contradicts_itself_is_refused(db: Database, now: datetime) -> None:
    backwards = {"updatedAtFrom": iso(now), "updatedAtTo": iso(now - timedelta(hours=1))}

    async def work(ask: Ask) -> None:
        status, found = await answer(ask, "POST", "/jobs/actions/count", backwards)
        assert status == 400
        assert "updated_from" in found["error"]
        status, _ = await answer(ask, "POST", "/jobs/actions/retry", {"due": True})
        assert status == 400

    asking("trio", create_app(Monque(db), authorize=allow_all), work)
