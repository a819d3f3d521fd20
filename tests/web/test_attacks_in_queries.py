"""Queries, texts and paths that no client sends."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import anyio
import httpx
import pytest

from tests.support.store import handle, insert
from tests.web.http import Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import allow_all, create_app

QUERIES: Final = [
    "name[$ne]=x",
    "status[$in]=failed",
    "status[9999]=failed",
    "meta.$where=1",
    "data.__proto__=1",
    "cursor=F" + "A" * 4000,
    "cursor=F{}",
    "cursor=FeyJpZCI6MX0",
    "cursor=%00",
    "cursor=%ff",
    "limit=" + "9" * 4000,
    "limit=1e400",
    "sortBy=__class__",
    "createdAtFrom=9999-12-31T23:59:60Z",
    "view=full&view=full",
    "view[]=full",
    "view=full&key[$regex]=x&name=a",
    "view=full&name=a&key=x&keyPrefix=x",
    "view=full&keyPrefix=x",
    "view=full&errorPrefix[$ne]=x",
    "view=full&instance[$gt]=",
    "view=full&instance=a&status=failed",
    "view=full&direction[]=backward",
    "view=full&due=%00",
    "view=full&meta.tenant=acme",
    "view=full&status[0]=failed&status[$ne]=failed",
]


@pytest.mark.parametrize("query", QUERIES)
def test_query_that_no_client_makes_is_refused(db: Database, query: str) -> None:
    insert(handle(db))

    async def work(ask: Ask) -> int:
        return (await ask("GET", "/jobs?" + query)).status_code

    assert asking("trio", create_app(Monque(db)), work) == 400


def test_cursor_of_another_order_or_with_other_types_inside_is_refused(db: Database) -> None:
    for _ in range(3):
        insert(handle(db))

    def encoded(content: Any) -> str:
        return "F" + urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    sort: dict[str, Any] = {"by": "createdAt", "direction": "desc", "value": "2030-01-01T00:00:00.000Z"}
    forged: list[Any] = [
        {"id": {"$gt": ""}, "sort": sort},
        {"id": "0" * 24, "sort": {**sort, "value": {"$gt": ""}}},
        {"id": "0" * 24, "sort": {**sort, "by": ["createdAt"]}},
        {"id": "0" * 24, "sort": {**sort, "direction": {"$ne": 1}}},
        {"id": "0" * 24, "sort": 5},
        [],
    ]

    async def work(ask: Ask) -> None:
        page = (await ask("GET", "/jobs?limit=1&sortBy=createdAt")).json()
        assert (await ask("GET", f"/jobs?sortBy=createdAt&cursor={page['cursor']}")).status_code == 200
        for query in (
            f"sortBy=updatedAt&cursor={page['cursor']}",
            f"sortDirection=asc&cursor={page['cursor']}",
            f"cursor={page['cursor'][:-4]}",
            f"view=full&sortBy=nextRunAt&direction=backward&cursor={page['cursor']}",
            *(f"cursor={encoded(content)}" for content in forged),
        ):
            found = await ask("GET", "/jobs?" + query)
            assert found.status_code == 400, query
            assert found.json().keys() == {"error"}

    asking("trio", create_app(Monque(db)), work)


@pytest.mark.parametrize("root_path", ["/a b", '/"><script>', "//evil.test", "/a\r\nx: y", "javascript:alert(1)"])
def test_root_path_that_is_not_a_path_is_not_repeated(db: Database, root_path: str) -> None:
    """Behind a careless proxy it may come from the request."""

    async def work() -> None:
        transport = httpx.ASGITransport(create_app(Monque(db)), root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://jobs.test") as client:
            found = await client.get("/openapi.json")
            assert (found.status_code, found.json()) == (400, {"error": "Invalid root path"})

    anyio.run(work)


def test_name_that_no_job_can_have_finds_none(db: Database) -> None:
    insert(handle(db))

    async def work(ask: Ask) -> None:
        for name in ("%00", "%ff", "x" * 5000, "%ED%A0%80", "<script>", "../.."):
            assert (await ask("GET", "/jobs?name=" + name)).json()["jobs"] == []
            assert (await ask("GET", "/jobs/stats?name=" + name)).json()["total"] == 0

    asking("trio", create_app(Monque(db)), work)


TEXTS: Final = [
    "\x00",
    "a\x00b",
    "(",
    "[",
    "\\",
    ".*",
    "^",
    "$where",
    "{",
    "\\Q",
    "é" * 1000,
    "\u202e",
    " ",
    "\r\n",
    "\U0001f600" * 500,
]


@pytest.mark.full
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_text_of_an_attacker_is_only_a_text(db: Database, jobs: Collection, text: str) -> None:
    """Wherever a request may have one: the answer is never a failure of the server, and no pattern matches."""
    insert(handle(db))
    job = insert(handle(db), unique_key="k")
    jobs.update_one({"_id": job.id}, {"$set": {"failReason": "reason"}})
    quoted = quote(text, safe="")

    async def work(ask: Ask) -> None:
        for query in (
            "name={}",
            "view=full&errorContains={}",
            "view=full&errorPrefix={}",
            "view=full&name=greet&key={}",
        ):
            found = await ask("GET", "/jobs?" + query.format(quoted))
            assert found.status_code in (200, 400), query
            assert found.status_code == 400 or found.json()["jobs"] == []
        for action in ("count", "cancel", "retry", "delete"):
            for selector in (
                {"name": text},
                {"errorContains": text},
                {"errorPrefix": text},
                {"name": "greet", "key": text},
                {"name": "greet", "keyPrefix": text},
            ):
                found = await ask("POST", f"/jobs/actions/{action}", json=selector)
                assert found.status_code in (200, 400), (action, selector)
                assert found.status_code == 400 or found.json()["count"] == 0
        for path, body in (
            ("/names/actions/pause", {"name": text}),
            ("/jobs", {"name": text}),
            ("/jobs", {"name": "a", "uniqueKey": text}),
            ("/jobs", {"name": "a", "meta": {text: text}}),
            ("/jobs", {"name": "a", "data": {text: text}}),
            ("/jobs/actions/by-ids", {"action": "delete", "ids": [text]}),
        ):
            assert (await ask("POST", path, json=body)).status_code in (200, 400), path

    asking("trio", create_app(Monque(db), authorize=allow_all, allow_enqueue=True), work)
    assert jobs.count_documents({"name": "greet"}) == 2


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999999Z"])
def test_moments_at_the_ends_of_time_are_read(db: Database, moment: str) -> None:
    job = insert(handle(db))

    is_early = moment < "2"

    async def work(ask: Ask) -> None:
        for key in ("createdAtFrom", "createdAtTo", "updatedAtTo", "nextRunAtFrom"):
            found = (await ask("GET", f"/jobs?{key}={moment}")).json()
            assert len(found["jobs"]) == (key.endswith("From") == is_early), key
        for selector, count in (
            ({"olderThan": moment}, not is_early),
            ({"newerThan": moment}, is_early),
            ({"newerThan": moment, "olderThan": moment}, False),
        ):
            found = (await ask("POST", "/jobs/actions/count", json=selector)).json()
            assert found == {"count": int(count), "isCapped": False}, selector
        moved = await ask("POST", f"/jobs/{job.id}/actions/reschedule", json={"nextRunAt": moment})
        assert moved.status_code in (200, 400)
        assert (await ask("GET", "/jobs?view=full")).status_code == 200

    asking("trio", create_app(Monque(db), authorize=allow_all), work)


def test_query_that_is_too_long_is_refused(db: Database) -> None:
    async def work(ask: Ask) -> int:
        return (await ask("GET", "/jobs?name=" + "x" * 9000)).status_code

    assert asking("trio", create_app(Monque(db)), work) == 414


@pytest.mark.parametrize(
    "path", ["/jobs/%2e%2e", "/jobs/..%2f..", "/jobs/%00", "//jobs", "/jobs//actions/cancel", "/jobs/\\"]
)
def test_path_that_leads_elsewhere_is_not_found_or_no_id(db: Database, path: str) -> None:
    async def work(ask: Ask) -> int:
        return (await ask("GET", path)).status_code

    assert asking("trio", create_app(Monque(db)), work) in (400, 404, 405)


def hostile_values() -> Iterator[Any]:
    yield "<script>alert(1)</script>"
    yield "\u202e\u0000\u001b[31m"
    yield {"$where": "1", "__proto__": {"x": 1}}
    yield float("inf")
    yield 2**63 - 1
    yield b"\x00\xff"


def test_hostile_payloads_are_valid_json(db: Database) -> None:
    ids = [insert(handle(db), data=value).id for value in hostile_values()]

    async def work(ask: Ask) -> None:
        for job_id in ids:
            found = await ask("GET", f"/jobs/{job_id}")
            assert found.status_code == 200
            assert found.headers["content-type"] == "application/json"
            json.loads(found.content, parse_constant=pytest.fail)

    asking("trio", create_app(Monque(db)), work)
