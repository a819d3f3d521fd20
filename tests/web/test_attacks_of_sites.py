"""What pages of other sites and other hosts send."""

from __future__ import annotations

from typing import Any, Final

import pytest
from starlette.requests import Request

from tests.support.store import handle, insert
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import allow_all, create_app
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
            assert (found.status_code, found.json()) == (421, {"error": "This host is not allowed here"})
        doubled = await ask("GET", "/health", headers=[("host", "jobs.test"), ("host", "evil.test")])
        assert doubled.status_code == 421

    asking("trio", app, work)


@pytest.mark.parametrize("given", [[], ["jobs.test", "jobs.test"], ["jobs.test", "evil.test"]])
def test_request_must_name_one_host(given: list[str]) -> None:
    """Of two, a proxy may have read the other one."""
    assert not is_known_host(["jobs.test"], given)
    assert is_known_host(None, given)


PROTECTED: Final[list[tuple[str, str, dict[str, Any], int]]] = [
    ("GET", "/health", {}, 200),
    ("GET", "/jobs", {}, 200),
    ("GET", "/../../openapi.json", {}, 200),
    ("GET", "/nothing", {}, 404),
    ("PUT", "/jobs", {}, 405),
    ("GET", "/jobs?x=1", {}, 400),
    ("GET", "/jobs?name=" + "x" * 9000, {}, 414),
    ("GET", "/health", {"headers": {"host": "evil.test"}}, 421),
    ("DELETE", "/jobs/1", {"headers": {"origin": "http://evil.test"}}, 403),
    ("DELETE", "/jobs/1", {}, 400),
    ("DELETE", f"/jobs/{'f' * 24}", {}, 403),
    ("POST", "/jobs/actions/delete", {"content": b"x" * (1 << 21)}, 413),
    ("POST", "/jobs/actions/delete", {"content": b"x"}, 415),
    ("GET", "/overview", {"headers": {"fail": "yes"}}, 500),
]


@pytest.mark.parametrize(("method", "path", "options", "status"), PROTECTED)
def test_each_answer_has_the_headers_that_protect_it(
    db: Database, method: str, path: str, options: dict[str, Any], status: int
) -> None:
    """It is in no frame (clickjacking), runs no script, is kept nowhere, and has no type that a browser guesses."""

    async def context(request: Request) -> None:
        if "fail" in request.headers:
            raise ZeroDivisionError

    async def work(ask: Ask) -> None:
        found = await ask(method, path, **options)
        assert found.status_code == status
        headers = found.headers
        policy = headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} <= {*policy}
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert headers["content-type"] == "application/json"
        assert not any(name.startswith("access-control-") for name in headers)

    asking("trio", create_app(Monque(db), context=context, allowed_hosts=["jobs.test"]), work)
