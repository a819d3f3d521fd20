"""What all pages share: escaping, links, assets, permission, errors."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

import pytest
from pymongo import MongoClient

from tests.web.http import LOOPS
from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from trio_monque import Monque
from trio_monque.store.driver.types import Database
from trio_monque.web import create_app
from trio_monque.web.pages import rendering
from trio_monque.web.pages.assets import assets
from trio_monque.web.pages.rendering import visible

TEMPLATES: Final = sorted(files("trio_monque.web.pages").joinpath("templates").iterdir(), key=lambda one: one.name)
PATHS: Final = ("/", "/jobs", "/errors", "/schedules", "/instances", "/instances/w", "/health")
NOW: Final = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda one: one.name)
def test_no_template_takes_a_value_as_html_or_has_script_or_style_in_it(template: Any) -> None:
    text = template.read_text(encoding="utf-8")
    assert not re.search(r"\|\s*safe\b|autoescape|Markup|<style|\sstyle=|\son[a-z]+=|javascript:|data:", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ö 漢", "plain ö 漢"),
        ("a\x07b\x00\x7f", "a␇b␀␡"),
        ("a\u202eb\u2066c", "a⟨U+202E⟩b⟨U+2066⟩c"),
        ("line\n\tnext\r", "line\n\tnext␍"),
        ("\ud800", "⟨U+D800⟩"),
        ("a\u00a0b\u200b", "a\u00a0b⟨U+200B⟩"),
    ],
)
def test_what_cannot_be_seen_is_a_symbol(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize("value", ["</title><script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "\ud800&"])
def test_a_value_in_a_page_stays_text(value: str) -> None:
    page = rendering.rendered("refused.html", {**_FRAME, "message": value, "status": value, "title": value, "back": ""})
    assert not re.search(r"<script(?! type=\"module\" src)|<img", page)
    assert page.count("<title>") == 1


_FRAME: Final[dict[str, Any]] = {
    "link": lambda *_parts, **_query: "/",
    "asset": {"monque.css": "/a.css", "icon.svg": "/a.svg"},
    "tabs": [],
    "active": "",
    "product": "Monque",
    "environment": None,
    "collection": "shop.monque_jobs",
    "now": None,
    "version": "1",
    "milliseconds": 1,
    "notice": None,
    "here": "",
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("root_path", ["", "/ops/jobs"])
def test_each_link_and_asset_is_below_the_root(db: Database, loop: str, root_path: str) -> None:
    app = create_app(Monque(db))
    answer = get(app, f"{root_path}/", loop=loop, root_path=root_path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    targets = re.findall(r"(?:href|src|action)=\"([^\"]*)\"", answer.text)
    assert all(one.startswith(f"{root_path}/") or one == "#main" for one in targets), targets
    sheet = next(one for one in targets if one.endswith(".css"))
    served = get(app, sheet, loop=loop, root_path=root_path)
    assert served.headers["content-type"].startswith("text/css")
    assert "immutable" in served.headers["cache-control"]


@pytest.mark.parametrize("file", ["monque.css", "monque.000000000000.css", "..%2fscreen.py", "%2e%2e", "layout.html"])
def test_only_files_under_their_own_names_are_served(db: Database, file: str) -> None:
    assert get(create_app(Monque(db)), f"/static/{file}").status_code == 404


@pytest.mark.parametrize("root_path", ["/a//b", "/a<b", "/a b", "javascript:"])
def test_a_root_path_that_is_none_is_refused_and_not_printed(db: Database, root_path: str) -> None:
    answer = get(create_app(Monque(db)), "/", root_path=root_path)
    assert answer.status_code in (400, 404)
    assert root_path not in answer.text


@pytest.mark.parametrize("path", PATHS)
def test_a_caller_who_may_not_read_gets_one_sentence(db: Database, path: str) -> None:
    app = create_app(Monque(db), authorize=lambda _action, _context, _target: False)
    answer = get(app, path)
    assert answer.status_code == 403
    assert "Read access denied" in answer.text
    assert "Instances" not in re.sub(r"<nav.*?</nav>", "", answer.text, flags=re.S)


def test_a_hook_that_raises_shows_nothing_of_itself(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_request: object) -> None:
        raise ValueError("secret")

    answer = get(create_app(Monque(db), context=broken), "/")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "secret" in caplog.text


@pytest.mark.full
@pytest.mark.parametrize("path", PATHS)
def test_page_without_a_database_asks_to_come_back(path: str) -> None:
    with MongoClient[Any]("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50", tz_aware=True) as client:
        answer = get(create_app(Monque(client["shop"], operation_timeout=0.2)), path)
    assert answer.status_code == 503
    assert "The database does not answer" in answer.text


def test_script_and_styles_are_small() -> None:
    files_served = {name: len(one.content) for name, one in assets().items()}
    assert files_served["monque.js"] <= 15 * 1024
    assert sum(files_served.values()) <= 60 * 1024


def test_what_needs_the_script_is_hidden_without_it(db: Database) -> None:
    page = get(create_app(Monque(db)), "/").text
    found = re.findall(r"<button[^>]*type=\"button\"[^>]*>", page)
    assert len(found) == 3
    assert re.search(r'id="controls" hidden', page)
    assert all(re.search(r"\bhidden\b", one) for one in found if 'class="icon"' not in one)


def test_an_application_without_dashboard_has_no_pages(db: Database) -> None:
    app = create_app(Monque(db), dashboard=False)
    assert get(app, "/").status_code == 404
    assert get(app, "/api/v1/health").status_code == 200


HUGE: Final = "<" * 3_000_000
"""A document can have 16 MiB."""


@pytest.mark.full
def test_huge_texts_of_other_programs_make_no_huge_pages(db: Database) -> None:
    huge = [
        job_document(HUGE, fail_reason=HUGE), job_document(HUGE, status="failed", fail_reason=HUGE),
        job_document("held", status="processing", claimed_by=HUGE, progress={"done": 1, HUGE: 2}),
        job_document("meta", meta={HUGE: HUGE}), job_document("many", meta={str(one): "v" for one in range(100_000)}),
        job_document("half", status="failed", fail_reason="x" * 5_000),
    ]  # fmt: skip
    ids = db["monque_jobs"].insert_many(huge).inserted_ids
    app = create_app(Monque(db))
    tabs = [f"/jobs?status={one}" for one in ("due", "running", "failed")]
    for path in (
        "/",
        "/jobs",
        *tabs,
        "/errors",
        "/instances",
        "/health",
        "/search?q=h",
        *(f"/jobs/{one}" for one in ids),
    ):
        answer = get(app, path)
        assert answer.status_code == 200, path
        assert len(answer.content) < 2_000_000, (path, len(answer.content))
    link = re.search(r'class="err" href="([^"]*)"><div class="n">1</div><div class="m">x', get(app, "/").text)
    assert link is not None
    assert "1 match" in get(app, html.unescape(link[1])).text
