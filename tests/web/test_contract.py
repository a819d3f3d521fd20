"""The management contract of Monque: requests and whole answers, against a real database, on both event loops."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from bson import ObjectId

from tests.support.store import claim, handle
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import allow_all, create_app

MOMENT: Final = datetime(2030, 1, 2, 3, 4, 5, 678_000, UTC)
ISO: Final = "2030-01-02T03:04:05.678Z"
PENDING, FAILED, RUNNING, NODE = (f"{number:024x}" for number in range(1, 5))
UNKNOWN: Final = "f" * 24

EMPTY: Final[dict[str, Any]] = {"jobs": [], "cursor": None, "hasNextPage": False, "hasPreviousPage": False}
INVALID: Final = (400, {"error": "Input validation failed"})
BAD_LIMIT: Final = (400, {"error": "Invalid limit"})


def job(number: str, status: str, **fields: Any) -> dict[str, Any]:
    return {
        "_id": ObjectId(number),
        "name": "mail",
        "data": {"to": "a@example.com"},
        "status": status,
        "failCount": 0,
        "nextRunAt": MOMENT,
        "createdAt": MOMENT,
        "updatedAt": MOMENT,
        **fields,
    }


def shown(number: str, status: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": number,
        "name": "mail",
        "status": status,
        "payload": {"to": "a@example.com"},
        "nextRunAt": ISO,
        "lockedAt": None,
        "claimedBy": None,
        "lastHeartbeat": None,
        "failCount": 0,
        "failureReason": None,
        "createdAt": ISO,
        "updatedAt": ISO,
        **fields,
    }


SHOWN: Final[Mapping[str, dict[str, Any]]] = {
    PENDING: shown(PENDING, "pending", uniqueKey="one"),
    FAILED: shown(FAILED, "failed", failCount=3, failureReason="550 mailbox unavailable"),
    RUNNING: shown(
        RUNNING, "processing", claimedBy="worker-1", lockedAt=ISO, lastHeartbeat=ISO, heartbeatInterval=30_000
    ),
    NODE: shown(NODE, "completed", name="report", payload=None, repeatInterval="0 * * * *"),
}


@pytest.fixture
def filled(db: Database, jobs: Collection) -> Database:
    jobs.insert_many(
        [
            job(PENDING, "pending", uniqueKey="one"),
            job(FAILED, "failed", failCount=3, failReason="550 mailbox unavailable"),
            job(
                RUNNING,
                "processing",
                claimedBy="worker-1",
                lockedAt=MOMENT,
                lastHeartbeat=MOMENT,
                heartbeatInterval=30_000,
            ),
            job(NODE, "completed", name="report", data=None, repeatInterval="0 * * * *"),
        ]
    )
    return db


def page(*numbers: str, **fields: Any) -> dict[str, Any]:
    return {**EMPTY, "jobs": [SHOWN[number] for number in numbers], "cursor": ANY, **fields}


class Anything:
    """Equal to everything but null."""

    def __eq__(self, other: object) -> bool:
        return other is not None

    def __hash__(self) -> int:
        return 0


ANY: Final = Anything()

READS: Final[list[tuple[str, tuple[int, Any]]]] = [
    ("/health", (200, {"status": "ok", "scheduler": {"healthy": True}})),
    ("/health?any=thing", (200, {"status": "ok", "scheduler": {"healthy": True}})),
    (f"/jobs/{PENDING}", (200, SHOWN[PENDING])),
    (f"/jobs/{RUNNING}/", (200, SHOWN[RUNNING])),
    (f"/jobs/{NODE}", (200, SHOWN[NODE])),
    (f"/jobs/{NODE.upper()}", (200, SHOWN[NODE])),
    (f"/jobs/{UNKNOWN}", (404, {"error": "Job not found"})),
    ("/jobs/123", (400, {"error": "Invalid job id"})),
    (f"/jobs/{PENDING[:-1]}g", (400, {"error": "Invalid job id"})),
    (f"/jobs/{PENDING}?view=all", INVALID),
    ("/jobs", (200, page(NODE, RUNNING, FAILED, PENDING))),
    ("/jobs/", (200, page(NODE, RUNNING, FAILED, PENDING))),
    ("/jobs?sortBy=identifier&sortDirection=asc&limit=2", (200, page(PENDING, FAILED, hasNextPage=True))),
    ("/jobs?sortBy=identifier&limit=1", (200, page(NODE, hasNextPage=True))),
    ("/jobs?status=failed", (200, page(FAILED))),
    ("/jobs?status=failed&status=pending", (200, page(FAILED, PENDING))),
    ("/jobs?status[]=failed", (200, page(FAILED))),
    ("/jobs?status%5B0%5D=failed&status%5B1%5D=completed", (200, page(NODE, FAILED))),
    ("/jobs?status=", INVALID),
    ("/jobs?status=lost", INVALID),
    ("/jobs?name=report", (200, page(NODE))),
    ("/jobs?name=", (200, EMPTY)),
    ("/jobs?name=nobody", (200, EMPTY)),
    ("/jobs?name[$ne]=x", INVALID),
    ("/jobs?name=a&name=b", INVALID),
    ("/jobs?foo=0", INVALID),
    ("/jobs?sortBy=name", INVALID),
    ("/jobs?sortDirection=up", INVALID),
    *(
        (f"/jobs?limit={given}&status=failed", (200, page(FAILED)))
        for given in ("5", "5.0", "1e2", "%205%20", "%2B5", "1e5")
    ),
    *(
        (f"/jobs?limit={given}", BAD_LIMIT)
        for given in ("", "0", "-1", "1.5", "1e999", "0x10", "five", "1_0", "NaN", "\u0661")
    ),
    (f"/jobs?createdAtFrom={ISO}&createdAtTo={ISO}", (200, page(NODE, RUNNING, FAILED, PENDING))),
    ("/jobs?createdAtFrom=2030-01-02T03:04:05.6789999Z", (200, page(NODE, RUNNING, FAILED, PENDING))),
    ("/jobs?updatedAtFrom=2030-01-02T03:04:06Z", (200, EMPTY)),
    ("/jobs?nextRunAtTo=2030-01-02T03:04:05Z", (200, EMPTY)),
    ("/jobs?createdAtFrom=2031-01-01T00:00:00Z&createdAtTo=2030-01-01T00:00:00Z", (200, EMPTY)),
    *(
        (f"/jobs?createdAtFrom={given}", INVALID)
        for given in (
            "2030-01-02T03:04Z",
            "2030-01-02T03:04:05",
            "2030-01-02",
            "2030-01-02T03:04:05%2B01:00",
            "2030-02-30T00:00:00Z",
            "0000-01-01T00:00:00Z",
            "",
        )
    ),
    ("/jobs?cursor=nonsense", (400, ANY)),
    (
        "/jobs/stats",
        (
            200,
            {
                "pending": 1,
                "processing": 1,
                "completed": 1,
                "failed": 1,
                "cancelled": 0,
                "total": 4,
                "avgProcessingDurationMs": 0,
            },
        ),
    ),
    (
        "/jobs/stats?name=",
        (200, {"pending": 0, "processing": 0, "completed": 0, "failed": 0, "cancelled": 0, "total": 0}),
    ),
    ("/jobs/stats?name=a&name=b", INVALID),
    ("/jobs/stats?status=failed", INVALID),
    ("/nothing", (404, {"error": "Not found"})),
]


@pytest.mark.parametrize("loop", LOOPS)
def test_reads(filled: Database, loop: str) -> None:
    app = create_app(Monque(filled, stats_cache_ttl=0))

    async def work(ask: Ask) -> None:
        for path, (status, expected) in READS:
            found = await ask("GET", path)
            assert (found.status_code, found.json()) == (status, expected), path
            assert found.headers["content-type"] == "application/json"
            assert found.headers["cache-control"] == "no-store"

    asking(loop, app, work)


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

    assert [one["id"] for one in asking(loop, app, work)] == [NODE, RUNNING, FAILED, PENDING]


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
        "queueViews": [view("mail", pending=1, processing=1, failed=1), view("report", completed=1)]
    }


@pytest.mark.parametrize("loop", LOOPS)
def test_changes_of_one_job(filled: Database, jobs: Collection, loop: str) -> None:
    app = create_app(Monque(filled), authorize=allow_all)

    async def work(ask: Ask) -> None:
        async def after(method: str, path: str, **options: Any) -> tuple[int, Any]:
            found = await ask(method, path, **options)
            answer = found.json()
            for moment in ("updatedAt", "nextRunAt"):
                answer.pop(moment, None)
            return found.status_code, answer

        def expected(number: str, status: str, **fields: Any) -> tuple[int, Any]:
            changed = {**SHOWN[number], "status": status, **fields}
            return 200, {key: value for key, value in changed.items() if key not in ("updatedAt", "nextRunAt")}

        # Without a body and a content type, as the official client sends them.
        cancelled = expected(PENDING, "cancelled")
        cancelled[1].pop("uniqueKey")
        assert await after("POST", f"/jobs/{PENDING}/actions/cancel") in (cancelled, expected(PENDING, "cancelled"))
        retried = await after("POST", f"/jobs/{FAILED}/actions/retry", json={"whatever": 1})
        assert retried[0] == 200
        assert (retried[1]["status"], retried[1]["failCount"]) == ("pending", 0)
        moved = await ask("POST", f"/jobs/{FAILED}/actions/reschedule", json={"nextRunAt": "2031-01-01T00:00:00Z"})
        assert (moved.status_code, moved.json()["nextRunAt"]) == (200, "2031-01-01T00:00:00.000Z")
        refused = await ask("POST", f"/jobs/{RUNNING}/actions/cancel")
        assert refused.status_code == 409
        assert refused.json() == {"error": f"cannot cancel job {RUNNING}: its status is 'processing'"}
        assert (await ask("POST", f"/jobs/{NODE}/actions/cancel")).status_code == 409
        assert (await ask("POST", f"/jobs/{UNKNOWN}/actions/retry")).json() == {"error": "Job not found"}
        assert await after("DELETE", f"/jobs/{NODE}") == (200, {"deleted": True})
        assert await after("DELETE", f"/jobs/{NODE}") == (404, {"error": "Job not found"})

    asking(loop, app, work)
    assert {str(one["_id"]): one["status"] for one in jobs.find()} == {
        PENDING: "cancelled",
        FAILED: "pending",
        RUNNING: "processing",
    }


SELECTORS: Final[list[tuple[Any, tuple[int, Any]]]] = [
    ({}, INVALID),
    ({"everything": True, "name": "mail"}, INVALID),
    ({"everything": False}, INVALID),
    ({"status": []}, INVALID),
    ({"status": "lost"}, INVALID),
    ({"foo": 1}, INVALID),
    ({"name": 5}, INVALID),
    ({"olderThan": "yesterday"}, INVALID),
    ([], INVALID),
    ({"name": "nobody"}, (200, {"count": 0, "errors": []})),
    ({"name": ""}, (200, {"count": 0, "errors": []})),
    ({"status": "failed", "olderThan": "2030-01-01T00:00:00Z"}, (200, {"count": 0, "errors": []})),
    ({"name": "mail", "status": ["failed", "cancelled"]}, (200, {"count": 1, "errors": []})),
    ({"everything": True}, (200, {"count": 3, "errors": []})),
]


def test_bulk_actions(filled: Database, jobs: Collection) -> None:
    app = create_app(Monque(filled), authorize=allow_all)

    async def work(ask: Ask) -> None:
        assert (await ask("POST", "/jobs/actions/delete")).status_code == 400
        for selector, (status, expected) in SELECTORS:
            found = await ask("POST", "/jobs/actions/delete", json=selector)
            assert (found.status_code, found.json()) == (status, expected), selector

    asking("asyncio", app, work)
    assert jobs.count_documents({}) == 0


def test_cancel_and_retry_in_bulk(filled: Database, jobs: Collection) -> None:
    app = create_app(Monque(filled), authorize=allow_all)

    async def work(ask: Ask) -> None:
        found = await ask("POST", "/jobs/actions/cancel", json={"name": "mail"})
        assert found.json() == {"count": 1, "errors": []}
        found = await ask("POST", "/jobs/actions/retry", json={"status": ["cancelled", "failed"]})
        assert found.json() == {"count": 2, "errors": []}

    asking("trio", app, work)
    assert jobs.count_documents({"status": "pending"}) == 2


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
