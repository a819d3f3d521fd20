"""The table of requests and whole answers of the contract, whatever serves them: see `test_contract_on_servers.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import httpx
from bson import ObjectId

from trio_monque.store.driver.types import Collection

Send = Callable[..., Awaitable[httpx.Response]]
"""Sends a request: its method, its path below the prefix, and what httpx takes."""

MOMENT: Final = datetime(2030, 1, 2, 3, 4, 5, 678_000, UTC)
ISO: Final = "2030-01-02T03:04:05.678Z"
PENDING, FAILED, RUNNING, NODE, CANCELLED = (f"{number:024x}" for number in range(1, 6))
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
    CANCELLED: shown(CANCELLED, "cancelled"),
}


def fill(jobs: Collection) -> None:
    """Insert a job of each status."""
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
            job(CANCELLED, "cancelled"),
        ]
    )


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
    ("/jobs", (200, page(CANCELLED, NODE, RUNNING, FAILED, PENDING))),
    ("/jobs/", (200, page(CANCELLED, NODE, RUNNING, FAILED, PENDING))),
    ("/jobs?sortBy=identifier&sortDirection=asc&limit=2", (200, page(PENDING, FAILED, hasNextPage=True))),
    ("/jobs?sortBy=identifier&limit=1", (200, page(CANCELLED, hasNextPage=True))),
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
    (f"/jobs?createdAtFrom={ISO}&createdAtTo={ISO}", (200, page(CANCELLED, NODE, RUNNING, FAILED, PENDING))),
    ("/jobs?createdAtFrom=2030-01-02T03:04:05.6789999Z", (200, page(CANCELLED, NODE, RUNNING, FAILED, PENDING))),
    ("/jobs?updatedAtFrom=2030-01-02T03:04:06Z", (200, EMPTY)),
    ("/jobs?nextRunAtTo=2030-01-02T03:04:05Z", (200, EMPTY)),
    ("/jobs?createdAtFrom=2031-01-01T00:00:00Z&createdAtTo=2030-01-01T00:00:00Z", (200, EMPTY)),
    # The end of time is how programs spell "without an end".
    (
        "/jobs?createdAtFrom=0001-01-01T00:00:00Z&createdAtTo=9999-12-31T23:59:59.999Z&status=failed",
        (200, page(FAILED)),
    ),
    ("/jobs?updatedAtTo=9999-12-31T23:59:59Z&status=failed", (200, page(FAILED))),
    ("/jobs?nextRunAtTo=9999-12-31T23:59:59Z&status=failed", (200, page(FAILED))),
    ("/jobs?nextRunAtFrom=9999-12-31T23:59:59.999999Z", (200, EMPTY)),
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
                "cancelled": 1,
                "total": 5,
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


def changed(number: str, **fields: Any) -> tuple[int, Any]:
    return 200, {**SHOWN[number], "updatedAt": ANY, **fields}


def counted(count: int) -> tuple[int, Any]:
    return 200, {"count": count, "errors": []}


JSON: Final = {"content-type": "application/json"}
MALFORMED: Final = (400, {"error": ANY})
NOT_FOUND: Final = (404, {"error": "Job not found"})
LATER: Final = "2031-01-01T00:00:00.000Z"
ON_JOBS: Final = "/jobs/actions"

WRONG_SELECTORS: Final[list[Any]] = [
    {},
    {"everything": True, "name": "mail"},
    {"everything": False},
    {"status": []},
    {"status": "lost"},
    {"foo": 1},
    {"name": 5},
    {"olderThan": "yesterday"},
    [],
]
OF_NO_JOB: Final[list[dict[str, Any]]] = [
    {"name": "nobody"},
    {"name": ""},
    {"status": "failed", "olderThan": "2030-01-01T00:00:00Z"},
    {"olderThan": "2000-01-01T00:00:00Z", "newerThan": "2090-01-01T00:00:00Z"},
    {"newerThan": "9999-12-31T23:59:59.999Z"},
]

CHANGES: Final[list[tuple[str, str, dict[str, Any], tuple[int, Any]]]] = [
    ("DELETE", "/jobs/123", {}, (400, {"error": "Invalid job id"})),
    ("DELETE", f"/jobs/{PENDING}?foo=0", {}, INVALID),
    # Without a body and a content type, as the official client sends them.
    ("POST", f"/jobs/{PENDING}/actions/cancel", {}, changed(PENDING, status="cancelled")),
    ("POST", f"/jobs/{PENDING}/actions/cancel/", {}, changed(PENDING, status="cancelled")),
    (
        "POST",
        f"/jobs/{FAILED}/actions/retry",
        {"json": {"whatever": 1}},
        changed(FAILED, status="pending", failCount=0, failureReason=None, nextRunAt=ANY),
    ),
    (
        "POST",
        f"/jobs/{FAILED}/actions/reschedule",
        {"json": {"nextRunAt": "2031-01-01T00:00:00Z"}},
        changed(FAILED, status="pending", failCount=0, failureReason=None, nextRunAt=LATER),
    ),
    ("POST", f"/jobs/{FAILED}/actions/reschedule", {}, INVALID),
    ("POST", f"/jobs/{FAILED}/actions/reschedule", {"json": {"nextRunAt": "2031-01-01"}}, INVALID),
    ("POST", f"/jobs/{FAILED}/actions/reschedule", {"json": {"nextRunAt": LATER, "more": 1}}, INVALID),
    *(
        ("POST", f"/jobs/{RUNNING}/actions/{action}", options, (409, {"error": ANY}))
        for action, options in (("cancel", {}), ("retry", {}), ("reschedule", {"json": {"nextRunAt": LATER}}))
    ),
    ("POST", f"/jobs/{NODE}/actions/cancel", {}, (409, {"error": ANY})),
    ("POST", f"/jobs/{NODE}/actions/retry", {}, (409, {"error": ANY})),
    ("POST", f"/jobs/{UNKNOWN}/actions/retry", {}, NOT_FOUND),
    ("POST", f"/jobs/{FAILED}/actions/retry", {"content": b"{", "headers": JSON}, MALFORMED),
    ("POST", f"/jobs/{FAILED}/actions/retry", {"data": {"a": "form"}}, (415, {"error": ANY})),
    ("DELETE", f"/jobs/{NODE}/", {}, (200, {"deleted": True})),
    ("DELETE", f"/jobs/{NODE}", {}, NOT_FOUND),
    ("GET", f"/jobs/{NODE}", {}, NOT_FOUND),
    ("PUT", f"/jobs/{PENDING}", {}, (405, {"error": "Method not allowed"})),
    ("POST", f"{ON_JOBS}/cancel", {}, INVALID),
    *(("POST", f"{ON_JOBS}/delete", {"json": selector}, INVALID) for selector in WRONG_SELECTORS),
    *(("POST", f"{ON_JOBS}/delete", {"json": selector}, counted(0)) for selector in OF_NO_JOB),
    ("POST", f"{ON_JOBS}/cancel", {"json": {"status": ["pending", "failed"], "name": "mail"}}, counted(1)),
    ("POST", f"{ON_JOBS}/retry/", {"json": {"status": "cancelled"}}, counted(3)),
    ("POST", f"{ON_JOBS}/delete", {"json": {"olderThan": "9999-12-31T23:59:59.999Z", "status": "pending"}}, counted(3)),
    ("POST", f"{ON_JOBS}/delete", {"json": {"everything": True}}, counted(1)),
    ("GET", "/jobs", {}, (200, EMPTY)),
]
"""What is sent, in this order, where everything is allowed: a method, a path, what httpx takes, and the answer."""


async def check_reads(send: Send) -> None:
    """Send each read of the table, and compare the whole answer."""
    for path, (status, expected) in READS:
        found = await send("GET", path)
        assert (found.status_code, found.json()) == (status, expected), path
        assert found.headers["content-type"] == "application/json"
        assert found.headers["cache-control"] == "no-store"


async def check_changes(send: Send) -> None:
    """Send each change of the table, and compare the whole answer. No job is left."""
    for method, path, options, (status, expected) in CHANGES:
        found = await send(method, path, **options)
        assert (found.status_code, found.json()) == (status, expected), (method, path, options)
