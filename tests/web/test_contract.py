"""The management contract of Monque, beside its table of requests and whole answers, which many servers answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.store import claim, handle
from tests.web.contract_table import CANCELLED, FAILED, NODE, PENDING, RUNNING, fill
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import create_app


@pytest.fixture
def filled(db: Database, jobs: Collection) -> Database:
    fill(jobs)
    return db


@pytest.mark.parametrize("loop", LOOPS)
def test_cursor_leads_through_all_jobs(filled: Database, loop: str) -> None:
    app = create_app(Monque(filled))

    async def work(ask: Ask) -> list[Any]:
        found: list[Any] = []
        cursor, query = None, "/jobs?limit=3&sortBy=nextRunAt"
        while True:
            answer = (await ask("GET", query + (f"&cursor={cursor}" if cursor else ""))).json()
            assert answer["hasPreviousPage"] == (cursor is not None)
            found += answer["jobs"]
            cursor = answer["cursor"]
            if not answer["hasNextPage"]:
                return found

    assert [one["id"] for one in asking(loop, app, work)] == [CANCELLED, NODE, RUNNING, FAILED, PENDING]


def test_queue_views(filled: Database) -> None:
    app = create_app(Monque(filled))
    none = {"pending": 0, "processing": 0, "completed": 0, "failed": 0, "cancelled": 0}

    async def work(ask: Ask) -> Any:
        return (await ask("GET", "/queue-views?whatever=1")).json()

    def view(name: str, **stats: int) -> dict[str, Any]:
        counted = {**none, **stats, "total": sum(stats.values())}
        return {
            "name": name,
            "hasPersistedJobs": True,
            "hasRegisteredWorker": False,
            "stats": counted,
            "worker": None,
        }

    assert asking("trio", app, work) == {
        "queueViews": [view("mail", pending=1, processing=1, failed=1, cancelled=1), view("report", completed=1)]
    }


def test_running_job_is_asked_to_end_if_the_body_asks_for_that(db: Database, jobs: Collection) -> None:
    (running,) = claim(handle(db), 1)
    asked: list[str] = []

    def authorize(action: str, context: Any, target: Any) -> bool:
        asked.append(action)
        return True

    app = create_app(Monque(db), authorize=authorize)

    async def work(ask: Ask) -> list[int]:
        path = f"/jobs/{running.id}/actions/cancel"
        return [(await ask("POST", path, json=body)).status_code for body in ({"running": False}, {"running": True})]

    assert asking("trio", app, work) == [409, 200]
    assert asked == ["cancel", "cancelRunning"]
    assert "cancelRequestedAt" in (jobs.find_one({"_id": running.id}) or {})
