"""The screen Errors: groups, filters, what is hidden, empty states."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.web.http import LOOPS
from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from trio_monque import Monque
from trio_monque.store.driver.types import Database
from trio_monque.web import create_app
from trio_monque.web.pages.errors_screen import LONGEST_SELECTION, parts_of, selected_by

HOSTILE: Final = "<script>alert('x')</script>\u202e"


def fail(db: Database, number: int, reason: str | None, name: str = "mail", *, hours_ago: float = 0.0) -> None:
    at = datetime.now(UTC) - timedelta(hours=hours_ago)
    db["monque_jobs"].insert_many(
        job_document(name, status="failed", fail_reason=reason and reason.format(place), updated_at=at)
        for place in range(number)
    )


def numbers(text: str) -> list[str]:
    return re.findall(r'<li><div class="n">([^<]*)</div>', text)


def jobs_link(text: str) -> str:
    found = re.search(r'<a class="btn" href="([^"]*)">See', text)
    assert found is not None
    return html.unescape(found[1])


@pytest.mark.parametrize("loop", LOOPS)
def test_groups_have_numbers_names_and_a_link_to_exactly_their_jobs(db: Database, loop: str) -> None:
    fail(db, 1203, "SMTPError: 550 mailbox {} & more")
    fail(db, 2, "SMTPError: 550 mailbox {} & more", HOSTILE)
    fail(db, 1, "OSError: no route")
    app = create_app(Monque(db))
    answer = get(app, "/errors", loop=loop)
    assert answer.status_code == 200
    assert numbers(answer.text) == ["1,205", "1"]
    assert 'SMTPError: <span class="gap">…</span> mailbox <span class="gap">…</span> &amp; more' in answer.text
    assert "<title>1,206 failed, errors · Monque</title>" in answer.text
    assert "<script>alert" not in answer.text
    assert "\u202e" not in answer.text
    assert "1,205 match" in get(app, jobs_link(answer.text)).text


@pytest.mark.parametrize(
    ("query", "found"),
    [("since=1h", ["1"]), ("", ["2", "1"]), ("since=24h&name=mail", ["2"]), ("since=all", ["3", "2", "1"]),
     ("name=nothing", []), ("name=" + "x" * 2000, [])],
)  # fmt: skip
def test_time_and_name_choose_the_jobs(db: Database, query: str, found: list[str]) -> None:
    fail(db, 1, "A", "other")
    fail(db, 2, "B", hours_ago=5)
    fail(db, 3, "C", hours_ago=50)
    app = create_app(Monque(db))
    text = get(app, f"/errors?{query}").text
    assert numbers(text) == found
    if found:
        assert f"{found[0]} match" in get(app, jobs_link(text)).text


@pytest.mark.parametrize(("query", "marked"), [("", ["2", "1"]), ("since=all", ["1"]), ("since=1h", [])])
def test_errors_without_a_failure_before_the_last_hour_are_new(db: Database, query: str, marked: list[str]) -> None:
    fail(db, 1, "A", hours_ago=0.5)
    fail(db, 2, "B", hours_ago=0.5)
    fail(db, 1, "B", hours_ago=50)
    text = get(create_app(Monque(db)), f"/errors?{query}").text
    rows = re.findall(r'<li><div class="n">([^<]*)</div>(.*?)</li>', text, re.DOTALL)
    assert [number for number, row in rows if ">new<" in row] == marked


def test_another_time_is_a_page_that_names_the_right_ones(db: Database) -> None:
    answer = get(create_app(Monque(db)), "/errors?since=yesterday")
    assert answer.status_code == 400
    assert "1h, 24h, all" in answer.text


@pytest.mark.parametrize("show", [False, lambda _job, _text, _context: "redacted"])
def test_hidden_errors_are_in_no_text_and_no_link(db: Database, show: Any) -> None:
    fail(db, 2, "the password is 12345")
    text = get(create_app(Monque(db), show_errors=show), "/errors").text
    assert numbers(text) == ["2"]
    assert "password" not in text
    assert "error=" not in text
    assert "/jobs/" in jobs_link(text)


@pytest.mark.parametrize("reason", [None, "", "17 is not allowed", "\ufffdx"])
def test_a_group_that_no_filter_selects_leads_to_a_job(db: Database, reason: str | None) -> None:
    fail(db, 2, reason)
    fail(db, 1, "other", "other")
    app = create_app(Monque(db))
    first = get(app, "/errors?name=mail").text
    assert numbers(first) == ["2"]
    assert (reason == "17 is not allowed") == ("2 match" in get(app, jobs_link(first)).text)


def test_many_groups_and_many_jobs_are_cut_with_a_sentence(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_monque.store.reads.diagnosis.jobs.MOST_READ", 150)
    db["monque_jobs"].insert_many(
        job_document("mail", status="failed", fail_reason=f"{'a' * place}: no") for place in range(160)
    )
    text = get(create_app(Monque(db)), "/errors").text
    assert len(numbers(text)) == 100
    assert "50 rarer errors are not shown" in text
    assert "The newest 5,000 failed jobs were examined." in text
    assert "150+ failed for good" in text


def test_empty_states_are_different(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(Monque(db))
    assert "No job has failed for good." in get(app, "/errors?since=all").text
    assert "max_attempts" in get(app, "/errors?since=all").text
    fail(db, 3, "C", hours_ago=50)
    assert "No job failed for good in the last 24 hours." in get(app, "/errors").text
    assert "named a&lt;b" in get(app, "/errors?name=a%3Cb").text
    monkeypatch.setattr("trio_monque.store.reads.diagnosis.jobs.MOST_READ", 2)
    assert "examined failed jobs failed in the last 24 hours" in get(app, "/errors?name=mail").text


@pytest.mark.parametrize(
    ("prefix", "selected"),
    [("a: b", "a: b"), ("", ""), ("ab\ud800c", "ab"), ("abc\ufffdd", "abc"), ("x" * 1500, "x" * 1000)],
)
def test_errors_are_selected_by_what_a_url_can_have(prefix: str, selected: str) -> None:
    assert selected_by(prefix) == selected
    assert len(selected_by("漢" * 900)) * 9 <= LONGEST_SELECTION


def test_variable_parts_are_items_of_their_own() -> None:
    assert parts_of("E: … of …") == ["E: ", "…", " of ", "…"]
    assert parts_of("…") == ["…"]
