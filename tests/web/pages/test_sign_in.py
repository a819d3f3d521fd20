"""The one-time link of a dashboard that a command serves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.http import LOOPS, Ask, asking
from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from trio_monque import Monque
from trio_monque.store.driver.types import Database
from trio_monque.web import allow_all, create_app
from trio_monque.web.guard.gate import Gate
from trio_monque.web.guard.one_time_link import LINK_LASTS, SESSION_LASTS, OneTimeLink
from trio_monque.web.pages.assets import assets
from trio_monque.web.pages.sign_in import SignIn


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_exchanged_once() -> None:
    link = OneTimeLink()
    assert link.exchange("") is None
    assert link.exchange(link.token[:-1]) is None
    session = link.exchange(link.token)
    assert session is not None
    assert session != link.token
    assert link.admits(session)
    assert not link.admits(link.token)
    assert not link.admits("")
    assert link.exchange(link.token) is None
    assert link.admits(session), "a second try does not throw out the first browser"


def test_a_token_lasts_ten_minutes_and_a_session_twelve_hours() -> None:
    clock = Clock()
    late, in_time = OneTimeLink(clock), OneTimeLink(clock)
    clock.now += LINK_LASTS - 1
    session = in_time.exchange(in_time.token)
    assert session is not None
    clock.now += 1
    assert late.exchange(late.token) is None
    clock.now += SESSION_LASTS - 2
    assert in_time.admits(session)
    clock.now += 1
    assert not in_time.admits(session)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_link_lets_in_one_browser(db: Database, loop: str) -> None:
    link = OneTimeLink()
    app = Gate(SignIn(create_app(Monque(db), authorize=allow_all), link, "monque_1"))

    async def work(ask: Ask) -> None:
        assert (await ask("GET", "/")).status_code == 401
        assert (await ask("GET", "/api/v1/jobs")).json() == {
            "error": "Open the link that the command has printed. For another browser, start the command again."
        }
        page = await ask("GET", f"/?token={link.token}")
        assert page.status_code == 200
        assert "set-cookie" not in page.headers, "previews of links open it, too"
        # Without the token, and with the origin in the header Origin, or a form over plain HTTP would be refused.
        assert page.headers["referrer-policy"] == "strict-origin"
        assert (await ask("POST", "/sign-in", data={"token": "x" * 43})).status_code == 403
        answer = await ask("POST", "/sign-in", data={"token": link.token})
        assert answer.status_code == 303
        assert answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/;", "Max-Age=43200")), cookie
        assert "Secure" not in cookie
        assert (await ask("GET", "/")).status_code == 200
        assert (await ask("GET", "/api/v1/jobs")).status_code == 200

    asking(loop, app, work, prefix="")
    asking(loop, app, at_the_door, prefix="")


async def at_the_door(ask: Ask) -> None:
    """What another browser gets."""
    for method, path in (("GET", "/"), ("GET", "/jobs"), ("DELETE", "/api/v1/jobs/" + "0" * 24), ("POST", "/act")):
        assert (await ask(method, path)).status_code == 401
    assert (await ask("GET", "/", headers={"Cookie": "monque_1="})).status_code == 401
    assert (await ask("GET", "/", headers={"Cookie": "monque_1=chosen-before"})).status_code == 401


def test_behind_https_the_cookie_is_for_https_and_for_the_path(db: Database) -> None:
    link = OneTimeLink()
    app = SignIn(create_app(Monque(db)), link, "monque_1")

    async def work(ask: Ask) -> None:
        answer = await ask("POST", "https://jobs.test/ops/sign-in", data={"token": link.token})
        assert answer.headers["location"] == "/ops/"
        assert "Secure" in answer.headers["set-cookie"]
        assert "Path=/ops;" in answer.headers["set-cookie"]

    asking("asyncio", app, work, prefix="", root_path="/ops")


@pytest.mark.parametrize("root", ["", "/ops", "/static/ops"])
def test_only_the_files_themselves_are_outside_the_door(db: Database, root: str) -> None:
    """An instance may be called "a/static/b", and its page is not for everybody."""
    db["monque_jobs"].insert_one(job_document("mail", status="processing", claimed_by="a/static/b"))
    app = SignIn(create_app(Monque(db), authorize=allow_all), OneTimeLink(), "monque_1")
    for path in ("/instances/a/static/b", "/instances/static/x", "/static/none.css", "//static/jobs", "/jobs"):
        assert get(app, root + path, root_path=root).status_code == 401, path
    assert get(app, root + "/jobs", root_path=root, headers={"Host": "x/static/"}).status_code == 401
    assert get(app, f"{root}/{assets()['monque.css'].path}", root_path=root).status_code == 200


@pytest.mark.parametrize(
    "options",
    [
        {"content": b"token=x", "headers": {"Content-Type": "text/plain"}}, {"json": {"token": "x"}},
        {"content": b"a" * 2_000_000, "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
        {"content": b"\xff=%ff", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_read_opens_nothing(db: Database, options: dict[str, Any]) -> None:
    app = SignIn(create_app(Monque(db)), OneTimeLink(), "monque_1")

    async def work(ask: Ask) -> None:
        assert (await ask("POST", "/sign-in", **options)).status_code in (400, 403, 413, 415)

    asking("asyncio", app, work, prefix="")
