"""Bodies that no client sends."""

from __future__ import annotations

import gzip
from typing import Any, Final

import anyio
import pytest
from starlette.types import Message

from tests.support.store import handle, insert
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import allow_all, create_app
from trio_monque.web.guard.body import DEEPEST, MOST_BYTES

NESTED: Final = "[" * 5000 + "]" * 5000
HARMFUL: Final = [
    b"{",
    b"nonsense",
    b"\xff\xfe",
    b'{"name": "\\ud800"}',
    b'{"name": "a", "name": "b"}',
    b'{"name": 1e999}',
    b'{"name": NaN}',
    b'{"name": ' + b"9" * 5000 + b"}",
    b'{"name": 9223372036854775808}',
    b'{"name": ' + NESTED.encode() + b"}",
    b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1),
]


@pytest.mark.parametrize("path", ["/jobs/{}/actions/cancel", "/jobs/{}/actions/reschedule", "/jobs/actions/delete"])
def test_bodies_that_cannot_be_read(db: Database, path: str) -> None:
    job = insert(handle(db))

    async def work(ask: Ask) -> None:
        for body in HARMFUL:
            found = await ask(
                "POST", path.format(job.id), content=body, headers={"content-type": "application/json; charset=utf-8"}
            )
            assert found.status_code == 400, body[:40]
            assert found.json()["error"].startswith("Malformed request. ")

    asking("trio", create_app(Monque(db), authorize=allow_all), work)


def test_compressed_body_is_not_unpacked(db: Database, jobs: Collection) -> None:
    """A few bytes may stand for gigabytes."""
    insert(handle(db))

    async def work(ask: Ask) -> int:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        body = gzip.compress(b'{"everything": true}')
        return (await ask("POST", "/jobs/actions/delete", content=body, headers=headers)).status_code

    assert asking("trio", create_app(Monque(db), authorize=allow_all), work) == 400
    assert jobs.count_documents({}) == 1


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("headers", [[], [(b"content-length", b"1" * 30)]], ids=["chunked", "announced"])
def test_endless_body_is_read_up_to_its_limit(db: Database, loop: str, headers: list[tuple[bytes, bytes]]) -> None:
    app = create_app(Monque(db), authorize=allow_all)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/v1/jobs/actions/delete",
        "headers": [(b"content-type", b"application/json"), *headers],
        "query_string": b"",
        "scheme": "http",
    }
    pieces = 0
    sent: list[Message] = []

    async def receive() -> Message:
        nonlocal pieces
        pieces += 1
        return {"type": "http.request", "body": b" " * 65536, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    async def ask() -> None:
        await app(scope, receive, send)

    anyio.run(ask, backend=loop)
    assert sent[0]["status"] == 413
    assert pieces <= (0 if headers else MOST_BYTES // 65536 + 1)


OPERATORS: Final[list[Any]] = [
    {"$ne": None},
    {"$gt": ""},
    {"$regex": ".*"},
    {"$in": ["failed"]},
    {"$where": "1"},
    [{}],
    5,
    None,
]
ROUTES_WITH_BODIES: Final[dict[str, list[str]]] = {
    "/jobs/actions/count": ["name", "key", "keyPrefix", "errorContains", "errorPrefix", "status", "olderThan", "due"],
    "/jobs/actions/cancel": ["name", "status", "newerThan", "updatedAtFrom", "everything"],
    "/jobs/actions/retry": ["name", "status", "updatedAtTo", "everything"],
    "/jobs/actions/delete": ["name", "status", "errorPrefix", "everything"],
    "/jobs/actions/by-ids": ["ids", "action"],
    "/names/actions/pause": ["name"],
    "/names/actions/resume": ["name"],
    "/jobs": ["name", "uniqueKey", "onConflict", "runAt", "meta"],
}
LEAST: Final[dict[str, dict[str, Any]]] = {
    "/jobs": {"name": "a"},
    "/jobs/actions/by-ids": {"action": "delete", "ids": ["a"]},
}


@pytest.mark.parametrize("path", ROUTES_WITH_BODIES)
def test_operators_in_place_of_values_are_refused(db: Database, jobs: Collection, path: str) -> None:
    insert(handle(db), unique_key="k")
    before = list(jobs.find())
    least = LEAST.get(path, {})

    async def work(ask: Ask) -> None:
        for field in ROUTES_WITH_BODIES[path]:
            for value in OPERATORS:
                if (field, value) == ("meta", {"$gt": ""}):
                    continue  # Which is a mapping of texts: see below.
                found = await ask("POST", path, json={**least, field: value})
                assert found.status_code == 400, (field, value, found.text)
        for value in ({"$gt": ""}, {"a.b": "c"}, {"$where": "1"}):
            assert (await ask("POST", path, json={**least, "meta": value})).status_code == 400
        for key in ("$where", "__proto__", "constructor", "name[$ne]", "filter", ""):
            assert (await ask("POST", path, json={**least, key: "x"})).status_code == 400

    asking("trio", create_app(Monque(db), authorize=allow_all, allow_enqueue=True), work)
    assert list(jobs.find()) == before


@pytest.mark.parametrize(
    "kind", ["text/plain; application/json", "application/json+x", "text/json", "application/jsonp", "multipart/mixed"]
)
def test_type_that_only_looks_like_json_is_refused(db: Database, jobs: Collection, kind: str) -> None:
    """Some of these a page of another site can send without asking."""
    insert(handle(db))

    async def work(ask: Ask) -> None:
        for headers in ({"content-type": kind}, [("content-type", kind), ("content-type", "application/json")]):
            found = await ask("POST", "/jobs/actions/delete", headers=headers, content=b'{"everything": true}')
            assert found.status_code == 415

    asking("trio", create_app(Monque(db), authorize=allow_all), work)
    assert jobs.count_documents({}) == 1
