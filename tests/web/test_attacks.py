"""What an attacker sends: other sites, other hosts, and requests that no client makes."""

from __future__ import annotations

import gzip
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import anyio
import httpx
import pytest
from starlette.types import ASGIApp, Message

from tests.support.store import handle, insert
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import allow_all, create_app
from trio_monque.web.answers import RefusedRequestError
from trio_monque.web.guard import rates as rates_of_callers
from trio_monque.web.guard.body import DEEPEST, MOST_BYTES
from trio_monque.web.guard.rates import MOST_CALLERS, Rates
from trio_monque.web.guard.requests import is_known_host

# --- Other sites ---

OTHERS: Final[list[dict[str, str]]] = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "origin": "http://jobs.test"},
    {"sec-fetch-site": ""},
    {"origin": "http://evil.test"},
    {"origin": "http://sub.jobs.test"},
    {"origin": "http://jobs.test:8080"},
    {"origin": "https://jobs.test"},
    {"origin": "http://jobs.test:x"},
    {"origin": "null"},
    {"origin": ""},
]
OWN: Final[list[dict[str, str]]] = [
    {},
    {"sec-fetch-site": "same-origin", "origin": "http://jobs.test"},
    {"sec-fetch-site": "none"},
    {"origin": "http://jobs.test"},
    {"origin": "http://jobs.test:80"},
    {"origin": "https://admin.test", "sec-fetch-site": "cross-site"},
]


@pytest.mark.parametrize("loop", LOOPS)
def test_pages_of_other_sites_change_nothing(db: Database, jobs: Collection, loop: str) -> None:
    job = insert(handle(db))
    app = create_app(Monque(db), authorize=allow_all, trusted_origins=["https://admin.test"])

    async def work(ask: Ask) -> None:
        for headers in OTHERS:
            found = await ask("DELETE", f"/jobs/{job.id}", headers=headers)
            assert (found.status_code, found.json()) == (
                403,
                {"error": "This request comes from a page of another site"},
            ), headers
            assert (await ask("GET", "/jobs", headers=headers)).status_code == 200  # Which changes nothing.
            assert "access-control-allow-origin" not in found.headers
        assert jobs.count_documents({}) == 1
        for headers in OWN:
            found = await ask("POST", f"/jobs/{job.id}/actions/reschedule", headers=headers, json=MOVE)
            assert found.status_code == 200, headers

    asking(loop, app, work)


MOVE: Final = {"nextRunAt": "2040-01-01T00:00:00Z"}


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", None])
def test_forms_and_plain_text_are_refused(db: Database, jobs: Collection, kind: str | None) -> None:
    insert(handle(db))

    async def work(ask: Ask) -> int:
        headers = {} if kind is None else {"content-type": kind}
        return (await ask("POST", "/jobs/actions/delete", headers=headers, content=b'{"everything": true}')).status_code

    assert asking("trio", create_app(Monque(db), authorize=allow_all), work) == 415
    assert jobs.count_documents({}) == 1


@pytest.mark.parametrize("path", ["/jobs/{}/actions/cancel", "/jobs/actions/delete"])
def test_no_get_changes_anything(db: Database, path: str) -> None:
    job = insert(handle(db))

    async def work(ask: Ask) -> None:
        for method in ("GET", "HEAD", "PUT", "PATCH"):
            found = await ask(method, path.format(job.id))
            assert found.status_code == 405
            assert found.headers["allow"] == "POST"

    asking("trio", create_app(Monque(db), authorize=allow_all), work)


def test_method_that_a_path_does_not_have_is_answered_with_those_that_it_has(db: Database) -> None:
    async def work(ask: Ask) -> None:
        assert (await ask("PUT", f"/jobs/{'f' * 24}")).headers["allow"] == "DELETE, GET"
        assert (await ask("HEAD", "/jobs")).headers["allow"] == "GET, POST"
        assert (await ask("HEAD", "/health")).headers["allow"] == "GET"

    asking("trio", create_app(Monque(db)), work)


# --- Hosts and headers ---


def test_hosts_that_are_not_named_are_not_served(db: Database) -> None:
    app = create_app(Monque(db), allowed_hosts=["Jobs.test"])

    async def work(ask: Ask) -> None:
        assert (await ask("GET", "/health")).status_code == 200
        for host in ("evil.test", "jobs.test.evil.test", "jobs.test:8080", ""):
            found = await ask("GET", "/health", headers={"host": host})
            assert (found.status_code, found.json()) == (421, {"error": "This host is not served here"})
        doubled = await ask("GET", "/health", headers=[("host", "jobs.test"), ("host", "evil.test")])
        assert doubled.status_code == 421

    asking("trio", app, work)


@pytest.mark.parametrize("given", [[], ["jobs.test", "jobs.test"], ["jobs.test", "evil.test"]])
def test_request_must_name_one_host(given: list[str]) -> None:
    """Of two, a proxy may have read the other one."""
    assert not is_known_host(["jobs.test"], given)
    assert is_known_host(None, given)


def test_each_answer_has_the_headers_that_protect_it(db: Database) -> None:
    async def work(ask: Ask) -> None:
        for method, path in (("GET", "/health"), ("GET", "/nothing"), ("PUT", "/jobs"), ("GET", "/jobs?x=1")):
            headers = (await ask(method, path)).headers
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "default-src 'none'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["cache-control"] == "no-store"

    asking("trio", create_app(Monque(db)), work)


# --- Bodies and queries ---

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

    async def work(ask: Ask) -> None:
        for key in ("createdAtFrom", "createdAtTo", "updatedAtTo", "nextRunAtFrom"):
            assert (await ask("GET", f"/jobs?{key}={moment}")).status_code == 200
        for selector in ({"olderThan": moment}, {"newerThan": moment}, {"newerThan": moment, "olderThan": moment}):
            assert (await ask("POST", "/jobs/actions/count", json=selector)).status_code in (200, 400)
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


# --- Too much ---


@dataclass(frozen=True)
class User:
    """A context of a host."""

    user: str


def test_eleventh_change_of_a_caller_in_a_second_is_refused(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    job = insert(handle(db))
    now = 100.0
    monkeypatch.setattr(rates_of_callers, "MOST_A_SECOND", 10)
    monkeypatch.setattr("trio_monque.web.application.Rates", lambda: Rates(lambda: now))
    app = create_app(Monque(db), authorize=allow_all, context=lambda request: User(request.headers["x-user"]))

    async def work(ask: Ask) -> list[int]:
        nonlocal now

        async def change(user: str) -> Any:
            return await ask("POST", f"/jobs/{job.id}/actions/reschedule", json=MOVE, headers={"x-user": user})

        found = [(await change("dana")).status_code for _ in range(11)]
        refused = await change("dana")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        found.append((await change("other")).status_code)
        now += 1
        found.append((await change("dana")).status_code)
        return found

    assert asking("trio", app, work) == [*[200] * 10, 429, 200, 200]


def test_one_bulk_action_of_a_caller_at_a_time() -> None:
    rates = Rates()
    with rates.one_in_bulk("dana"):
        with pytest.raises(RefusedRequestError, match="Another bulk action"), rates.one_in_bulk("dana"):
            pass
        with rates.one_in_bulk("other"):
            pass
    with rates.one_in_bulk("dana"):
        pass


@pytest.mark.parametrize("loop", LOOPS)
def test_second_bulk_action_of_a_caller_is_refused_while_the_first_one_runs(db: Database, loop: str) -> None:
    async def work_on(app: ASGIApp, reached: anyio.Event, go_on: anyio.Event) -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://jobs.test") as client:

            async def delete() -> httpx.Response:
                return await client.post("/api/v1/jobs/actions/delete", json={"name": "greet"})

            async with anyio.create_task_group() as group:
                group.start_soon(delete)
                await reached.wait()
                refused = await delete()
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                go_on.set()
            assert (await delete()).status_code == 200

    async def run() -> None:
        reached, go_on = anyio.Event(), anyio.Event()

        async def authorize(action: str, context: Any, target: Any) -> bool:
            reached.set()
            await go_on.wait()
            return True

        await work_on(create_app(Monque(db), authorize=authorize), reached, go_on)

    anyio.run(run, backend=loop)


def test_callers_that_are_remembered_are_bounded() -> None:
    rates = Rates(lambda: 1.0)
    for number in range(2 * MOST_CALLERS):
        rates.count(str(number))
    assert len(vars(rates)["_counts"]) == MOST_CALLERS
